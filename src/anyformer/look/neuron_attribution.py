"""Neuron attribution: the contribution of each unit of a feed-forward layer to the score of a token.

A unit adds its column of `down`, times its activation, to the stream. The gradient of the score along that column, with
all norms at their scales of this run, is that of the sum in attribution.py; activation times gradient is the unit's
share, and the shares of a layer add up to the layer's. P positions, D width, F units.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anyformer.look.attribution import CHUNK, StreamShares, Summand, resolve_targets, through_norm
from anyformer.look.roles import StackStep, body, calls, num_heads, steps, stream_end
from anyformer.look.trace import Trace
from anyformer.parts.fused_linear import effective_weight
from anyformer.stacks.sublayer import SublayerModule


class Neuron(NamedTuple):
    """One unit at one place."""

    address: str  # of its sublayer
    unit: int
    activation: float
    share: float  # in the score


@dataclasses.dataclass(frozen=True)
class Neurons:
    """`shares[address]` (P, F): what every unit of a sublayer adds to the score of `tokens[p]` at `positions[p]`."""

    shares: dict[str, Tensor]
    activations: dict[str, Tensor]  # (P, F)
    tokens: Tensor  # (P,)
    positions: Tensor  # (P,)

    def best(self, most: int = 20, place: int = 0) -> list[Neuron]:
        """The largest shares over all sublayers at one of the positions."""
        found = []
        for address, shares in self.shares.items():
            units = shares[place].abs().topk(min(most, shares.shape[1])).indices.tolist()
            active = self.activations[address][place]
            found += [Neuron(address, unit, float(active[unit]), float(shares[place, unit])) for unit in units]
        return sorted(found, key=lambda neuron: -abs(neuron.share))[:most]

    def figure(self, most: int = 20, place: int = 0) -> Any:
        """A matplotlib figure: the largest shares as bars."""
        from anyformer.look.figures import bars

        lines = [(f"{each.address} unit {each.unit}", each.share) for each in self.best(most, place)]
        return bars(lines, f"shares of units in the score of token {int(self.tokens[place])}")


def neurons(
    run: Trace, token: int | Sequence[int] | None = None, position: int | Sequence[int] = -1, row: int = 0
) -> Neurons:
    """The shares of units in the score of `token` (default: the most likely) at `position`; or of several at
    several."""
    _, positions, tokens = resolve_targets(run, token, position, row)
    stack = body(run.model).last_stack
    ways = list(steps(stack))
    layers = {step.sublayer: down for step in ways if (down := down_projection(step.sublayer)) is not None}
    if not layers or stream_end(body(run.model)) is not None:
        raise ValueError("this model has no feed-forward layers whose units contribute to the scores separately")
    outputs = [f"{sublayer.address}.op" for sublayer in layers]
    with torch.no_grad():
        run = run.keeping(
            f"{stack.address}.input",
            *{step.branch for step in ways},
            *outputs,
            *({step.layer for step in ways} if run.change else ()),
        )
        read = calls(run, list(layers.values()))
    shares: dict[str, list[Tensor]] = {}
    active: dict[str, list[Tensor]] = {}
    for places, wanted in zip(positions.split(CHUNK), tokens.split(CHUNK)):
        for step, gradient in ScoreGradients(run, row, places, layers).gradients_of(ways, wanted):
            down, name = layers[step.sublayer], step_name(step)
            inner = read[down][step.time].args[0][row, places].double()  # (P, F)
            weight = effective_weight(down).detach().double()
            shares.setdefault(name, []).append((gradient @ weight * inner).float())
            active.setdefault(name, []).append(inner.float())
    whole, acts = ({name: torch.cat(parts) for name, parts in each.items()} for each in (shares, active))
    return Neurons(whole, acts, tokens, positions)


def step_name(step: StackStep) -> str:
    return step.sublayer.address + (f", run {step.time + 1}" if step.time else "")


def down_projection(sublayer: SublayerModule) -> Any:
    """The last linear layer of a feed-forward layer, if its columns are the units."""
    down = getattr(sublayer.op, "down", None)
    return down if isinstance(down, nn.Linear) and num_heads(sublayer.op) is None else None


class ScoreGradients(StreamShares):
    """The same sum with the outputs of feed-forward layers as variables, for the gradients of a score."""

    def __init__(self, run: Trace, row: int, positions: Tensor, layers: dict[SublayerModule, Any]) -> None:
        super().__init__(run, row, positions)
        self.layers, self.free = layers, list[tuple[StackStep, Tensor]]()

    @torch.enable_grad()
    def gradients_of(self, ways: Sequence[StackStep], tokens: Tensor) -> list[tuple[StackStep, Tensor]]:
        """Every step with units, and the gradient (P, D) of its tokens' scores."""
        _, values = self.through(ways, tokens)
        gradients = torch.autograd.grad(values.sum(), [each for _, each in self.free])
        return [(step, gradient) for (step, _), gradient in zip(self.free, gradients)]

    def branch(self, step: StackStep) -> tuple[list[Summand], Tensor]:
        lines, parts = super().branch(step)
        if step.sublayer in self.layers:
            given = self.stream_at(f"{step.sublayer.address}.op", step.time).detach().requires_grad_()
            alone = through_norm(torch.stack((torch.zeros_like(given), given)), step.sublayer.post_norm)
            if torch.allclose(alone.sum(0), parts.sum(0), rtol=1e-3, atol=1e-4 * float(parts.abs().max())):
                self.free.append((step, given))
                return lines, alone
        return lines, parts
