"""Charformer: soft subwords, learned with the model from bytes or characters [Tay et al. 2021].

B batch, T characters, M block sizes, N output vectors, D width.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.embedding.text import TextEmbedding, TextEmbeddingModule
from anyformer.parts.recurrent.mamba import PackedRows
from anyformer.runtime.context import Context, leading_pads, select_tokens
from anyformer.runtime.state import State
from anyformer.specs.field_types import Count, Natural
from anyformer.specs.part import Site


class SubwordBlocks(
    TextEmbedding, sees="all", called=("Charformer", "GBST", "gradient-based subword tokenization", "soft subwords")
):
    """Learned soft subwords of characters (GBST) [Tay et al. 2021]. Characters are embedded as in TextEmbedding and
    convolved. For each block size from 1 to `blocks`, the text is cut into blocks and each block is averaged. Every
    character then mixes the blocks that contain it, weighted by a softmax of learned scores, and every `downsample`
    characters are averaged to one output vector."""

    gives: ClassVar[tuple[str, ...]] = ()  # output vectors do not correspond to input tokens

    blocks: Count = 4  # M, the largest block size
    kernel: Natural = 5  # size of the convolution before the blocks; 0: no convolution
    calibrate: bool = False  # replace the block weights P by softmax(P P^T) P
    downsample: Count = 2  # characters per output vector

    def check(self) -> None:
        super().check()
        if self.kernel and self.kernel % 2 == 0:
            raise ValueError(f"SubwordBlocks.kernel is {self.kernel}; it must be odd (centred on a character) or 0")

    def vectors(self, length: Any) -> Any:  # an int or a tensor of lengths
        return -(-length // self.downsample)

    @property
    def causal_alternative(self) -> str:
        return f"TextEmbedding(tokens={self.tokens!r})"


class SubwordBlocksModule(TextEmbeddingModule, of=SubwordBlocks):
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
            raise ValueError("document_ids: SubwordBlocks would mix packed documents; give one text per row")
        x, ctx = super().forward(inputs, state)
        rows = PackedRows.from_context(ctx)  # real characters first: the first block starts with the text
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
        # keep padding on the same side
        last = self.part.vectors(ctx.is_token.sum(-1, keepdim=True))  # (B, 1)
        first = torch.minimum(self.part.vectors(leading_pads(ctx.is_token)), x.shape[1] - last)
        shifted = index - first
        is_token = (shifted >= 0) & (shifted < last)
        positions = shifted.clamp(min=0)
        return select_tokens(x, positions), Context(index=index, positions=positions, is_token=is_token)

    def choices(self, spread: Tensor, real: Tensor) -> Tensor:
        """Return the weight of each block size at each character, (B, T, M)."""
        weights = self.score(spread)[..., 0].to(torch.promote_types(spread.dtype, torch.float32)).softmax(-1)
        if self.part.calibrate:
            similarity = torch.matmul(weights, weights.transpose(1, 2))  # (B, T, T)
            similarity = similarity.masked_fill(real.transpose(1, 2) == 0, torch.finfo(similarity.dtype).min)
            weights = torch.matmul(similarity.softmax(-1), weights)
        return weights.to(spread.dtype)


def block_means(x: Tensor, real: Tensor, size: int) -> Tensor:
    """Average the real characters of each block, (B, T, D) -> (B, ceil(T / size), D); 0 for blocks of only padding."""
    sums, counts = (
        F.pad(each, (0, 0, 0, -each.shape[1] % size)).unflatten(1, (-1, size)).sum(2) for each in (x * real, real)
    )
    return sums / counts.clamp(min=1)
