"""Attention weights, and the experts that tokens are routed to.

B batch, H heads, T tokens, S keys, E experts, k experts per token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from anyformer.look.roles import attention_mixers, calls, routers, short
from anyformer.look.trace import Trace
from anyformer.parts.feedforward.routers import Routing
from anyformer.specs.messages import nearest, quote


@dataclasses.dataclass(frozen=True)
class AttentionMap:
    """The attention weights of one mixer. If a layer runs several times, `time` is the index of the pass."""

    address: str
    kind: str  # "self" or "cross"
    weights: Tensor  # (B, H, T, S); windowed attention: one row per window instead of B
    time: int = 0

    def figure(self, row: int = 0, tokens: list[str] | None = None) -> Any:
        """Return a matplotlib figure with one heat map per head."""
        from anyformer.look.figures import heat_maps

        maps = self.weights[row].float()
        return heat_maps(list(maps), [f"head {i}" for i in range(len(maps))], self.address, tokens)


@dataclasses.dataclass(frozen=True)
class Attentions(Mapping[str, AttentionMap]):
    """The maps of a run, in the order they were computed. Index by sublayer: `maps["decoder.layers.0.attention"]`."""

    maps: tuple[AttentionMap, ...]

    def __getitem__(self, name: str) -> AttentionMap:
        for each in self.maps:
            if name in (each.address, short(each.address)):
                return each
        raise KeyError(f"no attention at {quote(name)}; {nearest(name, list(self))}")

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(short(each.address) for each in self.maps))

    def __len__(self) -> int:
        return len(set(self))


def attention(run: Trace) -> Attentions:
    """Return the attention weights of every mixer that has attention weights."""
    kinds = attention_mixers(run.model)
    if not kinds:
        mixers = sorted({a.split(".")[-2] for a in run.model.shows if a.endswith(".mixed")} - {"op"})
        raise ValueError(
            f"this model has no attention weights{f' ({mixers[0]})' if mixers else ''}: its mixers "
            "carry a state from token to token, or see fixed neighbours"
        )
    run = run.keeping(*(f"{address}.weights" for address in kinds))
    return Attentions(
        tuple(
            AttentionMap(address, kind, weights, time)
            for address, kind in kinds.items()
            for time, weights in enumerate(run.kept.get(f"{address}.weights", ()))
        )
    )


@dataclasses.dataclass(frozen=True)
class Routed:
    """The routing of one layer: `experts` (N, k) for the tokens of all rows, and their weights. A token that its expert
    had no room for has expert E and weight 0."""

    address: str
    experts: Tensor
    weights: Tensor
    num_experts: int

    @property
    def dropped(self) -> Tensor:
        """(N,) True for tokens that no expert had room for."""
        return (self.experts >= self.num_experts).all(-1)


def routing(run: Trace) -> list[Routed]:
    """Return the experts that each layer with a router sent its tokens to."""
    modules = {run.model.get_submodule(address): address for address in routers(run.model)}
    if not modules:
        raise ValueError("this model has no experts")
    layers = []
    for module, module_calls in calls(run, list(modules)).items():
        for call in module_calls:
            routed = call.result
            assert isinstance(routed, Routing)
            layers.append(Routed(modules[module], routed.experts, routed.weights, routed.logits.shape[-1]))
    return layers
