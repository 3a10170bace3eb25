"""Routers: they choose the experts of each token.

B batch, T tokens, N = B T, D width, E experts, k experts per token.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.runtime.context import Context
from anyformer.runtime.state import PerToken
from anyformer.runtime.taps import ROUTER, TapNames
from anyformer.runtime.visibility import first_of_document
from anyformer.specs.field_types import Count, Natural, NonNegative
from anyformer.specs.part import Part, Site


@dataclasses.dataclass
class Routing:
    """The experts of each token."""

    experts: Tensor  # (N, k) indices of experts; E: no expert
    weights: Tensor  # (N, k) weights of the experts' outputs
    logits: Tensor  # for all experts, as published: (N, E) or (B, T, E)


class Router(Part, abstract=True):
    """Chooses `top_k` experts for every token."""

    top_k: Count = 1

    def make(self, site: Site, num_experts: int) -> nn.Module:
        raise NotImplementedError


class RouterModule(nn.Module):
    """Scores the experts of each token with `weight` (E, D)."""

    tapped: ClassVar[TapNames] = ROUTER

    def __init__(self, part: Any, site: Site, num_experts: int) -> None:
        super().__init__()
        self.part, self.address, self.num_experts = part, site.address, num_experts
        self.weight = nn.Parameter(torch.empty(num_experts, site.width))


class TopK(Router, sees="itself", called=("Mixtral router", "top-k routing")):
    """The k experts with the highest scores (Mixtral). If experts are in groups, only experts of the best groups are
    chosen [DeepSeek-V2, 2024]. With `correction`, a bias that balances the load without a loss is added to the scores
    for the choice, but not for the weights [Wang et al. 2024; DeepSeek-V3]."""

    score: Literal["softmax", "sigmoid"] = "softmax"  # over all experts, or of each expert separately
    normalize: bool = True  # the weights of the chosen experts add up to 1
    scale: float = 1.0  # factor of the weights
    groups: Count = 1  # number of groups
    top_groups: Count = 1  # number of groups to choose from
    group_best: Count = 1  # a group's score is the sum of this many of its best scores
    correction: bool = False  # choose with a bias that balances the load
    float32: bool = False  # compute scores in fp32, whatever the model's dtype
    bias: bool = False  # of the scores' projection (gpt-oss)

    def check(self) -> None:
        if self.top_groups > self.groups:
            raise ValueError(f"TopK.top_groups is {self.top_groups}; it must be at most groups, {self.groups}")

    def make(self, site: Site, num_experts: int) -> nn.Module:
        size = num_experts // self.groups
        if num_experts % self.groups:
            raise ValueError(f"{site.address}: {num_experts} experts do not make {self.groups} equal groups")
        if self.top_groups * size < self.top_k or (self.groups > 1 and size < self.group_best):
            wanted = f"top_k {self.top_k} or group_best {self.group_best}"
            raise ValueError(f"{site.address}: {self.top_groups} groups of {size} experts are too few for {wanted}")
        return TopKModule(self, site, num_experts)


class TopKModule(RouterModule):
    part: TopK
    correction: Tensor | None
    exact = ("correction",)  # fp32 in every checkpoint

    def __init__(self, part: TopK, site: Site, num_experts: int) -> None:
        super().__init__(part, site, num_experts)
        self.bias = nn.Parameter(torch.empty(num_experts)) if part.bias else None
        self.register_buffer("correction", torch.zeros(num_experts) if part.correction else None)
        self.starts = {"correction": 0.0}

    def forward(self, x: Tensor, ctx: Context) -> Routing:
        x, weight, bias = x.flatten(0, 1), self.weight, self.bias
        if self.part.float32:
            logits = F.linear(x.float(), weight.float(), None if bias is None else bias.float())
        else:
            logits = F.linear(x, weight, bias)
        logits = ctx.tap(self.address, "logits", logits)
        scores = self.scores(logits)
        experts = self.choose(scores)
        weights = scores.gather(1, experts)
        if self.part.normalize:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        weights = weights if self.part.scale == 1 else weights * self.part.scale
        return Routing(experts, ctx.tap(self.address, "weights", weights), logits)

    def scores(self, logits: Tensor) -> Tensor:
        return logits.float().softmax(-1) if self.part.score == "softmax" else logits.float().sigmoid()

    def choose(self, scores: Tensor) -> Tensor:
        """Return the indices of the chosen experts: (N, E) -> (N, k)."""
        part = self.part
        if self.correction is not None:
            scores = scores + self.correction
        if part.top_groups < part.groups:
            grouped = scores.unflatten(1, (part.groups, -1))
            best = grouped.topk(part.group_best, dim=-1).values.sum(-1).topk(part.top_groups, dim=-1).indices
            kept = torch.zeros_like(grouped[..., 0], dtype=torch.bool).scatter(1, best, True)
            scores = grouped.masked_fill(~kept[..., None], float("-inf")).flatten(1)
        return scores.topk(part.top_k, dim=-1, sorted=False).indices

    @torch.no_grad()
    def rebalance(self, logits: Tensor, rate: float) -> None:
        """After a training step: lower the correction of experts with more tokens than the mean, raise the others."""
        assert self.correction is not None
        load = torch.bincount(self.choose(self.scores(logits)).flatten(), minlength=self.correction.shape[0]).float()
        self.correction += rate * torch.sign(load.mean() - load)


class Switch(Router, sees="past", called=("Switch Transformer", "top-1 router")):
    """One expert per token, and at most `capacity` tokens per expert and text: later tokens get nothing from this layer
    [Fedus et al. 2021]."""

    top_k: Count = 1
    capacity: Natural = 64  # tokens per expert; in the paper: capacity factor * tokens / experts
    limit: Literal["text", "batch"] = "text"  # "batch": of all texts together, only in training, as in the paper
    bias: bool = False
    jitter: NonNegative = 0.0  # in training, the router's input is multiplied by 1 +- this
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"  # dtype of the router

    def check(self) -> None:
        if self.top_k != 1:
            raise ValueError(f"Switch.top_k is {self.top_k}; it must be 1")

    def make(self, site: Site, num_experts: int) -> nn.Module:
        return SwitchModule(self, site, num_experts)


class SwitchModule(RouterModule):
    part: Switch

    def __init__(self, part: Switch, site: Site, num_experts: int) -> None:
        super().__init__(part, site, num_experts)
        self.bias = nn.Parameter(torch.empty(num_experts)) if part.bias else None

    def state_spec(self) -> PerToken:
        """The expert of every token, because earlier tokens count for the capacity."""
        return PerToken({"expert": ()}, dtypes={"expert": torch.int32})

    def forward(self, x: Tensor, ctx: Context) -> Routing:
        dtype = getattr(torch, self.part.dtype)
        router_input = jitter(x.to(dtype), self.part.jitter) if self.training else x.to(dtype)
        logits = F.linear(router_input, self.weight.to(dtype), None if self.bias is None else self.bias.to(dtype))
        logits = ctx.tap(self.address, "logits", logits)
        weights, experts = logits.softmax(-1).to(x.dtype).max(-1)  # (B, T)
        chosen = ctx.append_to_cache(self.address, {"expert": experts.int()})[0]["expert"]
        kept = has_room(self, experts[..., None], chosen[..., None], ctx)[..., 0]
        experts = experts.masked_fill(~kept, self.num_experts)
        weights = ctx.tap(self.address, "weights", weights.masked_fill(~kept, 0).view(-1, 1))
        return Routing(experts.view(-1, 1), weights, logits)


def has_room(router: RouterModule, experts: Tensor, chosen: Tensor, ctx: Context) -> Tensor:
    """(B, T, k) whether each choice is within the capacity of its expert, for its text or for all B texts."""
    part, E = router.part, router.num_experts
    if part.limit == "text":
        return ranks(experts, chosen, E, ctx) <= part.capacity
    if not router.training:  # otherwise a text would depend on the others
        return torch.ones_like(experts, dtype=torch.bool)
    choices = F.one_hot(experts, E + 1)[..., :E]  # (B, T, k, E)
    if ctx.is_token is not None:
        choices = choices * ctx.is_token[:, :, None, None]
    by_time = choices.transpose(0, 1)  # first tokens of all texts, then second tokens: none depends on later ones
    before = by_time.flatten(0, 2).cumsum(0).view_as(by_time).transpose(0, 1)
    return before.gather(3, experts.clamp(max=E - 1)[..., None])[..., 0] <= part.capacity * len(experts)


def ranks(experts: Tensor, chosen: Tensor, num_experts: int, ctx: Context) -> Tensor:
    """(B, T, k) -> (B, T, k): each choice's rank at its expert, from 1, among the choices of its text (or document) in
    the order of tokens. `chosen` (B, S, k) includes the choices of cached tokens; `num_experts` means no expert. Pads
    rank after all real tokens, wherever they are."""
    choices = F.one_hot(chosen.long(), num_experts + 1)[..., :num_experts]  # (B, S, k, E)
    real = None if ctx.is_token is None else ctx.is_token[:, : chosen.shape[1], None, None]
    before = _count(choices if real is None else choices * real)
    if ctx.documents is not None and before.shape[1] == experts.shape[1]:
        first = first_of_document(ctx.documents)
        before = before - F.pad(before[:, :, -1], (0, 0, 1, 0)).take_along_dim(first[..., None], 1)[:, :, None]
    if real is not None:
        pads = _count(choices * ~real) + before[:, -1:, -1:]
        before = torch.where(real, before, pads)
    return ctx.of_these(before).gather(3, experts.clamp(max=num_experts - 1)[..., None])[..., 0]


def _count(choices: Tensor) -> Tensor:
    """(B, S, k, E) running sums over tokens and, within each token, over its choices."""
    return choices.flatten(1, 2).cumsum(1).view_as(choices)


class GShard(Router, sees="past", called=("top-2 router", "GLaM")):
    """The two best experts, weighted by their shares of both; at most `capacity` choices per expert and text, later
    choices are dropped. In training the second expert is used with a probability proportional to its share [Lepikhin et
    al. 2020]. The paper assigns all first choices of a group before any second choice; here each token's two choices
    are assigned in the order of the text, so that no token depends on later ones."""

    top_k: Count = 2
    capacity: Natural = 128  # choices per expert
    limit: Literal["text", "batch"] = "text"  # "batch": of all texts together, only in training, as in the paper
    threshold: NonNegative = 0.5  # a second share below it is used with probability share / threshold; 0: always (GLaM)

    def check(self) -> None:
        if self.top_k != 2:
            raise ValueError(f"GShard.top_k is {self.top_k}; it must be 2")

    def make(self, site: Site, num_experts: int) -> nn.Module:
        return GShardModule(self, site, num_experts)


class GShardModule(RouterModule):
    part: GShard

    def state_spec(self) -> PerToken:
        """The experts of every token, because earlier tokens count for the capacity."""
        return PerToken({"experts": (2,)}, dtypes={"experts": torch.int32})

    def forward(self, x: Tensor, ctx: Context) -> Routing:
        E, threshold = self.num_experts, self.part.threshold
        logits = ctx.tap(self.address, "logits", F.linear(x.float(), self.weight.float()))
        weights, experts = logits.softmax(-1).topk(2, dim=-1)  # (B, T, 2), the best first
        weights = weights / weights.sum(-1, keepdim=True)
        if self.training and threshold:
            unused = weights[..., 1] < threshold * torch.rand_like(weights[..., 1])
            experts = torch.stack((experts[..., 0], experts[..., 1].masked_fill(unused, E)), dim=-1)
        chosen = ctx.append_to_cache(self.address, {"experts": experts.int()})[0]["experts"]
        kept = (experts < E) & has_room(self, experts, chosen, ctx)
        experts, weights = experts.masked_fill(~kept, E), weights.to(x.dtype).masked_fill(~kept, 0)
        weights = ctx.tap(self.address, "weights", weights.view(-1, 2))
        return Routing(experts.view(-1, 2), weights, logits)


class NoisyTopK(Router, sees="itself", called=("sparsely-gated", "noisy top-k gating")):
    """Softmax over the k best of noisy scores; the amount of noise is learned too [Shazeer et al. 2017]. In training,
    the squared coefficients of variation of the experts' importance and load are added to the losses."""

    top_k: Count = 4

    def make(self, site: Site, num_experts: int) -> nn.Module:
        return NoisyTopKModule(self, site, num_experts)


class NoisyTopKModule(RouterModule):
    part: NoisyTopK

    def __init__(self, part: NoisyTopK, site: Site, num_experts: int) -> None:
        super().__init__(part, site, num_experts)
        self.noise = nn.Parameter(torch.empty(num_experts, site.width))
        self.starts = {"weight": 0.0, "noise": 0.0}  # so that all experts start with the same load

    def forward(self, x: Tensor, ctx: Context) -> Routing:
        x = x.flatten(0, 1)
        clean = F.linear(x, self.weight).float()
        logits, spread = clean, None
        if self.training:
            spread = F.softplus(F.linear(x, self.noise).float()) + 1e-2
            logits = clean + torch.randn_like(clean) * spread
        logits = ctx.tap(self.address, "logits", logits)
        scores, experts = logits.topk(self.part.top_k, dim=-1)
        weights = ctx.tap(self.address, "weights", scores.softmax(-1))
        if spread is not None and self.part.top_k < logits.shape[1]:
            importance = torch.zeros_like(clean).scatter(1, experts, weights).sum(0)
            for name, value in (("importance", importance), ("load", self.load(clean, logits, spread))):
                ctx.losses.setdefault(name, []).append(value.var(correction=0) / (value.mean() ** 2 + 1e-10))
        return Routing(experts, weights, logits)

    def load(self, clean: Tensor, noisy: Tensor, spread: Tensor) -> Tensor:
        """(E,) the expected number of tokens per expert if its noise were drawn again; it is differentiable."""
        best = noisy.topk(self.part.top_k + 1, dim=-1).values
        inside = noisy >= best[:, -2:-1]  # a chosen expert must beat the (k+1)-th score, any other the k-th
        threshold = torch.where(inside, best[:, -1:], best[:, -2:-1])
        return torch.special.ndtr((clean - threshold) / spread).sum(0)


def jitter(x: Tensor, amount: float) -> Tensor:
    return x * torch.empty_like(x).uniform_(1 - amount, 1 + amount) if amount else x
