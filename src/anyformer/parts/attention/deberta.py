"""DeBERTa's attention [He et al. 2021]; its position scores are in `parts/position/disentangled.py`.

B batch, T tokens, S keys, H heads, G key/value heads, K head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from anyformer.parts.attention.attention import Attention, AttentionModule
from anyformer.parts.mask import Causal, Full
from anyformer.runtime.context import Context


class DebertaAttention(Attention, sees="all"):
    """Attention that gives pads the mean of all values of their row, as published."""

    def check(self) -> None:
        super().check()
        if self.memory or not isinstance(self.mask, Full):
            raise ValueError("DebertaAttention: pads see all values of their row; use mask=Full() and memory=False")

    @property
    def causal_alternative(self) -> str:
        return repr(Attention(**{**dict(self.items()), "mask": Causal()}))


class DebertaAttentionModule(AttentionModule, of=DebertaAttention):
    def finish(self, out: Tensor, v: Tensor, ctx: Context) -> Tensor:
        if ctx.tokens is None:
            return out
        mean = v.mean(2, keepdim=True).repeat_interleave(out.shape[1] // v.shape[1], dim=1)
        if self.mix_heads is not None:
            mean = mean * self.mix_heads(torch.ones_like(mean[..., :1]), True)
        return torch.where(ctx.tokens[:, None, :, None], out, mean)
