"""Attention whose queries and keys are normalised across all heads [OLMo 2, 2024].

B batch, T tokens, H heads, K head width.
"""

from __future__ import annotations

from torch import Tensor, nn

from anyformer.parts.attention.attention import Attention, AttentionModule
from anyformer.parts.norm import Norm, RMSNorm
from anyformer.specs.part import Site

RMS = RMSNorm()


class JointNormAttention(Attention, sees="past", called=("OLMo 2 attention", "full-width QK-norm")):
    """Attention whose `qk_norm` normalises all heads of a token together instead of each head [OLMo 2, 2024]."""

    qk_norm: Norm = RMS  # norm of the queries of all heads, and of the keys of all heads


class JointNormAttentionModule(AttentionModule, of=JointNormAttention):
    def __init__(self, part: JointNormAttention, site: Site) -> None:
        super().__init__(part, site)
        for name, width in (("q_norm", self.q.out_features), ("k_norm", self.k.out_features)):
            setattr(self, name, AcrossHeads(part.qk_norm.build(site.child(f"{name}.norm", width=width))))


class AcrossHeads(nn.Module):
    """Applies a norm of width H K to vectors that are split into heads."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, T, K) -> (B, H, T, K)"""
        joint = x.transpose(1, 2).flatten(2)  # (B, T, H K)
        return self.norm(joint).unflatten(2, (x.shape[1], -1)).transpose(1, 2)
