"""Text for block-sparse attention [Zaheer et al. 2020]: padded to whole blocks; `TextOnly` removes these pads after the
last layer.

B batch, T tokens, D width.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.kernels.capture import can_read_values
from anyformer.parts.base import PartModule
from anyformer.parts.embedding.text import TextEmbedding, TextEmbeddingModule
from anyformer.parts.layer_mix import Neck
from anyformer.runtime.context import Context
from anyformer.runtime.inputs import PUBLISHED
from anyformer.runtime.state import State
from anyformer.runtime.taps import TapNames
from anyformer.runtime.visibility import first_of_document
from anyformer.specs.field_types import Count, Natural
from anyformer.specs.part import Part, Site


@dataclasses.dataclass(frozen=True)
class BlockText:
    """How a text is processed; the embedding sets it for the layers and the neck."""

    all_pairs: bool  # use full attention
    length: int  # tokens, not counting the pads that fill up the last block


def max_full_length(block_size: int, random_blocks: int) -> int:
    """Return the maximum length with full attention: blocks of a shorter text would see most of it anyway."""
    return (5 + 2 * random_blocks) * block_size


class BlockTextEmbedding(TextEmbedding, sees="itself"):
    """Text for block-sparse layers: texts that are too long for full attention are padded to whole blocks. As
    published, a model that was called with a short text uses full attention from then on, until it is loaded again.
    Training and evaluation decide for each batch, so that their results do not depend on the order of the texts."""

    block_size: Count
    random_blocks: Natural


class BlockTextEmbeddingModule(TextEmbeddingModule, of=BlockTextEmbedding):
    part: BlockTextEmbedding
    switched = False  # to full attention, permanently

    def forward(self, inputs: dict[str, Any], state: State | None = None) -> tuple[Tensor, Context]:
        text = inputs.get("input_ids") if inputs.get("input_ids") is not None else inputs.get("inputs_embeds")
        if text is None or text.dim() < 2:
            return super().forward(inputs, state)  # raises the error
        T = text.shape[1]
        short = self.short(T)
        if short and inputs.get(PUBLISHED) and can_read_values():
            self.switched = True
        full = short or self.switched or self.all_short(inputs.get("document_ids"))
        num_pads = 0 if full else -T % self.part.block_size
        x, ctx = super().forward(self.pad_inputs(inputs, text, num_pads) if num_pads else inputs, state)
        return x, ctx.replace(BlockText(full, T))

    def short(self, length: int) -> bool:
        return length <= max_full_length(self.part.block_size, self.part.random_blocks)

    def all_short(self, documents: Tensor | None) -> bool:
        """Whether all packed documents are short; then they use full attention, each within itself."""
        if documents is None or not can_read_values():
            return False
        index = torch.arange(documents.shape[1], device=documents.device)
        longest = int((index - first_of_document(documents)).max()) + 1
        return self.short(longest)

    def pad_inputs(self, inputs: dict[str, Any], text: Tensor, num_pads: int) -> dict[str, Any]:
        """Return the inputs with `num_pads` pads at the end of each row."""
        pad, out = self.part.tokens.padding_index or 0, dict(inputs)
        for name, value in (("input_ids", pad), ("position_ids", pad), ("token_type_ids", 0)):
            if inputs.get(name) is not None:
                out[name] = F.pad(inputs[name], (0, num_pads), value=value)
        if inputs.get("inputs_embeds") is not None:  # as published: pads are embedded twice
            ids = torch.full((text.shape[0], num_pads), pad, device=text.device)
            out["inputs_embeds"] = torch.cat((text, super().forward({"input_ids": ids})[0]), dim=1)
        mask = inputs.get("attention_mask")
        mask = torch.ones(text.shape[:2], dtype=torch.bool, device=text.device) if mask is None else mask
        return {**out, "attention_mask": F.pad(mask, (0, num_pads))}


class TextOnly(Neck, sees="itself"):
    """Removes the pads that filled up the last block, then applies `rest`."""

    rest: Part | None = None


class TextOnlyModule(PartModule, of=TextOnly):
    tapped: ClassVar[TapNames] = {"text": "hidden_states"}

    def __init__(self, part: TextOnly, site: Site) -> None:
        super().__init__()
        self.address = site.address
        self.rest = part.rest.build(site.child("rest")) if part.rest else None

    def forward(self, states: list[Tensor], ctx: Context) -> tuple[Tensor, Context]:
        x = states[-1]
        text = ctx.extra(BlockText)
        T = x.shape[1] if text is None else text.length
        if x.shape[1] > T:
            is_token = None if ctx.is_token is None else ctx.is_token[:, :T]
            x, ctx = x[:, :T], ctx.replace(index=ctx.index[:T], positions=ctx.positions[:, :T], is_token=is_token)
        x = ctx.tap(self.address, "text", x)  # as published, only this state is without pads
        return (x if self.rest is None else self.rest(x)), ctx
