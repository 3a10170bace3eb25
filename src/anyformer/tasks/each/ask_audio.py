"""An answer to a question about a sound."""

from __future__ import annotations

from typing import Annotated, Any, Unpack

from anyformer.tasks.describe_media import ASKED, check_template, write_about
from anyformer.tasks.options import Beams, MaxAnswerTokens
from anyformer.tasks.task import Inputs, RunOptions, Source, start_run

HEARD = ASKED.replace("{image}", "{audio}")


def ask_audio(
    model: Source,
    inputs: Inputs,
    *,
    question: Annotated[str | None, "question about every recording that has none of its own"] = None,
    template: Annotated[str, "prompt, with {audio} and {question} (default: LLaVA's)"] = HEARD,
    num_beams: Beams = None,
    max_new_tokens: MaxAnswerTokens = 64,
    **run_options: Unpack[RunOptions],
) -> Any:
    """The answer; `question` is asked about every recording that brings none of its own. In `template` {audio} and
    {question} stand for them. A recording is a file, or {"audio": (samples, rate)}; of a folder [{"file", "text"}].

    >>> ask_audio("a/reka/folder", "door.wav", question="What is heard?")  # doctest: +SKIP
    'A door that closes.'
    """
    check_template(template, "{audio}", "{question}")
    request = start_run("ask-audio", model, inputs, run_options)
    options = {"max_new_tokens": max_new_tokens, "num_beams": num_beams}
    return write_about(request, "audio", template, options, question)
