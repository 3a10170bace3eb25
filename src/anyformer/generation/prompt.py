"""The prompt of `generate`: checks the caller's inputs, aligns rows to the right and computes the maximal length."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.generation.options import Settings
from anyformer.generation.speech_prompt import speech_prompt
from anyformer.generation.stepper import align_right
from anyformer.models import Call, TransformerModule, position_limit
from anyformer.runtime.inputs import boolean_mask

REFUSED_INPUTS = {
    "labels": "used in training only; generate takes no labels",
    "position_ids": "positions follow from attention_mask",
    "decoder_position_ids": "positions follow from decoder_attention_mask",
    "document_ids": "generate takes one prompt per row",
    "decoder_document_ids": "generate takes one prompt per row",
    "decoder_inputs_embeds": "generate starts from decoder_input_ids",
    "logits_to_keep": "generate computes only the last scores",
}


@dataclasses.dataclass
class Prompt:
    """The prompts of one call, one per row."""

    ids: Tensor  # (B, P) as given
    aligned: Tensor  # (B, P) with the padding of each row moved to the left
    mask: Tensor | None  # (B, P) True for real tokens of `aligned`; None: no padding
    embeds: Tensor | None  # (B, T, D) read instead of the ids
    source: dict[str, Any]  # the model's other inputs
    memory: Tensor | None = None  # the encoder's output, if it was computed already
    read: dict[str, Any] = dataclasses.field(default_factory=dict)  # inputs of towers, already part of `embeds`

    @property
    def num_read(self) -> int:
        return self.ids.shape[1] if self.embeds is None else self.embeds.shape[1]

    def places(self) -> Tensor:
        """(B,) number of real tokens of each prompt."""
        if self.mask is None:
            return torch.full((self.ids.shape[0],), self.num_read, device=self.ids.device)
        return self.mask.sum(1)

    def written(self, pad: int | None, vocab_size: int) -> Tensor:
        """Return the aligned ids with padding replaced by `vocab_size`, an id that no penalty counts."""
        if self.mask is None or pad is None or self.aligned.shape != self.mask.shape:
            return self.aligned
        return self.aligned.masked_fill(~self.mask.bool() & (self.aligned == pad), vocab_size)


def prompt_of(model: TransformerModule, inputs: dict[str, Any], s: Settings) -> Prompt:
    """Build the Prompt from the caller's inputs (without those that are None)."""
    for name, why in REFUSED_INPUTS.items():
        if name in inputs:
            raise ValueError(f"{name}: {why}")
    first = inputs.get("input_ids", inputs.get("inputs_embeds"))
    if first is not None:
        name, dims = ("input_ids", 2) if "input_ids" in inputs else ("inputs_embeds", 3)
        if not isinstance(first, Tensor) or first.dim() != dims:
            raise ValueError(f"{name} must be a tensor of shape (batch, tokens{', width' if dims == 3 else ''})")
        if first.shape[0] == 0 or first.shape[1] == 0:
            raise ValueError(f"the prompt is empty: {name} has shape {tuple(first.shape)}")
    if "attention_mask" not in inputs and "input_ids" in inputs and "inputs_embeds" not in inputs:
        mask = guess_mask(inputs["input_ids"], s)
        inputs = inputs if mask is None else {**inputs, "attention_mask": mask}
    if model.spec.pair:
        return decoder_prompt(model, inputs, s)
    if first is None:
        raise ValueError("generate needs a prompt: pass input_ids or inputs_embeds")
    rest, _ = model.embed_towers(Call(inputs, kernel=model.kernel))
    rest = dict(rest)
    read = {name: value for name, value in inputs.items() if name not in rest}
    ids, mask, embeds = rest.pop("input_ids", None), rest.pop("attention_mask", None), rest.pop("inputs_embeds", None)
    if ids is None:
        ids = torch.zeros(embeds.shape[0], 0, dtype=torch.long, device=embeds.device)
    aligned = align_prompt(ids, mask, embeds, rest, "attention_mask", model.spec.embedding.token_labels)
    return dataclasses.replace(aligned, read=read)


def guess_mask(ids: Tensor, s: Settings) -> Tensor | None:
    """Return the mask if the caller passes none: pad tokens are padding, unless the pad token is also an end token (as
    in transformers) or a prompt consists only of pad tokens."""
    if s.pad_token_id is None or s.pad_token_id in s.eos:
        return None
    real = ids != s.pad_token_id
    mask = boolean_mask(real | ~real.any(1, keepdim=True))
    return None if mask is None else mask.long()


def align_prompt(
    ids: Tensor,
    mask: Tensor | None,
    embeds: Tensor | None,
    rest: dict[str, Any],
    name: str,
    token_labels: Sequence[str] = (),
) -> Prompt:
    read = ids if embeds is None else embeds
    if mask is not None:
        if mask.shape != read.shape[:2]:
            raise ValueError(f"{name} has shape {tuple(mask.shape)}, the prompt has {tuple(read.shape[:2])}")
        if not bool(mask.any(1).all()):
            raise ValueError(f"{name} masks the whole prompt in row {int((~mask.bool().any(1)).nonzero()[0])}")
        mask = boolean_mask(mask, name)
    if mask is None:
        return Prompt(ids, ids, None, embeds, rest)
    moved = align_right(ids, mask) if ids.shape == mask.shape else ids  # inputs_embeds may be passed without ids
    embeds = None if embeds is None else align_right(embeds, mask)
    labels = {n: align_right(rest[n].expand(mask.shape), mask) for n in token_labels if n in rest}
    return Prompt(ids, moved, align_right(mask, mask), embeds, {**rest, **labels})


def decoder_prompt(model: TransformerModule, inputs: dict[str, Any], s: Settings) -> Prompt:
    """Return the decoder's prompt in an encoder-decoder: the start token, then decoder_input_ids or a speech prompt."""
    rest = dict(inputs)
    ids, mask = rest.pop("decoder_input_ids", None), rest.pop("decoder_attention_mask", None)
    start = s.decoder_start_token_id if s.decoder_start_token_id is not None else model.spec.start_token
    start = start if start is not None else s.bos_token_id
    if ids is None:
        if start is None:
            raise ValueError("decoder_start_token_id=None: an encoder-decoder needs a start token")
        given = next((v for v in rest.values() if v is not None), None)
        if given is None:
            raise ValueError(f"the encoder has no input: pass {model.spec.embedding.inputs[0]} or encoder_outputs")
        rows = (given if isinstance(given, Tensor) else given[0]).shape[0]
        ids = torch.full((rows, 1), start, dtype=torch.long, device=model.device)
        if s.has_speech_prompt:
            ids, memory = speech_prompt(model, ids, rest, s)
            return Prompt(ids, ids, None, None, rest, memory)
    elif (
        start is not None and not s.has_speech_prompt and bool((ids[:, 0] != start).all())
    ):  # every text begins with the start token, as in transformers
        ids = F.pad(ids, (1, 0), value=start)
        mask = None if mask is None else F.pad(mask, (1, 0), value=1)
    return align_prompt(ids, mask, None, rest, "decoder_attention_mask")


def room(model: TransformerModule, s: Settings, prompt: Prompt, state: Any) -> int:
    """Return the maximal length of the ids, prompt included."""
    P, read, positions = prompt.ids.shape[1], prompt.num_read, position_limit(model.spec)
    option = next((name for name in ("max_new_tokens", "max_length") if getattr(s, name) is not None), None)
    if s.max_new_tokens is not None:
        new = s.max_new_tokens
    elif s.max_length is not None and s.has_speech_prompt:  # the speech prompt does not count
        new = s.max_length if positions is None else min(s.max_length, positions - read)
    elif s.max_length is not None:
        s.need(s.max_length > read, "max_length", f"the prompt already has {read} tokens; use max_new_tokens")
        new = s.max_length - read
    else:
        new = 20
    longest = read if prompt.mask is None else int(prompt.places().max())  # padding has no position
    limits = [(positions, longest, "the model's {} positions")]
    if state is not None:
        limits.append((state.capacity, read, "the {} tokens that past_key_values has room for"))
    for limit, used, what in limits:
        if limit is None:
            continue
        if used > limit:
            raise ValueError(f"input_ids: a prompt of {used} tokens does not fit {what.format(limit)}")
        if used + new - 1 > limit:  # the last token is never read
            if option is not None:
                raise ValueError(f"{option}={getattr(s, option)}: {used + new} tokens do not fit {what.format(limit)}")
            new = limit + 1 - used
    return P + new
