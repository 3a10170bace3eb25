"""Answer a question about a recording."""

from __future__ import annotations

from typing import Annotated, Unpack

from anyformer.tasks.describe_media import LLAVA_PROMPT, check_template, write_about
from anyformer.tasks.options import Beams, MaxAnswerTokens
from anyformer.tasks.results import task
from anyformer.tasks.task import Inputs, RunOptions, Source, start_run

AUDIO_PROMPT = LLAVA_PROMPT.replace("{image}", "{audio}")


@task
def ask_audio(
    model: Source,
    inputs: Inputs,
    *,
    question: Annotated[str | None, "question about every recording without its own question"] = None,
    template: Annotated[str, "prompt, with {audio} and {question} (default: LLaVA's)"] = AUDIO_PROMPT,
    num_beams: Beams = None,
    max_new_tokens: MaxAnswerTokens = 64,
    **run_options: Unpack[RunOptions],
) -> str:
    """Return the answer, a text; for a folder [{"file", "text"}, ...]. `question` is used for every recording without
    its own question. `template` must have {audio} and {question}. A recording is a file or {"audio": (samples, rate)}.

    >>> ask_audio("a/reka/folder", "door.wav", question="What is heard?")  # doctest: +SKIP
    'A door that closes.'
    """
    check_template(template, "{audio}", "{question}")
    request = start_run("ask-audio", model, inputs, run_options)
    options = {"max_new_tokens": max_new_tokens, "num_beams": num_beams}
    return write_about(request, "audio", template, options, question)
