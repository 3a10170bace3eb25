"""The Weighted Transformer's attention: every head is a separate branch [Ahmed et al. 2017].

B batch, T tokens, H heads, K head width, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anyformer.parts.attention.attention import Attention, AttentionModule
from anyformer.parts.feedforward.base import FeedForward
from anyformer.parts.fused_linear import effective_weight
from anyformer.runtime.context import Context
from anyformer.specs.part import Site


class BranchedAttention(Attention, sees="past", called=("Weighted Transformer", "multi-branch")):
    """Each head's result is projected by its own part of `o`, weighted and passed through a feed-forward that all heads
    share; the results are weighted again and added. Both sets of weights are learned and add up to 1."""

    feedforward: FeedForward


class BranchedAttentionModule(AttentionModule, of=BranchedAttention):
    def __init__(self, part: BranchedAttention, site: Site) -> None:
        super().__init__(part, site)
        self.feedforward = part.feedforward.build(site.child("feedforward"))
        self.before, self.after = nn.Parameter(torch.zeros(part.num_heads)), nn.Parameter(torch.zeros(part.num_heads))
        self.starts = {"before": 0.0, "after": 0.0}

    def output(self, mixed: Tensor, ctx: Context) -> Tensor:
        H, o = self.part.num_heads, self.o
        weight = effective_weight(o)  # (D, H K)
        branches = torch.einsum("bthk,dhk->bthd", mixed.unflatten(-1, (H, -1)), weight.unflatten(1, (H, -1)))
        branches = branches if o.bias is None else branches + o.bias
        branches = branches * self.before.softmax(-1).to(mixed.dtype)[:, None]
        return torch.einsum("bthd,h->btd", self.feedforward(branches, ctx), self.after.softmax(-1).to(mixed.dtype))
