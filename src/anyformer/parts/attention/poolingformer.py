"""Two levels of attention: to a window, then to pooled keys of a larger window [Zhang et al. 2021].

B batch, T tokens, M pooled keys, H heads, K head width, D width.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.attention import EVERYTHING, Plan, attend
from anyformer.parts.attention.linear import Projections, ProjectionsModule
from anyformer.parts.attention.set_transformer import NO_DECODING, NO_PACKING
from anyformer.parts.recurrent.mamba import PackedRows
from anyformer.runtime.context import Context
from anyformer.runtime.taps import MIXER, TapNames
from anyformer.specs.field_types import Chance, Count
from anyformer.specs.part import Site


class PoolingAttention(Projections, sees="all", called=("Poolingformer", "two-level pooling attention")):
    """y attends to the tokens less than `window` away. z is computed from y and attends to means of `kernel` tokens,
    one every `stride` tokens, that overlap the tokens less than `far` away. The result is o(y + z) [Zhang et al. 2021,
    pooling by the mean]. All pairs are computed and masked; the paper's kernel skips masked pairs."""

    packs: ClassVar[bool] = False

    window: Count
    far: Count
    kernel: Count = 5
    stride: Count = 4
    dropout: Chance = 0.0  # on the weights of both levels

    def check(self) -> None:
        super().check()
        if self.stride > self.kernel:
            raise ValueError(f"PoolingAttention.stride is {self.stride}; it must be at most kernel, {self.kernel}")

    @property
    def causal_alternative(self) -> str:
        return f"CompressedAttention(num_heads={self.num_heads})"


class PoolingAttentionModule(ProjectionsModule, of=PoolingAttention):
    tapped: ClassVar[TapNames] = {**MIXER, "far_weights": None}

    def __init__(self, part: PoolingAttention, site: Site) -> None:
        super().__init__(part, site)
        self.part, D = part, site.width
        self.far_q, self.far_k, self.far_v = (nn.Linear(D, D, bias=name in part.bias) for name in "qkv")

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if ctx.state is not None or ctx.documents is not None:
            raise ValueError(f"{self.address}: {NO_PACKING if ctx.state is None else NO_DECODING}")
        part, rows = self.part, PackedRows.from_context(ctx)  # real tokens first, so that a text begins at 0
        x = rows.pack(x)
        real = x.new_ones(1, x.shape[1], 1) if rows.real is None else rows.real.to(x.dtype)
        q, k, v = self.projections(x, ctx)
        at = torch.arange(x.shape[1], device=x.device)
        near = ((at[:, None] - at).abs() < part.window) & (real[..., 0] > 0)[:, None]  # (1 or B, T, T)
        y = self.level(q, k, v, near, "weights", ctx)
        (k, v), count = (self.pool(t * real) for t in (self.far_k(y), self.far_v(y))), self.pool(real)
        first = torch.arange(count.shape[1], device=x.device) * part.stride
        seen = (first < at[:, None] + part.far) & (first + part.kernel > at[:, None] - part.far + 1)
        k, v = (t / count.clamp(min=1 / part.kernel) for t in (k, v))  # means of real tokens only
        z = self.level(self.far_q(y), k, v, seen & (count[..., 0] > 0)[:, None], "far_weights", ctx)
        return rows.unpack(self.o(ctx.tap(self.address, "mixed", y + z)))

    def pool(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, M, C) means of each `kernel` tokens; zeros follow the last token."""
        part, T = self.part, x.shape[1]
        M = -(-T // part.stride)
        x = F.pad(x, (0, 0, 0, (M - 1) * part.stride + part.kernel - T)) if M else x
        return x.unfold(1, part.kernel, part.stride)[:, :M].mean(-1)

    def level(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor, name: str, ctx: Context) -> Tensor:
        """Queries (B, T, H K), keys and values (B, S, H K), which of them are visible (1 or B, T, S) -> (B, T, H K)."""
        hidden = torch.zeros(seen.shape, dtype=q.dtype, device=q.device)
        hidden = hidden.masked_fill(~seen, torch.finfo(q.dtype).min)[:, None].expand(-1, self.part.num_heads, -1, -1)
        listen = ctx.wants(self.address, name)
        out = attend(
            self.heads(q),
            self.heads(k),
            self.heads(v),
            EVERYTHING,
            Plan(
                self.head_width**-0.5,
                bias=hidden,
                dropout=self.part.dropout if self.training else 0.0,
                on_weights=(lambda weights: ctx.tap(self.address, name, weights)) if listen else None,
                kernel=ctx.kernel,
            ),
        )
        return out.transpose(1, 2).flatten(2)
