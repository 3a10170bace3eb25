"""Subwords that are learned with the rest of the model, from bytes or characters [Tay et al. 2021].

B batch, T characters, M block sizes, N subwords that leave, D width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.embedding.text import TextEmbedding, TextEmbeddingModule
from anyformer.parts.recurrent.mamba import PackedRows
from anyformer.runtime.context import Context, at_places, leading_pads
from anyformer.runtime.state import State
from anyformer.specs.checks import at_least
from anyformer.specs.part import Site


class SubwordBlocks(
    TextEmbedding, sees="all", called=("Charformer", "GBST", "gradient-based subword tokenization", "soft subwords")
):
    """Characters become subwords that are learned (GBST) [Tay et al. 2021]. They are read as by a TextEmbedding and
    convolved; blocks of 1, 2, ... `blocks` of them, side by side, are each the mean of what is in it. At every
    character a softmax of one learned score a block mixes the blocks that it is in, and each `downsample` characters
    leave as their mean."""

    blocks: int = 4  # M, the largest block
    kernel: int = 5  # of the convolution before the blocks; 0: none
    calibrate: bool = False  # characters that choose alike agree: softmax(P P^T) P in the place of the choices P
    downsample: int = 2  # characters to one vector

    def check(self) -> None:
        super().check()
        at_least(self, 1, "blocks", "downsample")
        at_least(self, 0, "kernel")
        if self.kernel and self.kernel % 2 == 0:
            raise ValueError(f"SubwordBlocks.kernel is {self.kernel}; it is centred on a character, so odd")

    @property
    def gives(self) -> tuple[str, ...]:
        return ()  # what leaves are no longer the tokens that were read

    def vectors(self, length: Any) -> Any:  # a number, or a tensor of them
        return -(-length // self.downsample)

    @property
    def causal_alternative(self) -> str:
        return f"TextEmbedding(tokens={self.tokens!r})"

    def build(self, site: Site) -> nn.Module:
        return SubwordBlocksModule(self, site)


class SubwordBlocksModule(TextEmbeddingModule):
    part: SubwordBlocks

    def __init__(self, part: SubwordBlocks, site: Site) -> None:
        super().__init__(part, site)
        D, size = site.width, part.kernel
        self.convolve = nn.Conv1d(D, D, size, padding=size // 2) if size else None
        self.score = nn.Linear(D, 1, bias=False)

    def state_spec(self) -> None:
        return None

    def forward(self, inputs: dict[str, Any], state: State | None = None) -> tuple[Tensor, Context]:
        if inputs.get("document_ids") is not None:
            raise ValueError("SubwordBlocks: blocks would join packed documents; give one text a row")
        x, ctx = super().forward(inputs, state)
        rows = PackedRows.from_context(ctx)  # real characters first, so that blocks begin with the text
        x = rows.pack(x)
        real = x.new_ones(1, x.shape[1], 1) if rows.real is None else rows.real.to(x.dtype)
        if self.convolve is not None:
            x = self.convolve((x * real).transpose(1, 2)).transpose(1, 2)
        means = [block_means(x, real, size) for size in range(1, self.part.blocks + 1)]
        sizes = enumerate(means, 1)
        spread = torch.stack([m.repeat_interleave(b, 1)[:, : x.shape[1]] for b, m in sizes], dim=2)  # (B, T, M, D)
        x = torch.matmul(self.choices(spread, real)[..., None, :], spread)[:, :, 0]
        x = block_means(x, real, self.part.downsample)  # (B, N, D)
        index = torch.arange(x.shape[1], device=x.device)
        if ctx.is_token is None:
            return x, Context(index=index, positions=index[None])
        # pads stay on the side where they were
        last = self.part.vectors(ctx.is_token.sum(-1, keepdim=True))  # (B, 1)
        first = torch.minimum(self.part.vectors(leading_pads(ctx.is_token)), x.shape[1] - last)
        places = index - first
        padding = (places >= 0) & (places < last)
        return at_places(x, places.clamp(min=0)), Context(index=index, positions=places.clamp(min=0), is_token=padding)

    def choices(self, spread: Tensor, real: Tensor) -> Tensor:
        """(B, T, M): the weight of each block size at each character."""
        chosen = self.score(spread)[..., 0].to(torch.promote_types(spread.dtype, torch.float32)).softmax(-1)
        if self.part.calibrate:
            alike = torch.matmul(chosen, chosen.transpose(1, 2))  # (B, T, T)
            alike = alike.masked_fill(real.transpose(1, 2) == 0, torch.finfo(alike.dtype).min)
            chosen = torch.matmul(alike.softmax(-1), chosen)
        return chosen.to(spread.dtype)


def block_means(x: Tensor, real: Tensor, size: int) -> Tensor:
    """(B, T, D) -> (B, T / size rounded up, D): the mean of the real characters of each block; 0 where there are
    none."""
    sums, counts = (
        F.pad(each, (0, 0, 0, -each.shape[1] % size)).unflatten(1, (-1, size)).sum(2) for each in (x * real, real)
    )
    return sums / counts.clamp(min=1)
