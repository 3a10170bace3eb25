"""Attention to one's own block of a text and to a block that was sorted to its side [Tay et al. 2020].

B batch, T tokens, H heads, K head width, D width, b tokens of a block, n blocks, N blocks of the longest text.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.attention import EVERYTHING, attend
from anyformer.parts.attention.linear import Projections, ProjectionsModule
from anyformer.parts.recurrent.mamba import PackedRows
from anyformer.runtime.context import Context
from anyformer.runtime.taps import MIXER, TapNames
from anyformer.specs.checks import at_least, chance, positive
from anyformer.specs.part import Site


class SinkhornAttention(Projections, sees="all", called=("sorted blocks",)):
    """Each head says of every block, by the sum of its tokens, which blocks belong to its side. That is made nearly a
    permutation by `rounds` in which columns and then rows are divided by their sums, and mixes the blocks of keys and
    values, token by token; a query sees its own block and the mixed one in one softmax. Blocks of a shorter text use
    the first columns, and what it lacks of its last block adds nothing. A single block is plain attention."""

    length: int  # of the longest text
    block: int = 64  # b, tokens of one
    rounds: int = 5
    temperature: float = 0.75  # of the exponential; in training the scores have Gumbel noise
    dropout: float = 0.0  # on the attention weights

    def check(self) -> None:
        super().check()
        at_least(self, 1, "length", "block", "rounds")
        positive(self, "temperature")
        chance(self, "dropout")

    @property
    def causal_alternative(self) -> str:
        return f"BlockAttention(num_heads={self.num_heads}, size={self.block})"

    def build(self, site: Site) -> nn.Module:
        return SinkhornModule(self, site)


class SinkhornModule(ProjectionsModule):
    tapped: ClassVar[TapNames] = {**MIXER, "order": None}

    def __init__(self, part: SinkhornAttention, site: Site) -> None:
        super().__init__(part, site)
        self.part, self.scale = part, self.head_width**-0.5
        self.inner = nn.Linear(site.width, site.width)
        self.order = nn.Linear(site.width, part.num_heads * -(-part.length // part.block))

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        (B, T, D), part, b = x.shape, self.part, self.part.block
        if ctx.state is not None:
            raise ValueError(f"{self.address}: blocks of a whole text are sorted: it cannot be decoded step by step")
        if ctx.documents is not None:
            raise ValueError(f"{self.address}: the blocks of a row are sorted, which holds one text: nothing is packed")
        if part.length < T:
            raise ValueError(f"{self.address} reads texts of at most {part.length} tokens, got {T}")
        rows, n = PackedRows.from_context(ctx), -(-T // b)

        def blocks(t: Tensor) -> Tensor:  # (B, n, b, .), real tokens first
            return F.pad(rows.pack(t), (0, 0, 0, n * b - T)).unflatten(1, (n, b))

        def heads(t: Tensor) -> Tensor:  # (B, H, n, b, K)
            return t.unflatten(-1, (-1, self.head_width)).permute(0, 3, 1, 2, 4)

        one = x.new_ones(B, T, 1) if ctx.tokens is None else ctx.tokens[..., None].to(x.dtype)
        real = blocks(one)
        order = self.sort_matrix((blocks(x) * real).sum(2), real[:, :, 0, 0] > 0)
        order = ctx.tap(self.address, "order", order.to(x.dtype))
        q, k, v = self.projections(x, ctx)
        own_q, own_k, own_v = heads(blocks(q)), heads(blocks(k) * real), heads(blocks(v) * real)
        keys, values = (torch.cat((torch.matmul(order, t.flatten(3)).view_as(t), t), 3) for t in (own_k, own_v))
        # tokens of the mixed block are there where the first block has one
        seen = torch.cat((real[:, :1].expand(-1, n, -1, -1), real), 2)[:, :, None, None, :, 0] > 0  # (B, n, 1, 1, 2 b)
        out, dropout, listen = None, part.dropout if self.training else 0.0, ctx.watch(self.address)
        if ctx.kernel != "eager":
            bias = q.new_zeros(()).masked_fill(~seen, float("-inf")).expand(-1, -1, -1, b, -1).flatten(0, 1)
            each = [t.transpose(1, 2).flatten(0, 1) for t in (own_q, keys, values)]  # a block is a row
            out = attend(
                each[0], each[1], each[2], EVERYTHING, bias=bias, scale=self.scale, kernel=ctx.kernel, dropout=dropout
            )
            out = rows.unpack(out.transpose(1, 2).reshape(B, n * b, D)[:, :T])
        if out is None or listen is not None:
            weights = self.weights(own_q, keys, seen, order, rows, T)
            weights = weights if listen is None else listen(weights)
            if out is None or (listen is not None and listen.changed):
                mixed = torch.matmul(F.dropout(weights, dropout), self.heads(v * one))
                out = mixed.transpose(1, 2).flatten(2)
        return self.o(ctx.tap(self.address, "mixed", out))

    def sort_matrix(self, sums: Tensor, there: Tensor) -> Tensor:
        """(B, H, n, n) how much of each block comes to the side of each, by the sums of their tokens (B, n, D), of
        those that are `there` (B, n); rows add up to 1, columns nearly."""
        n, wide = sums.shape[1], torch.promote_types(sums.dtype, torch.float32)
        scores = self.order(F.relu(self.inner(sums))).unflatten(-1, (self.part.num_heads, -1))[..., :n]
        scores = scores.transpose(1, 2).to(wide)
        if self.training:
            scores = scores - torch.empty_like(scores).exponential_().log()  # Gumbel's distribution
        pair = there[:, :, None] & there[:, None] | torch.eye(n, dtype=torch.bool, device=sums.device)
        scores = (scores / self.part.temperature).masked_fill(~pair[:, None], float("-inf"))
        for _ in range(self.part.rounds):
            scores = scores - scores.logsumexp(-2, keepdim=True)
            scores = scores - scores.logsumexp(-1, keepdim=True)
        return scores.exp()

    def weights(self, q: Tensor, keys: Tensor, seen: Tensor, order: Tensor, rows: PackedRows, length: int) -> Tensor:
        """(B, H, T, T) of all tokens: those of a mixed block go to where they came from."""
        b, wide = self.part.block, torch.promote_types(q.dtype, torch.float32)
        scores = torch.matmul(q.to(wide), keys.to(wide).transpose(-1, -2)) * self.scale
        found = scores.masked_fill(~seen.transpose(1, 2), float("-inf")).softmax(-1).to(q.dtype)
        whole = torch.einsum("bhiqs,bhij->bhiqjs", found[..., :b], order)
        one = torch.eye(order.shape[-1], dtype=found.dtype, device=found.device)
        whole = whole + torch.einsum("bhiqs,ij->bhiqjs", found[..., b:], one)
        whole = whole.flatten(4).flatten(2, 3)[..., :length, :length]
        if rows.back is None:
            return whole
        back = rows.back[:, None, :, None].expand_as(whole)
        return whole.gather(2, back).gather(3, back.transpose(2, 3))
