"""Local relation layers: pixels attend to the pixels around them [Hu et al. 2019].

B batch, N pixels of the grid, H groups of channels, m channels per group, s side of a neighbourhood, S = s * s, C
channels, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.computed import Computed
from anyformer.parts.op import InHeads, Reshaping
from anyformer.runtime.context import Context
from anyformer.runtime.grid import Grid, Sides, layout
from anyformer.runtime.taps import MIXER, TapNames
from anyformer.specs.field_types import Chance, Count, Odd
from anyformer.specs.part import Site

LIKENESS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "square": lambda q, k: -((q - k) ** 2),
    "distance": lambda q, k: -(q - k).abs(),
    "product": lambda q, k: q * k,
}


class LocalRelation(Reshaping, sees="all", called=("LR-Net", "pixel attention", "neighbourhood attention")):
    """Each pixel attends to the `size` x `size` pixels around it (none beyond the edge). In each group of channels, the
    score is the likeness of one query number and one key number, plus a small MLP of the offset; the values are the
    channels themselves [Hu et al. 2019]. Time and memory are linear in the number of pixels."""

    requires: ClassVar[tuple[str, ...]] = ("a grid",)
    reads_grid: ClassVar[bool] = True
    causal_alternative: ClassVar[str] = "Attention(num_heads=..., mask=Causal() & Window(size=...))"

    num_heads: Count  # groups of channels
    size: Odd = 7  # side of the neighbourhood
    step: Count = 1  # only every `step`-th row and column of queries is computed (a coarser grid)
    likeness: Literal["square", "distance", "product"] = "square"  # -(q - k)^2, -|q - k| or q k
    prior: Count | None = 16  # inner width of the MLP of offsets; None: no MLP
    dropout: Chance = 0.0  # on the attention weights

    @property
    def stride(self) -> Sides:
        return () if self.step == 1 else (self.step, self.step)


class LocalRelationModule(InHeads, of=LocalRelation):
    tapped: ClassVar[TapNames] = MIXER

    def __init__(self, part: LocalRelation, site: Site) -> None:
        super().__init__(site, part.num_heads)
        self.part, D, H = part, site.width, part.num_heads
        self.q, self.k, self.o = nn.Linear(D, H), nn.Linear(D, H), nn.Linear(D, part.out_width(D))
        self.up = nn.Linear(2, part.prior) if part.prior else None
        self.down = nn.Linear(part.prior, H) if part.prior else None
        self.offsets = Computed(lambda: offsets(part.size))

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if ctx.is_token is not None:
            raise ValueError("LocalRelation needs the whole grid: give no attention_mask")
        grid, side, step = layout(ctx), self.part.size, self.part.step
        assert isinstance(grid, Grid)
        queries = x if step == 1 else x.unflatten(1, grid)[:, ::step, ::step].flatten(1, 2)
        q, k, v = (ctx.tap(self.address, name, t) for name, t in (("q", self.q(queries)), ("k", self.k(x)), ("v", x)))
        dtype = torch.promote_types(x.dtype, torch.float32)
        scores = LIKENESS[self.part.likeness](
            q.to(dtype)[..., None], neighbourhoods(k.to(dtype), grid, side, step)
        )  # (B, N, H, S)
        if self.up is not None and self.down is not None:
            scores = scores + self.down(F.relu(self.up(self.offsets().to(x.dtype)))).t()
        ones = torch.ones_like(k[:1, :, :1])
        inside = ctx.once(f"neighbours {side} {step}", lambda: neighbourhoods(ones, grid, side, step) > 0)
        weights = scores.masked_fill(~inside, float("-inf")).softmax(-1).to(x.dtype).transpose(1, 2)  # (B, H, N, S)
        weights = ctx.tap(self.address, "weights", weights)
        if self.training and self.part.dropout:
            weights = F.dropout(weights, self.part.dropout)
        near = neighbourhoods(v, grid, side, step).unflatten(2, (-1, self.head_width))  # (B, N, H, m, S)
        mixed = torch.einsum("bhns,bnhms->bnhm", weights, near).flatten(2)
        return self.o(ctx.tap(self.address, "mixed", mixed))


def neighbourhoods(x: Tensor, grid: Grid, side: int, step: int = 1) -> Tensor:
    """Return the S pixels around each pixel of x (B, N, C), or every `step`-th: (B, N, C, S); zeros beyond the edge."""
    margin = side // 2
    image = F.pad(x.unflatten(1, grid), (0, 0, margin, margin, margin, margin))
    return image.unfold(1, side, step).unfold(2, side, step).flatten(-2).flatten(1, 2)


def offsets(side: int) -> Tensor:
    """Return the row and column offset of each neighbour, (S, 2), from -1 to 1."""
    line = torch.arange(side, dtype=torch.float32) - side // 2
    return torch.cartesian_prod(line, line).view(-1, 2) / max(side // 2, 1)
