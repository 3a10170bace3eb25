"""An answer to a question about a sound."""

from __future__ import annotations

from typing import Any, Unpack

from anyformer.tasks.hearing import files
from anyformer.tasks.picturing import ASKED, check_template, question_of, written
from anyformer.tasks.task import How, Inputs, Source, TaskRun, ask

HEARD = ASKED.replace("{image}", "{audio}")


def ask_audio(
    model: Source, inputs: Inputs, *, question: str | None = None, template: str = HEARD, num_beams: int | None = None,
    max_new_tokens: int = 64, **how: Unpack[How],
) -> Any:  # fmt: skip
    """The answer; `question` is asked about every recording that brings none of its own. In `template` {audio} and
    {question} stand for them. A recording is a file, or {"audio": (samples, rate)}; of a folder [{"file", "text"}].

    >>> ask_audio("a/reka/folder", "door.wav", question="What is heard?")  # doctest: +SKIP
    'A door that closes.'
    """
    check_template(template, "{audio}", "{question}")
    asked = each_file(ask("ask-audio", model, inputs, how))
    questions = asked.each(lambda row: question_of(row.get("question", question), "recording"))
    texts = [template.replace("{question}", each) for each in questions]
    return asked.give(written(asked, texts, {"max_new_tokens": max_new_tokens, "num_beams": num_beams}, "audio"))


def each_file(asked: TaskRun) -> TaskRun:
    """The recordings of a folder stand for it, each under its name."""
    rows = []
    for row in asked.rows:
        found = files(row["audio"])
        alone = found[0] is row["audio"]
        rows += [row] if alone else [{**row, "audio": file, "file": str(file)} for file in found]
    return TaskRun(asked.task, asked.reader, rows, asked.one and all("file" not in row for row in rows))
