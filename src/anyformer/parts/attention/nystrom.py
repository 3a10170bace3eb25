"""Attention through landmarks [Xiong et al. 2021]: softmax(Q K^T) from three small matrices, in linear time.

B batch, T tokens, H heads, K head width, L landmarks, k kernel size, D width.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from anyformer.kernels.attention import Plan, Visible, attend
from anyformer.kernels.convolution import depthwise
from anyformer.parts.mask import FULL
from anyformer.parts.op import InHeads, Op
from anyformer.runtime.context import Context
from anyformer.runtime.taps import MIXER, TapNames
from anyformer.specs.field_types import Count, Odd
from anyformer.specs.part import Site


class NystromAttention(Op, sees="all", called=("Nystromformer", "landmark attention")):
    """Approximates attention through landmarks, the means of `landmarks` equal segments of a text. Pads count, so every
    text must have `length` tokens. If `landmarks` equals `length`, this is plain attention for texts of any length."""

    num_heads: Count
    length: Count
    landmarks: Count
    taps: Odd | None = None  # size of a depthwise convolution of the values that is added to the result
    rounds: Count = 6  # iterations that approximate the inverse

    def check(self) -> None:
        if self.length % self.landmarks:
            raise ValueError(f"NystromAttention.length is {self.length}; use a multiple of landmarks, {self.landmarks}")

    @property
    def causal_alternative(self) -> str:
        return f"LinearAttention(num_heads={self.num_heads}, mask=Causal())"


class NystromAttentionModule(InHeads, of=NystromAttention):
    tapped: ClassVar[TapNames] = {**MIXER, "conv": None}

    def __init__(self, part: NystromAttention, site: Site) -> None:
        super().__init__(site, part.num_heads)
        self.part = part
        self.q, self.k, self.v, self.o = (nn.Linear(site.width, site.width) for _ in "qkvo")
        H, k = part.num_heads, part.taps
        self.conv = nn.Conv1d(H, H, k, bias=False, groups=H) if k is not None else None

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if ctx.state is not None:
            raise ValueError(f"{self.address}: landmarks pool the whole text, so it cannot decode step by step")
        q, k, v = (ctx.tap(self.address, name, layer(x)) for name, layer in zip("qkv", (self.q, self.k, self.v)))
        q, k, values = self.heads(q), self.heads(k), self.heads(v)
        if self.part.landmarks == self.part.length:
            visible = ctx.visible(FULL, "full", ctx.index)
            weights = ctx.weights(self.address)
            plan = Plan(self.head_width**-0.5, on_weights=weights, kernel=ctx.kernel)
            out = attend(q, k, values, visible, plan)
        else:
            out = self.approximate(q, k, values, ctx)
        out = out.transpose(1, 2).flatten(2)
        if self.conv is not None:
            out = out + ctx.tap(self.address, "conv", self.mix(v, ctx))
        return self.o(ctx.tap(self.address, "mixed", out))

    def approximate(self, q: Tensor, k: Tensor, v: Tensor, ctx: Context) -> Tensor:
        """Return (B, H, T, K), computed with weights of the landmarks (B, H, T, L)."""
        T, L, scale = q.shape[2], self.part.landmarks, self.head_width**-0.5
        if self.part.length != T:
            raise ValueError(f"{self.address} reads texts of exactly {self.part.length} tokens, got {T}; pad them")
        if ctx.documents is not None:
            raise ValueError(f"{self.address}: documents cannot be packed, because landmarks are means over a row")
        ql, kl = (t.unflatten(2, (L, T // L)).mean(3) for t in (q, k))
        first = (torch.matmul(q, kl.transpose(-1, -2)) * scale).softmax(-1)
        between = (torch.matmul(ql, kl.transpose(-1, -2)) * scale).softmax(-1)
        real = ctx.visible(FULL, "full", ctx.index)
        if not real.everything:  # pads are hidden only as keys; each landmark sees the whole text
            row = ctx.tokens
            assert row is not None
            real = Visible(lambda b, q, k: row[b, k] & (q >= 0), ctx.index[:L], ctx.index, batch_size=row.shape[0])
        last = attend(ql, k, v, real, Plan(scale, kernel=ctx.kernel))
        weights = ctx.tap(self.address, "weights", torch.matmul(first, self.inverse(between)))
        return torch.matmul(weights, last)

    def inverse(self, matrix: Tensor) -> Tensor:
        """Approximate the Moore-Penrose inverse (B, H, L, L) [Razavi et al. 2014]. The first guess is divided by the
        largest column sum of the whole batch, as published."""
        eye = torch.eye(matrix.shape[-1], device=matrix.device, dtype=matrix.dtype)
        guess = matrix.transpose(-1, -2) / matrix.sum(-2).max()
        for _ in range(self.part.rounds):
            product = torch.matmul(matrix, guess)
            guess = torch.matmul(
                0.25 * guess, 13 * eye - torch.matmul(product, 15 * eye - torch.matmul(product, 7 * eye - product))
            )
        return guess

    def mix(self, v: Tensor, ctx: Context) -> Tensor:
        """Convolve the values (B, T, H K) over time, with one kernel per head."""
        assert self.conv is not None and self.part.taps is not None
        weight, side = self.conv.weight.repeat_interleave(self.head_width, 0), self.part.taps // 2
        return depthwise(v, weight, padding=(side, side), documents=ctx.documents)
