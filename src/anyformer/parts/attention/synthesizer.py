"""Synthesizers [Tay et al. 2020]: attention scores that are learned, or computed from one token, instead of products of
queries and keys or in addition to them.

B batch, T tokens, S visible tokens, H heads, K head width, D width, L maximum length of a text.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.attention import attend
from anyformer.kernels.capture import can_read_values
from anyformer.parts.init import Normal
from anyformer.parts.mask import FULL, Mask
from anyformer.parts.op import InHeads, Op
from anyformer.runtime.context import Context
from anyformer.runtime.stores import PerToken
from anyformer.runtime.taps import MIXER, TapNames
from anyformer.specs.field_types import QKVO, Chance, Count
from anyformer.specs.part import Site


class Synthesizer(Op, sees="past", called=("dense synthesizer", "random synthesizer (scores='random')")):
    """Attention that scores a token and a position in the text: by two layers from the token ("dense"), by a learned
    number per pair of positions ("random"), or by the product of two learned vectors of `rank` numbers, one per
    position ("factorized"). Products of queries and keys are added to the scores ("plus") or mixed with them by a
    learned share ("alpha"). A text has at most `length` tokens."""

    num_heads: Count
    length: Count
    head_width: Count | None = None  # default: width / num_heads
    scores: Literal["dense", "random", "factorized"] = "dense"
    products: Literal["none", "plus", "alpha"] = "none"
    rank: Count = 16
    bias: QKVO = "qkvo"  # projections that have a bias
    mask: Mask = FULL
    dropout: Chance = 0.0  # on the attention weights

    @property
    def bias_heads(self) -> int | None:
        return self.num_heads


class SynthesizerModule(InHeads, of=Synthesizer):
    def __init__(self, part: Synthesizer, site: Site) -> None:
        super().__init__(site, part.num_heads, part.head_width)
        self.part, self.mask_key = part, repr(part.mask)
        D, H, L, K = site.width, part.num_heads, part.length, self.head_width
        names = "v" if part.products == "none" else "qkv"
        for name in names:
            self.add_module(name, nn.Linear(D, H * K, bias=name in part.bias))
        self.o = nn.Linear(H * K, D, bias="o" in part.bias)
        self.starts: dict[str, Any] = {
            "share": 0.0,
            "places": Normal(std=K**-0.5),
            "table": Normal(std=0.02),
            "rows": Normal(std=part.rank**-0.5),
            "columns": Normal(std=part.rank**-0.5),
        }
        if part.scores == "dense":
            self.inner = nn.Linear(D, H * K, bias=bool(part.bias))
            self.places = nn.Parameter(torch.empty(H, K, L))
        elif part.scores == "random":
            self.table = nn.Parameter(torch.empty(H, L, L))
        else:
            self.rows, self.columns = (nn.Parameter(torch.empty(H, L, part.rank)) for _ in range(2))
        self.share = nn.Parameter(torch.zeros(())) if part.products == "alpha" else None  # logit of the share
        self.tapped: TapNames = {n: output for n, output in MIXER.items() if n in (*names, "weights", "mixed")}

    def state_spec(self) -> PerToken:
        names = "v" if self.part.products == "none" else "kv"
        shapes = dict.fromkeys(names, (self.part.num_heads, self.head_width))
        return PerToken({**shapes, "position": ()}, dtypes={"position": torch.int64})

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        (B, T, _), part = x.shape, self.part
        positions = ctx.positions if ctx.state is None else ctx.positions.expand(B, T)  # may be (1, T)
        self.check_length(ctx)
        names = "v" if part.products == "none" else "qkv"
        projected = {name: self.heads(ctx.tap(self.address, name, getattr(self, name)(x))) for name in names}
        q = projected.pop("q", None)
        seen, places = ctx.append_to_cache(self.address, {**projected, "position": positions})
        v, at = seen["v"], seen["position"].clamp(0, part.length - 1)
        bias = self.synthesize_scores(x, positions.clamp(max=part.length - 1), at)
        k, scale = seen.get("k", v), self.head_width**-0.5
        if q is None:
            q, scale = torch.zeros_like(v[:, :, :1]).expand(B, part.num_heads, T, self.head_width), 1.0
        elif self.share is not None:
            share = self.share.sigmoid()
            q, bias = q * (1 - share), bias * share
        if ctx.bias is not None:
            bias = bias + ctx.bias
        visible = ctx.visible(part.mask, self.mask_key, places)
        out = attend(q, k, v, visible, self.attention_plan(ctx, part.dropout, scale, bias.to(v.dtype)))
        return self.o(ctx.tap(self.address, "mixed", out.transpose(1, 2).flatten(2)))

    def check_length(self, ctx: Context) -> None:
        if can_read_values() and not ctx.positions.is_meta:
            last = ctx.once("last position", lambda: int(ctx.positions.max()))
            if last >= self.part.length:
                raise ValueError(f"{self.address} reads texts of at most {self.part.length} tokens, got {last + 1}")

    def synthesize_scores(self, x: Tensor, positions: Tensor, at: Tensor) -> Tensor:
        """(1 or B, H, T, S) scores of tokens x at `positions` (1 or B, T) with keys at positions `at` (1 or B, S)."""
        if self.part.scores == "dense":
            scores = torch.matmul(self.heads(F.relu(self.inner(x))), self.places)  # (B, H, T, L)
            return scores.gather(3, at[:, None, None].expand(*scores.shape[:3], -1))
        if self.part.scores == "random":
            return self.table[:, positions[:, :, None], at[:, None]].transpose(0, 1)
        return torch.matmul(self.rows[:, positions], self.columns[:, at].transpose(-1, -2)).transpose(0, 1)
