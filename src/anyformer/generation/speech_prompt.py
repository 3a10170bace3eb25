"""Whisper's prompt: tokens for the language, the task, and with or without timestamps.

B rows, n tokens of the prompt.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyformer.generation.options import Settings
from anyformer.inputs.languages import CODES
from anyformer.models.base import TransformerModule
from anyformer.models.call import Call
from anyformer.specs.messages import nearest, quote


def speech_prompt(
    model: TransformerModule, start: Tensor, source: dict[str, Any], s: Settings
) -> tuple[Tensor, Tensor | None]:
    """Return the prompt (B, n), which begins with the start tokens (B, 1), and the encoder's output. The encoder's
    output is None unless it was needed to detect the language."""
    if s.is_multilingual is False and (s.language is not None or s.task is not None):
        raise ValueError("language and task: this model knows only one language; omit both")
    forced = [] if s.language is not None or s.task is not None else [token for _, token in forced_tokens(s)]
    language: Tensor | None = None  # (B,) or (1,)
    memory: Tensor | None = None
    if s.language is not None:
        language = torch.tensor([language_id(name, s) for name in languages_of(s.language, len(start))])
    elif s.lang_to_id and (not forced or forced[0] is None):
        language, memory = detect_language(model, start, source, s)
    parts: list[Tensor] = [start]
    if language is not None:
        parts.append(language.to(start.device)[:, None].expand(len(start), 1))
        forced = forced[1:]
    rest = [token for token in forced if token is not None]
    if s.task is not None or (s.language is not None and s.task_to_id):
        rest.append(task_id(s.task or "transcribe", s))
    no_times = s.no_timestamps_token_id
    if s.return_timestamps:
        s.need(no_times is not None, "return_timestamps", "this model has no timestamps (no_timestamps_token_id)")
        rest = rest[:-1] if rest and rest[-1] == no_times else rest
    elif no_times is not None and rest[-1:] != [no_times]:
        rest.append(no_times)
    parts.append(torch.tensor(rest, dtype=torch.long, device=start.device).expand(len(start), -1))
    return torch.cat(parts, dim=1), memory


def forced_tokens(s: Settings) -> list[list[int | None]]:
    pairs = s.forced_decoder_ids or []
    if [position for position, _ in pairs] != list(range(1, len(pairs) + 1)):
        raise ValueError(f"forced_decoder_ids={pairs}: positions must be 1, 2, ... in this order")
    return pairs


def languages_of(language: str | list[str], rows: int) -> list[str]:
    languages = [language] if isinstance(language, str) else list(language)
    if len(languages) not in (1, rows):
        raise ValueError(
            f"language: {len(languages)} languages for {rows} recordings; pass one for all, or one per recording"
        )
    return languages


def language_id(name: str, s: Settings) -> int:
    """Return the id of a language, given its token, its code or its English name."""
    known = s.lang_to_id or {}
    name = name.lower()
    token = next((each for each in (name, f"<|{name}|>", f"<|{CODES.get(name)}|>") if each in known), None)
    if token is None:
        raise ValueError(f"language={quote(name)}: this model has no token for it; {nearest(name, map(code, known))}")
    return known[token]


def code(token: str) -> str:
    return token.removeprefix("<|").removesuffix("|>")


def task_id(name: str, s: Settings) -> int:
    known = s.task_to_id or {}
    if name not in known:
        raise ValueError(f"task={quote(name)}: this model has no token for it; {nearest(name, known)}")
    return known[name]


def detect_language(
    model: TransformerModule, start: Tensor, source: dict[str, Any], s: Settings
) -> tuple[Tensor, Tensor]:
    """Return each recording's language token (B,), the likeliest after the start token, and the encoder's output."""
    memory = source.get("encoder_outputs")
    if memory is None:
        inputs = {name: v for name, v in source.items() if name in model.spec.embedding.inputs}
        memory, _ = model.encode(Call(inputs, kernel=model.kernel))
    memory = memory if isinstance(memory, Tensor) else memory[0]
    step = Call({"decoder_input_ids": start, "encoder_outputs": memory}, kernel=model.kernel)
    scores = model(step)["logits"][:, -1]
    ids = torch.tensor(sorted((s.lang_to_id or {}).values()), device=scores.device)
    return ids[scores[:, ids].argmax(-1)], memory
