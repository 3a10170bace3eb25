"""Helpers for tasks that generate a text from a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.generation import check_can_generate
from anyformer.generation.defaults import settings_for
from anyformer.generation.options import ONLY_BEAMS
from anyformer.objectives.batches import Record
from anyformer.tasks.task import TaskRun, Texts


def check_pair(request: TaskRun) -> None:
    """Raise ValueError if the model is not an encoder-decoder with a language-model head."""
    check_can_generate(request.model)
    if not request.model.spec.pair:
        raise ValueError(f"{request.task} needs an encoder-decoder; use few-shot with this decoder")


def task_params(request: TaskRun, name: str) -> dict[str, Any]:
    """Return the entry of a task in the model's config (T5): the prefix of texts and generation options."""
    tasks = request.model.spec.source.get("task_specific_params") or {}
    return dict(tasks.get(name) or {})


def options_of(usual: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Merge options: `given` overrides `usual`, the options of the config."""
    given = {name: value for name, value in given.items() if value is not None}
    dropped = {"max_length"} if "max_new_tokens" in given else set()
    dropped |= set(ONLY_BEAMS) if given.get("num_beams") == 1 else set()
    return {**{name: value for name, value in usual.items() if name not in dropped}, **given}


def check_settings(request: TaskRun, options: Mapping[str, Any]) -> None:
    """Raise ValueError if an option is invalid for every text, before any text is read."""
    settings_for(request.model, dict(options)).check(2**31)


def write(request: TaskRun, records: list[Record], options: Mapping[str, Any]) -> list[str]:
    return request.job.texts(Texts(), records, **options)


def decode_text(request: TaskRun, tokens: list[int], stops: list[str] | None = None) -> str:
    """Return the text of generated tokens, up to the first of the strings `stops`."""
    decoder = request.tokenizer.stream(stops)
    return "".join([*map(decoder.push, tokens), decoder.flush()])
