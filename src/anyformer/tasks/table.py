"""The tasks: the command line makes its help and reads its input from this table, without torch."""

from __future__ import annotations

import dataclasses
import functools

from anyformer.tasks.options import Flag, read_flags


@dataclasses.dataclass(frozen=True)
class TaskInfo:
    """A task, described in one line, with the fields of an input in the order in which a command gives them."""

    name: str
    line: str
    fields: tuple[str, ...] = ("text",)
    optional: tuple[str, ...] = ()
    ranked: bool = False  # a result is a list of candidates, most likely first

    @property
    def raw(self) -> tuple[str, ...]:
        """Fields that name files or folders, or hold the content of one: a picture, samples."""
        return tuple(name for name in self.fields if name in ("image", "audio"))

    @property
    def all_fields(self) -> tuple[str, ...]:
        return (*self.fields, *self.optional)

    @property
    def function(self) -> str:
        """The name of the task's function, and of its file in `each/`."""
        return self.name.replace("-", "_")

    @functools.cached_property
    def flags(self) -> dict[str, Flag]:
        """The keywords of the task's function."""
        return read_flags(self.function)


TASKS: dict[str, TaskInfo] = {
    task.name: task
    for task in (
        TaskInfo("fill-mask", "Give the most likely words in the place of the mask token.", ranked=True),
        TaskInfo("classify", "Label a text, or a pair of texts (--pair).", optional=("pair",), ranked=True),
        TaskInfo("tag", "Tag the words of a text with entities or parts of speech, and their positions."),
        TaskInfo(
            "answer", "Find the words of a text that answer a question.", fields=("question", "context"), ranked=True
        ),
        TaskInfo("embed", "Turn a text into a vector."),
        TaskInfo("write", "Continue a text."),
        TaskInfo("translate", "Translate a text into another language.", optional=("source", "target")),
        TaskInfo("summarize", "Summarize a text."),
        TaskInfo("few-shot", "Answer after zero, one or a few examples.", optional=("choices", "answer")),
        TaskInfo("classify-image", "Label a picture, or each picture of a folder.", fields=("image",), ranked=True),
        TaskInfo(
            "zero-shot-image",
            "Choose the name that fits a picture best, for models with two towers (CLIP).",
            fields=("image",),
            ranked=True,
        ),
        TaskInfo("caption", "Describe a picture, or each picture of a folder, in a sentence.", fields=("image",)),
        TaskInfo(
            "ask-image",
            "Answer a question about a picture, or about each picture of a folder.",
            fields=("image",),
            optional=("question",),
        ),
        TaskInfo(
            "ask-audio",
            "Answer a question about a recording, or about each recording of a folder.",
            fields=("audio",),
            optional=("question",),
        ),
        TaskInfo(
            "search-images",
            "Find the pictures of a folder that fit a text best, for models with two towers (CLIP).",
            ranked=True,
        ),
        TaskInfo("embed-image", "Turn a picture, or each picture of a folder, into a vector.", fields=("image",)),
        TaskInfo(
            "transcribe", "Write down the words of a recording, or of each recording of a folder.", fields=("audio",)
        ),
        TaskInfo(
            "detect-language", "Detect the language that is spoken in a recording.", fields=("audio",), ranked=True
        ),
        TaskInfo("draw", "Draw a picture of a label or of a text."),
        TaskInfo("next-sentence", "Decide whether the second text follows the first.", fields=("text", "pair")),
        TaskInfo("detect-replaced", "Find the words that were not in the original text."),
    )
}
