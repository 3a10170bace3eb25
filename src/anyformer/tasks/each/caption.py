"""Describe a picture in one sentence."""

from __future__ import annotations

from typing import Annotated, Any, Unpack

from anyformer.tasks.describe_media import LLAVA_PROMPT, check_template, write_about
from anyformer.tasks.options import Beams, MaxAnswerTokens
from anyformer.tasks.results import task
from anyformer.tasks.task import RunOptions, Source, start_run

CAPTION_PROMPT = LLAVA_PROMPT.replace("{question}", "Describe the picture in one sentence.")


@task
def caption(
    model: Source,
    inputs: Any,
    *,
    template: Annotated[str, "prompt, with {image} for the picture (default: LLaVA's)"] = CAPTION_PROMPT,
    num_beams: Beams = None,
    max_new_tokens: MaxAnswerTokens = 64,
    **run_options: Unpack[RunOptions],
) -> str:
    """Return a description of a picture; for a folder [{"file", "text"}, ...]. `template` is the prompt, with {image}
    for the picture.

    >>> caption("a/llava/folder", "cat.png")  # doctest: +SKIP
    'A grey cat on a chair.'
    """
    check_template(template, "{image}")
    request = start_run("caption", model, inputs, run_options)
    return write_about(request, "image", template, {"max_new_tokens": max_new_tokens, "num_beams": num_beams})
