"""Neuron attribution: the contribution of each unit of a feed-forward layer to the score of a token.

A unit adds its column of `down`, times its activation, to the stream. Its share of the score is its activation times
the gradient of the score along that column, with the scales of all norms fixed at their values in this run (the sum of
attribution.py). The shares of a layer's units add up to the layer's share. P positions, D width, F units.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anyformer.look.attribution import CHUNK, StreamShares, Summand, apply_norm, resolve_targets
from anyformer.look.roles import StackStep, body, calls, num_heads, steps, stream_end
from anyformer.look.trace import Trace
from anyformer.parts.base import child
from anyformer.parts.fused_linear import effective_weight
from anyformer.stacks.sublayer import SublayerModule


class Neuron(NamedTuple):
    """One unit at one position."""

    address: str  # address of its sublayer
    unit: int
    activation: float
    share: float  # share of the score


@dataclasses.dataclass(frozen=True)
class Neurons:
    """`shares[address]` (P, F): how much each unit of a sublayer adds to the score of `tokens[p]` at `positions[p]`."""

    shares: dict[str, Tensor]
    activations: dict[str, Tensor]  # (P, F)
    tokens: Tensor  # (P,)
    positions: Tensor  # (P,)

    def best(self, most: int = 20, place: int = 0) -> list[Neuron]:
        """Return the units with the largest shares over all sublayers at `positions[place]`."""
        largest = []
        for address, shares in self.shares.items():
            units = shares[place].abs().topk(min(most, shares.shape[1])).indices.tolist()
            active = self.activations[address][place]
            largest += [Neuron(address, unit, float(active[unit]), float(shares[place, unit])) for unit in units]
        return sorted(largest, key=lambda neuron: -abs(neuron.share))[:most]

    def figure(self, most: int = 20, place: int = 0) -> Any:
        """Return a matplotlib figure with the largest shares as bars."""
        from anyformer.look.figures import bars

        lines = [(f"{each.address} unit {each.unit}", each.share) for each in self.best(most, place)]
        return bars(lines, f"shares of the score of token {int(self.tokens[place])} by unit")


def neurons(
    run: Trace, token: int | Sequence[int] | None = None, position: int | Sequence[int] = -1, row: int = 0
) -> Neurons:
    """Return the units' shares of the score of `token` (default: the most likely) at `position`. Both can be lists."""
    _, positions, tokens = resolve_targets(run, token, position, row)
    stack = body(run.model).last_stack
    run_steps = list(steps(stack))
    layers = {step.sublayer: down for step in run_steps if (down := down_projection(step.sublayer)) is not None}
    if not layers or stream_end(body(run.model)) is not None:
        raise ValueError("this model has no feed-forward layers whose units contribute to the scores separately")
    outputs = [f"{sublayer.address}.op" for sublayer in layers]
    with torch.no_grad():
        run = run.keeping(
            f"{stack.address}.input",
            *{step.branch for step in run_steps},
            *outputs,
            *({step.layer for step in run_steps} if run.change else ()),
        )
        recorded = calls(run, list(layers.values()))
    shares: dict[str, list[Tensor]] = {}
    active: dict[str, list[Tensor]] = {}
    for chunk, targets in zip(positions.split(CHUNK), tokens.split(CHUNK)):
        for step, gradient in ScoreGradients(run, row, chunk, layers).gradients_of(run_steps, targets):
            down, name = layers[step.sublayer], step_name(step)
            inner = recorded[down][step.time].args[0][row, chunk].double()  # (P, F)
            weight = effective_weight(down).detach().double()
            shares.setdefault(name, []).append((gradient @ weight * inner).float())
            active.setdefault(name, []).append(inner.float())
    whole, acts = ({name: torch.cat(parts) for name, parts in each.items()} for each in (shares, active))
    return Neurons(whole, acts, tokens, positions)


def step_name(step: StackStep) -> str:
    return step.sublayer.address + (f", run {step.time + 1}" if step.time else "")


def down_projection(sublayer: SublayerModule) -> Any:
    """Return the last linear layer of a feed-forward layer if its columns are the units, otherwise None."""
    down = child(sublayer.op, "down")
    return down if isinstance(down, nn.Linear) and num_heads(sublayer.op) is None else None


class ScoreGradients(StreamShares):
    """The sum of StreamShares, with the outputs of feed-forward layers as variables to differentiate by."""

    def __init__(self, run: Trace, row: int, positions: Tensor, layers: dict[SublayerModule, Any]) -> None:
        super().__init__(run, row, positions)
        self.layers, self.free = layers, list[tuple[StackStep, Tensor]]()

    @torch.enable_grad()
    def gradients_of(self, run_steps: Sequence[StackStep], tokens: Tensor) -> list[tuple[StackStep, Tensor]]:
        """Return every step with units, and the gradient (P, D) of the tokens' scores by its output."""
        _, values = self.propagate(run_steps, tokens)
        gradients = torch.autograd.grad(values.sum(), [each for _, each in self.free])
        return [(step, gradient) for (step, _), gradient in zip(self.free, gradients)]

    def branch(self, step: StackStep) -> tuple[list[Summand], Tensor]:
        lines, parts = super().branch(step)
        if step.sublayer in self.layers:
            output = self.stream_at(f"{step.sublayer.address}.op", step.time).detach().requires_grad_()
            normed = apply_norm(torch.stack((torch.zeros_like(output), output)), step.sublayer.post_norm)
            if torch.allclose(normed.sum(0), parts.sum(0), rtol=1e-3, atol=1e-4 * float(parts.abs().max())):
                self.free.append((step, output))
                return lines, normed
        return lines, parts
