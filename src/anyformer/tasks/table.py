"""The table of tasks, from which the command line builds its help and its inputs without importing torch."""

from __future__ import annotations

import dataclasses
import functools

from anyformer.specs.messages import plain
from anyformer.tasks.options import Flag, read_flags


@dataclasses.dataclass(frozen=True)
class TaskInfo:
    """A task: a one-line description, and the fields of an input in the order of the command's arguments."""

    name: str
    line: str
    fields: tuple[str, ...] = ("text",)
    optional: tuple[str, ...] = ()
    ranked: bool = False  # a result is a list of candidates, most likely first
    called: tuple[str, ...] = ()  # other names; the first is the name of transformers' pipeline

    @property
    def raw(self) -> tuple[str, ...]:
        """Fields with a file, a folder, or the content of a file: a picture or samples."""
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
        TaskInfo("fill-mask", "Predict the most likely words for the mask token.", ranked=True),
        TaskInfo(
            "classify",
            "Label a text, or a pair of texts (--pair).",
            optional=("pair",),
            ranked=True,
            called=("text-classification", "sentiment-analysis", "sentiment"),
        ),
        TaskInfo(
            "tag",
            "Tag the words of a text with entities or parts of speech, and their positions.",
            called=("token-classification", "ner", "named entity recognition"),
        ),
        TaskInfo(
            "answer",
            "Find the words of a text that answer a question.",
            fields=("question", "context"),
            ranked=True,
            called=("question-answering", "qa"),
        ),
        TaskInfo("embed", "Turn a text into a vector.", called=("feature-extraction",)),
        TaskInfo("write", "Continue a text.", called=("text-generation", "generate", "completion")),
        TaskInfo(
            "translate",
            "Translate a text into another language.",
            optional=("source", "target"),
            called=("translation",),
        ),
        TaskInfo("summarize", "Summarize a text.", called=("summarization",)),
        TaskInfo("few-shot", "Answer after zero, one or a few examples.", optional=("choices", "answer")),
        TaskInfo(
            "classify-image",
            "Label a picture, or each picture of a folder.",
            fields=("image",),
            ranked=True,
            called=("image-classification",),
        ),
        TaskInfo(
            "zero-shot-image",
            "Choose the name that fits a picture best, for models with two towers (CLIP).",
            fields=("image",),
            ranked=True,
            called=("zero-shot-image-classification",),
        ),
        TaskInfo(
            "caption",
            "Describe a picture, or each picture of a folder, in a sentence.",
            fields=("image",),
            called=("image-to-text", "image captioning"),
        ),
        TaskInfo(
            "ask-image",
            "Answer a question about a picture, or about each picture of a folder.",
            fields=("image",),
            optional=("question",),
            called=("image-text-to-text", "visual-question-answering", "vqa"),
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
            called=("image retrieval",),
        ),
        TaskInfo(
            "embed-image",
            "Turn a picture, or each picture of a folder, into a vector.",
            fields=("image",),
            called=("image-feature-extraction",),
        ),
        TaskInfo(
            "transcribe",
            "Write down the words of a recording, or of each recording of a folder.",
            fields=("audio",),
            called=("automatic-speech-recognition", "asr", "speech recognition", "speech to text"),
        ),
        TaskInfo("detect-language", "Detect the language of a recording.", fields=("audio",), ranked=True),
        TaskInfo("draw", "Draw a picture of a label or of a text.", called=("text-to-image", "generate-image")),
        TaskInfo("next-sentence", "Decide whether the second text follows the first.", fields=("text", "pair")),
        TaskInfo("detect-replaced", "Find the words that were not in the original text."),
    )
}


def find_task(name: str) -> str | None:
    """Return the name of a task by any of its names, ignoring case and punctuation; None if it is unknown."""
    named = {plain(each): task.name for task in TASKS.values() for each in (task.name, *task.called)}
    return named.get(plain(name))
