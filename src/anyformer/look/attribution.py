"""Direct logit attribution: the contribution of every sublayer and head to the score of a token.

At one position the residual stream is the sum of its input and the branches of all sublayers. The score is linear in
this sum if the scales of the norms (and the gates of an activation in the head) are fixed at their values in this run.
So each summand has a share of the score, and the shares add up to the score. P positions, D width, N summands.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from anyformer.look.roles import StackStep, body, last_stretch, num_heads, steps, stream_end
from anyformer.look.trace import Trace, main_tensor
from anyformer.parts.base import child
from anyformer.parts.fused_linear import effective_weight
from anyformer.parts.head.base import TransformModule
from anyformer.parts.head.double import DoubleHeadModule
from anyformer.parts.head.language import LMHeadModule
from anyformer.parts.head.pretraining import PretrainingModule
from anyformer.stacks.stages import StagesModule
from anyformer.stacks.step_kinds import NormedShortcutModule
from anyformer.stacks.sublayer import SublayerModule

CHUNK = 32  # positions per chunk; a chunk needs memory for N x P x D values


@dataclasses.dataclass(frozen=True)
class Summand:
    """One summand: the stream's input, a sublayer, a head, or the sum of all biases."""

    name: str
    address: str
    head: int | None = None


@dataclasses.dataclass(frozen=True)
class Contributions:
    """`values[n, p]` is the contribution of summand n to the score of `tokens[p]` at `positions[p]`. Column p adds up
    to `scores[p]`."""

    names: tuple[Summand, ...]
    values: Tensor  # (N, P)
    tokens: Tensor  # (P,)
    positions: Tensor  # (P,)
    scores: Tensor  # (P,) from the model

    def lines(self, place: int = 0) -> list[tuple[str, float]]:
        """Return (name, share) of all summands at `positions[place]`, largest first."""
        shares = [(line.name, float(value)) for line, value in zip(self.names, self.values[:, place])]
        return sorted(shares, key=lambda line: -abs(line[1]))

    def by_sublayer(self) -> dict[str, Tensor]:
        """Return the contributions (P,) by address, with the heads of a sublayer summed."""
        sums: dict[str, Tensor] = {}
        for line, value in zip(self.names, self.values):
            sums[line.address] = sums[line.address] + value if line.address in sums else value
        return sums

    def figure(self, place: int = 0, most: int = 30) -> Any:
        """Return a matplotlib figure with the largest shares as bars."""
        from anyformer.look.figures import bars

        return bars(self.lines(place)[:most], f"score {float(self.scores[place]):.3f}")


@torch.no_grad()
def contributions(
    run: Trace, token: int | Sequence[int] | None = None, position: int | Sequence[int] = -1, row: int = 0
) -> Contributions:
    """Return the shares of the score of `token` (default: the most likely) at `position`. Both can be lists."""
    model, stack = run.model, body(run.model).last_stack
    logits, positions, tokens = resolve_targets(run, token, position, row)
    if (other := stream_end(body(run.model))) is not None:
        raise ValueError(
            f"{other} is between the stream and the head and is not linear, so scores cannot be attributed"
        )
    first, layers = last_stretch(stack)
    run_steps = list(steps(stack, layers))
    mixed = [name for step in run_steps if (name := f"{step.sublayer.address}.op.mixed") in model.shows]
    run = run.keeping(
        first, *{step.branch for step in run_steps}, *mixed, *({step.layer for step in run_steps} if run.change else ())
    )
    parts = [
        StreamShares(run, row, chunk).propagate(run_steps, target)
        for chunk, target in zip(positions.split(CHUNK), tokens.split(CHUNK))
    ]
    names, values = parts[0][0], torch.cat([value for _, value in parts], 1)
    scores = logits[positions, tokens]
    _check(values.sum(0), scores.double(), model.dtype)
    return Contributions(names, values.float(), tokens, positions, scores)


def resolve_targets(
    run: Trace, token: int | Sequence[int] | None, position: int | Sequence[int], row: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the scores (T, V) of a row, the positions (P,) and the tokens (P,)."""
    logits = token_scores(run)[row]
    wanted = [position] if isinstance(position, int) else list(position)
    for each in wanted:
        if not -len(logits) <= each < len(logits):
            raise ValueError(f"no position {each}; the model scores {len(logits)} positions")
    positions = torch.tensor([each % len(logits) for each in wanted])
    if token is None:
        tokens = logits[positions].argmax(-1)
    else:
        tokens = torch.tensor([token] * len(wanted) if isinstance(token, int) else list(token))
    if len(tokens) != len(positions) or not bool(((tokens >= 0) & (tokens < logits.shape[-1])).all()):
        raise ValueError(f"give one token per position, with ids from 0 to {logits.shape[-1] - 1}")
    return logits, positions, tokens


def token_scores(run: Trace) -> Tensor:
    """Return the scores (B, T, V) of a head that scores every position."""
    scores = main_tensor(dict(run.output))[0]
    if scores is None or scores.dim() != 3 or output_layer(run.model.head) is None:
        kind = type(run.model.spec.head).__name__ if run.model.spec.head is not None else "no head"
        raise ValueError(f"contributions need a head that scores tokens at every position; this model has {kind}")
    return scores


def output_layer(head: Any) -> nn.Linear | None:
    """Return the linear layer that computes one score per row of its weight, or None if the head has no such layer."""
    head = token_head(head)
    out = child(head, "out")
    return out if isinstance(out, nn.Linear) and child(head, "pool") is None else None


def token_head(head: Any) -> Any:
    """Return the module that scores tokens: the head itself, or the language model of a double head."""
    return head.lm if isinstance(head, (PretrainingModule, DoubleHeadModule)) else head


class StreamShares:
    """The stream at some positions of one row, as separate summands that are propagated to the scores."""

    def __init__(self, run: Trace, row: int, positions: Tensor) -> None:
        self.run, self.row, self.positions = run, row, positions
        self.stack = body(run.model).last_stack
        first, _ = last_stretch(self.stack)
        start = self.stream_at(first)
        self.names = [Summand("biases", "biases"), Summand("input", first)]
        self.sum = torch.stack((torch.zeros_like(start), start))  # (N, P, D)

    def stream_at(self, address: str, time: int = 0) -> Tensor:
        return self.run.kept[address][time][self.row, self.positions].double()

    def propagate(self, run_steps: Sequence[StackStep], tokens: Tensor) -> tuple[tuple[Summand, ...], Tensor]:
        """Run the summands through the steps and the head; return the summands and their shares (N, P)."""
        for step, after in zip(run_steps, [*run_steps[1:], None]):
            if step.branch in self.run.kept:  # the run did not skip this step
                self.step(step)
            if self.run.change and (after is None or (after.layer, after.time) != (step.layer, step.time)):
                self.add_change(step)
        whole, head = body(self.run.model), self.run.model.head
        self.norm(self.stack.norm)
        if self.stack.neck is not None:
            self.affine(self.stack.neck.project)
        if isinstance(whole, StagesModule):
            self.norm(whole.norm)
        head = token_head(head)
        if isinstance(transform := child(head, "transform"), TransformModule):
            self.affine(transform.dense)
            self.gate(transform.activation)
            self.norm(transform.norm)
        if isinstance(head, LMHeadModule):
            self.sum = self.sum * (head.part.scale or 1.0)
        out = cast(Any, head).out
        weight = effective_weight(out)[tokens].double()  # (P, D)
        values = torch.einsum("npd,pd->np", self.sum, weight)
        bias = head.score_bias() if isinstance(head, LMHeadModule) else out.bias
        values[0] += 0 if bias is None else bias[tokens].double()
        if isinstance(head, LMHeadModule):
            values = with_gate(values, head.change_scores)
        return tuple(self.names), values

    # -- operations on the sum ---------------------------------------------------------------------------------------

    def step(self, step: StackStep) -> None:
        sublayer, residual = step.sublayer, step.sublayer.residual
        if isinstance(sublayer, NormedShortcutModule):
            self.norm(sublayer.pre_norm)
        names, added = self.branch(step)
        zero = torch.zeros_like(added[0])
        constant = residual(zero, zero).double()
        self.sum = torch.cat(
            (
                residual(self.sum, torch.zeros_like(self.sum)).double() - constant,
                residual(torch.zeros_like(added), added).double() - constant,
            )
        )
        self.sum[0] += constant + self.sum[len(self.names)]  # the biases of the branch
        self.sum = torch.cat((self.sum[: len(self.names)], self.sum[len(self.names) + 1 :]))
        self.names += names
        self.norm(sublayer.out_norm)

    def add_change(self, step: StackStep) -> None:
        """If the run changed the stream after this layer, add the change as a summand."""
        change = self.stream_at(step.layer, step.time) - self.sum.sum(0)
        if float(change.abs().max()) > 1e-4 * float(self.sum.abs().max()):
            self.names.append(Summand(f"{step.layer} changed", step.layer))
            self.sum = torch.cat((self.sum, change[None]))

    def branch(self, step: StackStep) -> tuple[list[Summand], Tensor]:
        """Return the branch of a step (N, P, D), split by head if its op has heads. Row 0 belongs to no head."""
        whole, sublayer = self.stream_at(step.branch, step.time), step.sublayer
        if (parts := self.heads(sublayer, step.time)) is not None:
            parts = apply_norm(parts, sublayer.post_norm)
            if torch.allclose(parts.sum(0), whole, rtol=1e-3, atol=1e-4 * float(whole.abs().max())):
                lines = [Summand(f"{sublayer.address} head {i}", sublayer.address, i) for i in range(len(parts) - 1)]
                return lines, parts
        return [Summand(sublayer.address, sublayer.address)], torch.stack((torch.zeros_like(whole), whole))

    def heads(self, sublayer: SublayerModule, time: int) -> Tensor | None:
        op: Any = sublayer.op
        number, address = num_heads(op), f"{sublayer.address}.op.mixed"
        if number is None or child(op, "o") is None or address not in self.run.kept:
            return None
        mixed = self.run.kept[address][time]
        if mixed.dim() != 3 or mixed.shape[1] <= int(self.positions.max()) or mixed.shape[0] <= self.row:
            return None
        mixed = mixed[self.row, self.positions]
        separate = torch.zeros(number + 1, *mixed.shape, dtype=mixed.dtype)
        for i, columns in enumerate(torch.arange(mixed.shape[-1]).chunk(number), 1):
            separate[i][:, columns] = mixed[:, columns]
        outputs = op.o(separate).double()
        outputs[1:] -= outputs[:1].clone()
        return outputs

    def norm(self, norm: nn.Module | None) -> None:
        self.sum = apply_norm(self.sum, norm)

    def affine(self, linear: nn.Module) -> None:
        exact = copy.deepcopy(linear).double()
        bias = exact(torch.zeros_like(self.sum[0]))
        self.sum = exact(self.sum) - bias
        self.sum[0] += bias

    def gate(self, activation: Callable[[Tensor], Tensor]) -> None:
        self.sum = with_gate(self.sum, activation)


def with_gate(parts: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply an activation to the sum of summands (N, ...) as z * (activation(z) / z), with the second factor fixed."""
    z = parts.sum(0).detach()
    y = activation(z)
    if y is z:
        return parts
    parts = parts * torch.where(z == 0, 0, y / torch.where(z == 0, 1, z))
    return torch.cat((parts[:1] + y - parts.sum(0).detach(), parts[1:]))


def apply_norm(parts: Tensor, norm: nn.Module | None) -> Tensor:
    """Apply a norm with its scale fixed to summands (N, P, D): subtract the mean (if the norm centers) and multiply.
    The norm's bias is added to the first summand."""
    if norm is None:
        return parts
    x = parts.sum(0).detach()
    exact = copy.deepcopy(norm).double()
    y, bias = exact(x).double().detach(), exact(torch.zeros_like(x)).double().detach()
    centred = torch.allclose(exact(x + 1).double(), y, rtol=1e-6, atol=1e-6)
    inside = x - x.mean(-1, keepdim=True) if centred else x
    scale = torch.where(inside == 0, 0, (y - bias) / torch.where(inside == 0, 1, inside))
    scaled = (parts - parts.mean(-1, keepdim=True) if centred else parts) * scale
    return torch.cat((scaled[:1] + bias, scaled[1:]))


def _check(sums: Tensor, scores: Tensor, dtype: torch.dtype) -> None:
    worst = float((sums - scores).abs().max() / scores.abs().max().clamp(min=1))
    if worst > min(1e4 * torch.finfo(dtype).eps, 0.1):
        raise ValueError(f"the stream of this model is not the sum of its branches (off by {worst:.1e})")
