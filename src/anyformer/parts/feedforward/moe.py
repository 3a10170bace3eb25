"""Mixtures of experts: many feed-forward layers; each token uses a few, chosen by a router.

N tokens of a batch, D width, F inner width, E experts, k experts per token, M = N k.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels import few_experts, few_rows
from anyformer.kernels.few_rows import NormWeights
from anyformer.kernels.grouped import cast, grouped_linear, takes_rest
from anyformer.parts.base import PartModule
from anyformer.parts.computed import places
from anyformer.parts.decode_step import NAMES, DecodeStep, decode_step
from anyformer.parts.feedforward.base import FeedForward
from anyformer.parts.feedforward.mlp import activation_of
from anyformer.parts.feedforward.routers import Router, Routing, TopKModule, jitter
from anyformer.parts.op import Op
from anyformer.parts.unused import PartlyUsed
from anyformer.runtime.context import Context
from anyformer.specs.field_types import Count, NonNegative
from anyformer.specs.part import Site


class MoE(Op, sees="itself", called=("mixture of experts", "sparse experts", "DeepSeekMoE (shared=...)")):
    """Each token uses a few of `num_experts` layers like `expert`, plus `shared` if it is set [Dai et al. 2024]."""

    routes: ClassVar[bool] = True

    num_experts: Count
    router: Router
    expert: FeedForward
    shared: FeedForward | None = None
    jitter: NonNegative = 0.0  # in training, the input of router and experts is multiplied by 1 +- this (Mixtral)

    def check(self) -> None:
        if self.router.top_k > self.num_experts:
            raise ValueError(f"MoE.router.top_k is {self.router.top_k}; there are only {self.num_experts} experts")


class MoEModule(PartModule, of=MoE):
    router: Any

    def __init__(self, part: MoE, site: Site) -> None:
        super().__init__()
        self.router = part.router.make(site.child("router"), part.num_experts)
        self.experts = ExpertsModule(part, site.width)
        self.shared = part.shared.build(site.child("shared")) if part.shared else None
        self.jitter = part.jitter

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if self.training:
            x = jitter(x, self.jitter)
        routing = self.router(x, ctx)
        if torch.is_grad_enabled() or ctx.wants(self.router.address, "logits"):  # for losses, or because it is traced
            ctx.losses.setdefault("router_logits", []).append(routing.logits)
        y = self.experts(x.flatten(0, 1), routing).view_as(x)
        return y if self.shared is None else y + self.shared(x, ctx)


class ExpertsModule(PartlyUsed):
    """All experts of a layer: one tensor per matrix, (E, inputs, outputs). If there are gates, their outputs
    are the first half of `up`."""

    def __init__(self, part: MoE, width: int) -> None:
        super().__init__()
        E, inner, expert = part.num_experts, part.expert.width, part.expert
        both = 2 * inner if expert.gated else inner
        self.up = nn.Parameter(torch.empty(E, width, both))
        self.down = nn.Parameter(torch.empty(E, inner, width))
        self.up_bias = nn.Parameter(torch.empty(E, both)) if expert.bias else None
        self.down_bias = nn.Parameter(torch.empty(E, width)) if expert.bias else None
        self.starts = {"up_bias": 0.0, "down_bias": 0.0}
        self.expert, self.gated, self.activation = expert, expert.gated, activation_of(expert)
        self.num_experts, self.top_k = E, part.router.top_k
        self.unused = (E - self.top_k) / E

    def forward(self, x: Tensor, routing: Routing) -> Tensor:
        """(N, D) -> (N, D)"""
        k, E = routing.experts.shape[1], self.num_experts
        x, up = cast(x, self.up)
        chosen = routing.experts.flatten()  # (M,)
        if not takes_rest(x, up):
            chosen = chosen.clamp(max=E - 1)  # a choice without an expert has weight 0
        chosen, order = chosen.sort(stable=True)
        ends = torch.searchsorted(chosen, places(E, x.device), right=True)
        token = order if k == 1 else order // k
        inner = grouped_linear(x.index_select(0, token), up, ends)
        if self.up_bias is not None:
            inner = inner + self.up_bias[chosen.clamp(max=E - 1)]
        inner = self.expert.inner(*inner.chunk(2, dim=-1)) if self.gated else self.expert.inner(inner)
        if self.expert.dropout and self.training:
            inner = F.dropout(inner, self.expert.dropout)
        y = grouped_linear(*cast(inner, self.down), ends)
        if self.down_bias is not None:
            y = y + self.down_bias[chosen.clamp(max=E - 1)]
        y = y * routing.weights.flatten()[order, None]
        if k > 1:  # back to the order of tokens, and sum over each token's experts in a fixed order
            back = torch.empty_like(order).scatter_(0, order, places(order.shape[0], x.device))
            return y.index_select(0, back).unflatten(0, (-1, k)).sum(1).to(x.dtype)
        return torch.empty_like(y).index_copy_(0, order, y).to(x.dtype)


def rebalance(model: nn.Module, router_logits: tuple[Tensor, ...], rate: float = 1e-3) -> None:
    """Move the corrections of all routers against the load of one training step [Wang et al. 2024]. `router_logits` are
    returned by the model with output_router_logits=True."""
    routers = [module for module in model.modules() if isinstance(module, MoEModule)]
    for moe, logits in zip(routers, router_logits, strict=True):
        if isinstance(moe.router, TopKModule) and moe.router.correction is not None:
            moe.router.rebalance(logits, rate)


# -- the fused decoding step -------------------------------------------------------------------------------------------


class MoEStep(DecodeStep, of=MoEModule):
    def obstacle(self, rows: int) -> str | None:
        experts = self.op.experts
        weights = list(experts.parameters(recurse=False))
        if type(experts) is not ExpertsModule or not all(weight.is_contiguous() for weight in weights):
            return "an unusual kind of experts"
        if len({weight.dtype for weight in weights}) > 1:
            return "experts with several dtypes"
        return None if experts.activation in NAMES else "an activation without a kernel"

    @property
    def dtype(self) -> torch.dtype:
        return self.op.experts.up.dtype

    def __call__(self, x: Tensor, norm: NormWeights | None, shortcut: Tensor | None, ctx: Context) -> Tensor:
        op, inside, dtype = self.op, self.op.experts, self.dtype
        x = x.to(dtype) if norm is None else few_rows.norm_rows(x, norm, dtype)
        chosen, weights = route(op, x, ctx)
        layers = inside.up, inside.up_bias, inside.down
        sums = few_experts.expert_rows(x, chosen, *layers, NAMES[inside.activation], inside.gated)
        shared = None
        if op.shared is not None:
            step = decode_step(op.shared)
            if step is not None and step.obstacle(len(x)) is None:
                shared = step(x, None, None, ctx)
            else:
                shared = op.shared(x[:, None], ctx)[:, 0]
        return few_experts.combine(sums, chosen, weights, inside.down_bias, inside.num_experts, dtype, shared, shortcut)


def route(op: MoEModule, x: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
    """Return the experts of each row (B, k) and their weights (B, k), given x (B, D)."""
    if not chooses_plainly(op.router, x.dtype):
        routing = op.router(x[:, None], ctx)
        return routing.experts, routing.weights
    logits, part = few_rows.linear(x, [op.router.weight], [op.router.bias]), op.router.part
    return few_experts.choose(logits, part.top_k, part.score, part.normalize, part.scale)


def chooses_plainly(router: Any, dtype: torch.dtype) -> bool:
    """Whether the router is a plain top-k, without groups or correction, in the model's dtype."""
    if type(router) is not TopKModule or router.part.groups > 1 or router.part.float32:
        return False
    few = len(router.weight) <= few_experts.MOST_EXPERTS
    return few and router.correction is None and router.weight.dtype == dtype and router.weight.is_contiguous()
