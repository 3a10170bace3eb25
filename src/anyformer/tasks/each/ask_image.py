"""Answer a question about a picture."""

from __future__ import annotations

from typing import Annotated, Any, Unpack

from anyformer.tasks.describe_media import LLAVA_PROMPT, check_template, write_about
from anyformer.tasks.options import Beams, MaxAnswerTokens
from anyformer.tasks.results import task
from anyformer.tasks.task import RunOptions, Source, start_run


@task
def ask_image(
    model: Source,
    inputs: Any,
    *,
    question: Annotated[str | None, "question about every picture without its own question"] = None,
    template: Annotated[str, "prompt, with {image} and {question} (default: LLaVA's)"] = LLAVA_PROMPT,
    num_beams: Beams = None,
    max_new_tokens: MaxAnswerTokens = 64,
    **run_options: Unpack[RunOptions],
) -> str:
    """Return the answer, a text; for a folder [{"file", "text"}, ...]. `question` is used for every picture without its
    own question. `template` must have {image} and {question}.

    >>> ask_image("a/llava/folder", "cat.png", question="What colour is it?")  # doctest: +SKIP
    'Grey.'
    """
    check_template(template, "{image}", "{question}")
    request = start_run("ask-image", model, inputs, run_options)
    options = {"max_new_tokens": max_new_tokens, "num_beams": num_beams}
    return write_about(request, "image", template, options, question)
