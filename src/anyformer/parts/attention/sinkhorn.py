"""Attention to a token's own block and to the block that a learned sorting assigns to it [Tay et al. 2020].

B batch, T tokens, H heads, K head width, D width, b tokens per block, n blocks, N blocks of the longest text.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.attention import EVERYTHING, Plan, attend
from anyformer.parts.attention.linear import Projections, ProjectionsModule
from anyformer.parts.recurrent.mamba import PackedRows
from anyformer.runtime.context import Context
from anyformer.runtime.taps import MIXER, TapNames
from anyformer.specs.field_types import Chance, Count, Positive
from anyformer.specs.part import Site


class SinkhornAttention(Projections, sees="all", called=("sorted blocks",)):
    """From the sum of a block's tokens, each head scores the blocks to assign to it. `rounds` of dividing columns and
    then rows by their sums make this nearly a permutation, which mixes the blocks of keys and values, token by
    token. A query attends to its own block and to the mixed block in one softmax. A shorter text uses the first
    columns, and missing tokens of its last block count as 0. With a single block this is plain attention."""

    length: Count  # maximum length of a text
    block: Count = 64  # b, tokens per block
    rounds: Count = 5  # of Sinkhorn normalisation
    temperature: Positive = 0.75  # divides the sorting scores, which have Gumbel noise in training
    dropout: Chance = 0.0  # on the attention weights

    @property
    def causal_alternative(self) -> str:
        return f"BlockAttention(num_heads={self.num_heads}, size={self.block})"


class SinkhornModule(ProjectionsModule, of=SinkhornAttention):
    tapped: ClassVar[TapNames] = {**MIXER, "order": None}

    def __init__(self, part: SinkhornAttention, site: Site) -> None:
        super().__init__(part, site)
        self.part, self.scale = part, self.head_width**-0.5
        self.inner = nn.Linear(site.width, site.width)
        self.order = nn.Linear(site.width, part.num_heads * -(-part.length // part.block))

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        (B, T, D), part, b = x.shape, self.part, self.part.block
        if ctx.state is not None:
            raise ValueError(f"{self.address}: blocks of the whole text are sorted, so it cannot decode step by step")
        if ctx.documents is not None:
            raise ValueError(f"{self.address}: documents cannot be packed, because the blocks of a row are sorted")
        if part.length < T:
            raise ValueError(f"{self.address} reads texts of at most {part.length} tokens, got {T}")
        rows, n = PackedRows.from_context(ctx), -(-T // b)

        def blocks(t: Tensor) -> Tensor:  # (B, n, b, .), real tokens first
            return F.pad(rows.pack(t), (0, 0, 0, n * b - T)).unflatten(1, (n, b))

        def heads(t: Tensor) -> Tensor:  # (B, H, n, b, K)
            return t.unflatten(-1, (-1, self.head_width)).permute(0, 3, 1, 2, 4)

        is_real = x.new_ones(B, T, 1) if ctx.tokens is None else ctx.tokens[..., None].to(x.dtype)
        real = blocks(is_real)
        order = self.sort_matrix((blocks(x) * real).sum(2), real[:, :, 0, 0] > 0)
        order = ctx.tap(self.address, "order", order.to(x.dtype))
        q, k, v = self.projections(x, ctx)
        own_q, own_k, own_v = heads(blocks(q)), heads(blocks(k) * real), heads(blocks(v) * real)
        keys, values = (torch.cat((torch.matmul(order, t.flatten(3)).view_as(t), t), 3) for t in (own_k, own_v))
        # token i of a mixed block exists if token i of the first block does
        seen = torch.cat((real[:, :1].expand(-1, n, -1, -1), real), 2)[:, :, None, None, :, 0] > 0  # (B, n, 1, 1, 2 b)
        out, dropout, listen = None, part.dropout if self.training else 0.0, ctx.watch(self.address)
        if ctx.kernel != "eager":
            bias = q.new_zeros(()).masked_fill(~seen, float("-inf")).expand(-1, -1, -1, b, -1).flatten(0, 1)
            each = [t.transpose(1, 2).flatten(0, 1) for t in (own_q, keys, values)]  # each block becomes a row
            out = attend(
                each[0], each[1], each[2], EVERYTHING, Plan(self.scale, bias=bias, dropout=dropout, kernel=ctx.kernel)
            )
            out = rows.unpack(out.transpose(1, 2).reshape(B, n * b, D)[:, :T])
        if out is None or listen is not None:
            weights = self.weights(own_q, keys, seen, order, rows, T)
            weights = weights if listen is None else listen(weights)
            if out is None or (listen is not None and listen.changed):
                mixed = torch.matmul(F.dropout(weights, dropout), self.heads(v * is_real))
                out = mixed.transpose(1, 2).flatten(2)
        return self.o(ctx.tap(self.address, "mixed", out))

    def sort_matrix(self, sums: Tensor, there: Tensor) -> Tensor:
        """(B, H, n, n) the share of each block in each mixed block, from the sums of their tokens (B, n, D). `there`
        (B, n) is True for blocks that have tokens. Rows add up to 1, columns nearly."""
        n, dtype = sums.shape[1], torch.promote_types(sums.dtype, torch.float32)
        scores = self.order(F.relu(self.inner(sums))).unflatten(-1, (self.part.num_heads, -1))[..., :n]
        scores = scores.transpose(1, 2).to(dtype)
        if self.training:
            scores = scores - torch.empty_like(scores).exponential_().log()  # Gumbel noise
        pair = there[:, :, None] & there[:, None] | torch.eye(n, dtype=torch.bool, device=sums.device)
        scores = (scores / self.part.temperature).masked_fill(~pair[:, None], float("-inf"))
        for _ in range(self.part.rounds):
            scores = scores - scores.logsumexp(-2, keepdim=True)
            scores = scores - scores.logsumexp(-1, keepdim=True)
        return scores.exp()

    def weights(self, q: Tensor, keys: Tensor, seen: Tensor, order: Tensor, rows: PackedRows, length: int) -> Tensor:
        """(B, H, T, T) weights of all tokens; weights of a mixed block are assigned to the tokens that it mixes."""
        b, dtype = self.part.block, torch.promote_types(q.dtype, torch.float32)
        scores = torch.matmul(q.to(dtype), keys.to(dtype).transpose(-1, -2)) * self.scale
        weights = scores.masked_fill(~seen.transpose(1, 2), float("-inf")).softmax(-1).to(q.dtype)
        dense = torch.einsum("bhiqs,bhij->bhiqjs", weights[..., :b], order)
        identity = torch.eye(order.shape[-1], dtype=weights.dtype, device=weights.device)
        dense = dense + torch.einsum("bhiqs,ij->bhiqjs", weights[..., b:], identity)
        dense = dense.flatten(4).flatten(2, 3)[..., :length, :length]
        if rows.back is None:
            return dense
        back = rows.back[:, None, :, None].expand_as(dense)
        return dense.gather(2, back).gather(3, back.transpose(2, 3))
