"""A few tokens that are computed from all tokens, and read back by all tokens [Ryoo et al. 2021].

B batch, T tokens, S learned tokens, D width.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.attention.attention import Attention
from anyformer.parts.attention.set_transformer import NO_DECODING, NO_PACKING
from anyformer.parts.base import PartModule
from anyformer.parts.op import Op
from anyformer.runtime.context import Context
from anyformer.runtime.taps import TapNames
from anyformer.specs.field_types import Count
from anyformer.specs.part import Site


class TokenLearner(Op, sees="all", called=("token learner and fuser", "TokenFuser")):
    """Computes `tokens` weighted sums of all tokens, with a softmax over the scores of a small MLP. The `mixer` runs
    only on these sums, and each token reads them back through its own sigmoid gates (the TokenFuser) [Ryoo et al. 2021,
    with the MLP of their later version]."""

    packs: ClassVar[bool] = False
    causal_alternative: ClassVar[str] = "LinearAttention(num_heads=..., mask=Causal())"

    tokens: Count = 8  # number of sums
    width: Count | None = None  # width of the MLP; default: half of the model's width
    mixer: Attention | None = None

    def check(self) -> None:
        if self.mixer is not None and (self.mixer.memory or self.mixer.position is not None):
            raise ValueError("TokenLearner.mixer takes no position and no memory; set position=None and memory=False")


class TokenLearnerModule(PartModule, of=TokenLearner):
    tapped: ClassVar[TapNames] = {"weights": None, "tokens": None, "gates": None}

    def __init__(self, part: TokenLearner, site: Site) -> None:
        super().__init__()
        self.address, D, S = site.address, site.width, part.tokens
        W = part.width or max(D // 2, 1)
        self.up, self.down = nn.Linear(D, W), nn.Linear(W, S)
        self.mixer = part.mixer.build(site.child("mixer")) if part.mixer else None
        self.fuse, self.gate = nn.Linear(S, S, bias=False), nn.Linear(D, S)

    def state_spec(self) -> None:
        return None

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if ctx.state is not None or ctx.documents is not None:
            raise ValueError(f"{self.address}: {NO_PACKING if ctx.state is None else NO_DECODING}")
        scores = self.down(F.gelu(self.up(x))).to(torch.promote_types(x.dtype, torch.float32))  # (B, T, S)
        if ctx.tokens is not None:
            scores = scores.masked_fill(~ctx.tokens[..., None], torch.finfo(scores.dtype).min)
        weights = ctx.tap(self.address, "weights", scores.softmax(1).to(x.dtype).transpose(1, 2))  # (B, S, T)
        learned = torch.matmul(weights, x)
        if self.mixer is not None:
            index = torch.arange(learned.shape[1], device=x.device)
            cleared: dict[str, Any] = {"is_token": None, "bias": None, "extras": (), "shared": {}}
            learned = self.mixer(learned, ctx.replace(index=index, positions=index[None], **cleared))
        learned = ctx.tap(self.address, "tokens", learned)  # (B, S, D)
        gates = ctx.tap(self.address, "gates", self.gate(x).sigmoid())  # (B, T, S)
        return torch.matmul(gates, self.fuse(learned.transpose(1, 2)).transpose(1, 2))
