"""Additive attention, the first published attention [Bahdanau et al. 2014].

B batch, T tokens, S visible tokens, A width of queries and keys, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anyformer.kernels.attention import Plan, attend
from anyformer.parts.base import PartModule
from anyformer.parts.mask import FULL, Full, Mask
from anyformer.parts.op import Op
from anyformer.runtime.context import Context
from anyformer.runtime.stores import PerMemory, PerToken
from anyformer.runtime.taps import MIXER, TapNames
from anyformer.specs.field_types import Chance, Count
from anyformer.specs.part import Sees, Site


class AdditiveAttention(Op, sees="past", called=("Bahdanau", "concat attention")):
    """Attention whose scores are w tanh(q + k) and whose values are the states themselves. It computes A numbers per
    pair of tokens (T, S), so it is meant for short texts."""

    width: Count | None = None  # A; default: D
    mask: Mask = FULL
    dropout: Chance = 0.0  # on the attention weights
    memory: bool = False  # cross-attention to the memory, as first published
    memory_width: Count | None = None  # default: the model's width

    def check(self) -> None:
        if self.memory and not isinstance(self.mask, Full):
            raise ValueError("AdditiveAttention(memory=True) is cross-attention: it takes no mask")
        if self.memory_width is not None and not self.memory:
            raise ValueError("AdditiveAttention.memory_width is only for cross-attention; set memory=True too")

    def reaches(self) -> Sees | None:
        return "itself" if self.memory else super().reaches()

    @property
    def reads_memory(self) -> bool:
        return self.memory


class AdditiveAttentionModule(PartModule, of=AdditiveAttention):
    def __init__(self, part: AdditiveAttention, site: Site) -> None:
        super().__init__()
        self.part, self.address, self.mask_key = part, site.address, repr(part.mask)
        self.width, self.source = part.width or site.width, part.memory_width or site.width
        self.q, self.k = nn.Linear(site.width, self.width), nn.Linear(self.source, self.width, bias=False)
        self.score = nn.Linear(self.width, 1, bias=False)
        self.o = nn.Linear(self.source, site.width)
        weights = "cross_attentions" if part.memory else MIXER["weights"]
        self.tapped: TapNames = {"q": None, "k": None, "weights": weights, "mixed": None}

    def state_spec(self) -> PerToken | PerMemory:
        shapes = {"k": (self.width,), "v": (self.source,)}
        return PerMemory(shapes) if self.part.memory else PerToken(shapes)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        q = ctx.tap(self.address, "q", self.q(x))
        if self.part.memory:
            k, v = ctx.from_memory(self.address, lambda states: self.memory_keys(states, ctx))
            visible = ctx.visible_memory()
        else:
            seen, places = ctx.append_to_cache(self.address, {"k": ctx.tap(self.address, "k", self.k(x)), "v": x})
            k, v, visible = seen["k"], seen["v"], ctx.visible(self.part.mask, self.mask_key, places)
        scores = self.score(torch.tanh(q[:, :, None] + k[:, None]))[..., 0][:, None]  # (B, 1, T, S)
        v = v[:, None]
        out = attend(
            torch.zeros_like(v[:, :, :1]).expand(-1, -1, x.shape[1], -1),
            torch.zeros_like(v),
            v,
            visible,
            Plan(
                1.0,
                bias=scores,
                dropout=self.part.dropout if self.training else 0.0,
                on_weights=ctx.weights(self.address),
                kernel=ctx.kernel,
            ),
        )
        return self.o(ctx.tap(self.address, "mixed", out[:, 0]))

    def memory_keys(self, states: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """Return keys (B, M, A) and values (B, M, D) of the memory."""
        return ctx.tap(self.address, "k", self.k(states)), states
