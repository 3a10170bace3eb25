"""Selective state spaces: a recurrence whose input and decay depend on the token [Gu and Dao 2023].

B rows, T tokens, D width, I inner width, N states per channel, R rank of the time step, K size of the convolution.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.capture import can_read_values
from anyformer.kernels.convolution import depthwise
from anyformer.kernels.few_rows import NormWeights
from anyformer.kernels.mamba_step import conv_step, selective_step
from anyformer.kernels.scan import scan, scan_step
from anyformer.parts.activation import ACTIVATIONS, Activation
from anyformer.parts.base import PartModule
from anyformer.parts.decode_step import NAMES, DecodeStep, linear
from anyformer.parts.fused_linear import Concatenable
from anyformer.parts.init import Initializer, Kaiming
from anyformer.parts.op import Op
from anyformer.runtime.context import Context
from anyformer.runtime.stores import PerRow, Store
from anyformer.runtime.taps import TapNames
from anyformer.runtime.visibility import begins
from anyformer.specs.field_types import Count, NonNegative, Positive
from anyformer.specs.part import Site

# -- initialisation ---------------------------------------------------------------------------------------------------


class Rates(Initializer, called=("S4D",)):
    """A = -1, -2, ..., -N along the last dimension, stored as a logarithm: the real S4D [Gu et al. 2022]."""

    def fill(self, tensor: Tensor, generator: torch.Generator, depth: int) -> None:
        tensor.copy_(torch.arange(1, tensor.shape[-1] + 1, device=tensor.device).log().expand_as(tensor))


class StepWeight(Initializer):
    """Uniform between -b and b, or b everywhere, where b = scale / sqrt(R)."""

    scale: NonNegative = 1.0
    scheme: Literal["random", "constant"] = "random"

    def fill(self, tensor: Tensor, generator: torch.Generator, depth: int) -> None:
        bound = self.scale / math.sqrt(tensor.shape[1])
        if self.scheme == "constant":
            tensor.fill_(bound)
        else:
            tensor.uniform_(-bound, bound, generator=generator)


class StepBias(Initializer):
    """softplus(bias), the time step for an input of 0, is log-uniform between `low` and `high`."""

    low: Positive = 0.001
    high: Positive = 0.1
    floor: Positive = 1e-4

    def fill(self, tensor: Tensor, generator: torch.Generator, depth: int) -> None:
        at = torch.rand(tensor.shape, generator=generator, device=tensor.device)
        dt = torch.exp(at * (math.log(self.high) - math.log(self.low)) + math.log(self.low)).clamp(min=self.floor)
        tensor.copy_(dt + torch.log(-torch.expm1(-dt)))  # the inverse of softplus


# -- the mixer ---------------------------------------------------------------------------------------------------------


class SelectiveState(
    Op, sees="past", called=("Mamba", "S6", "SSM", "state space", "selective scan", "state space model")
):
    """Mamba's mixer: a short causal convolution, the selective scan, and a gate. Each token determines its time step
    (how much the past decays and how much the token writes), what it writes (B) and what it reads (C)."""

    width: Count  # I, inner width
    states: Count = 16  # N, states per channel
    taps: Count = 4  # K, size of the convolution
    rank: Count | None = None  # R, rank of the time step; default: D / 16, rounded up
    activation: Activation = "silu"  # after the convolution; the gate is always silu
    bias: bool = False  # bias of the input and output projections
    conv_bias: bool = True
    step_start: StepWeight = StepWeight()
    bias_start: StepBias = StepBias()


class ConvolvingModule(PartModule):
    """A mixer with a short causal convolution before its recurrence, and a cached window for it."""

    tapped: ClassVar[TapNames] = {"conv": None, "mixed": None}
    begins: ClassVar[dict[str, Any]] = {
        "rate": Rates(),
        "skip": 1.0,
        "conv.weight": Kaiming(gain=math.sqrt(1 / 3), normal=False),
    }

    part: Any
    address: str
    conv: nn.Conv1d
    activation: Callable[[Tensor], Tensor]

    def convolve(self, x: Tensor, rows: PackedRows, store: Store | None, ctx: Context) -> Tensor:
        """Convolve each channel (B, T, I) over a token and K - 1 real tokens before it in its document; 0 at pads."""
        K, bias, past = self.part.taps, self.conv.bias, None
        if store is not None and K > 1:  # K - 1 cached tokens, then these tokens
            past = x = torch.cat((store.tensors["window"].expand(x.shape[0], -1, -1).to(x.dtype), x), dim=1)
        if rows.age is None:
            y = depthwise(x, self.conv.weight, bias, (0 if past is not None else K - 1, 0))
        else:
            x = x if past is not None else F.pad(x, (0, 0, K - 1, 0))
            T, taps = rows.age.shape[1], self.conv.weight[:, 0].unbind(-1)
            y = x[:, K - 1 :] * taps[-1]
            for back in range(1, K):  # tokens of other documents count as 0
                near = (rows.age >= back)[..., None].to(x.dtype)
                y = torch.addcmul(y, x[:, K - 1 - back : K - 1 - back + T] * near, taps[-1 - back])
            y = y if bias is None else y + bias
        if store is not None and past is not None:
            store.replace("window", rows.last_tokens(past, K - 1))
        y = self.activation(ctx.tap(self.address, "conv", y))
        return y if rows.real is None else y * rows.real.to(y.dtype)


class SelectiveStateModule(ConvolvingModule, of=SelectiveState):
    def __init__(self, part: SelectiveState, site: Site) -> None:
        super().__init__()
        self.starts = {**self.begins, "step.weight": part.step_start, "step_bias": part.bias_start}
        self.part, self.address = part, site.address
        I, N = part.width, part.states
        self.rank = part.rank or -(-site.width // 16)
        self.up = nn.Linear(site.width, I, bias=part.bias)
        self.gate = nn.Linear(site.width, I, bias=part.bias)
        self.conv = nn.Conv1d(I, I, part.taps, groups=I, bias=part.conv_bias)
        self.select = nn.Linear(I, self.rank + 2 * N, bias=False)  # time step, B and C of each token
        self.step = nn.Linear(self.rank, I, bias=False)
        self.step_bias = nn.Parameter(torch.empty(I))
        self.rate = nn.Parameter(torch.empty(I, N))  # A = -exp(rate): each state decays at its own rate
        self.skip = nn.Parameter(torch.empty(I))
        self.down = nn.Linear(I, site.width, bias=part.bias)
        self.activation = ACTIVATIONS[part.activation]

    def state_spec(self) -> PerRow:
        I = self.part.width
        shapes = {"window": (self.part.taps - 1, I), "state": (self.part.states, I)}
        return PerRow(shapes, dtypes={"state": torch.float32})

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        rows = PackedRows.from_context(ctx)
        x, store = rows.pack(x), ctx.store(self.address)
        gate, x = self.gate(x), self.convolve(self.up(x), rows, store, ctx)
        step, b, c = self.select(x).split((self.rank, self.part.states, self.part.states), dim=-1)
        # fp32 up to the gate, whatever the model's dtype
        dt = F.softplus(self.step(step).float() + self.step_bias.float())
        if rows.real is not None:
            dt = dt * rows.real  # no time passes at a pad: the state does not change
        A = -torch.exp(self.rate.float()).t().contiguous()
        state = None if store is None else store.tensors["state"].expand(x.shape[0], -1, -1)
        x32, b, c = x.float(), b.float(), c.float()
        if x.shape[1] == 1 and state is not None:
            y, last = scan_step(x32[:, 0], dt[:, 0], A, b[:, 0], c[:, 0], state)
            y = y[:, None]
        else:
            y, last = scan(x32, dt, A, b, c, state=state, keep=rows.keep)
        if store is not None:
            store.replace("state", last)
        y = torch.addcmul(y, x32, self.skip.float()) * F.silu(gate)
        return rows.unpack(self.down(ctx.tap(self.address, "mixed", y.to(x.dtype))))


# -- the fused decoding step -------------------------------------------------------------------------------------------


class ConvolvingStep(DecodeStep):
    def obstacle(self, rows: int) -> str | None:
        if (why := super().obstacle(rows)) is not None:
            return why
        if isinstance(getattr(self.op, self.layers[0]), Concatenable) or type(self.op.conv) is not nn.Conv1d:
            return self.unusual_layer()
        return self.unknown_activation()

    def is_ready(self, x: Tensor, ctx: Context) -> bool:
        """Whether the state is updated in place, and no row has padding or a new document."""
        store = ctx.store(self.op.address)
        in_place = store is not None and store.static and all(len(held) == len(x) for held in store.tensors.values())
        return in_place and ctx.is_token is None and ctx.documents is None

    def convolve(self, x: Tensor, store: Store) -> Tensor:
        """(B, channels) -> (B, channels)"""
        conv = self.op.conv
        return conv_step(x, conv.weight, conv.bias, store.tensors["window"], NAMES[self.op.activation])


class SelectiveStateStep(ConvolvingStep, of=SelectiveStateModule):
    layers = ("up", "gate", "select", "step", "down")

    def __call__(self, x: Tensor, norm: NormWeights | None, shortcut: Tensor | None, ctx: Context) -> Tensor:
        op, store = self.op, ctx.store(self.op.address)
        assert store is not None
        both = linear(x, op.up, op.gate, norm=norm)  # (B, 2 I)
        mixed = self.convolve(both, store)
        chosen, gate = linear(mixed, op.select), both[:, op.part.width :]
        by_channel = op.step.weight, op.step_bias, op.rate, op.skip
        return linear(selective_step(mixed, gate, chosen, *by_channel, store.tensors["state"]), op.down, onto=shortcut)


# -- rows without pads between tokens ----------------------------------------------------------------------------------


@dataclasses.dataclass
class PackedRows:
    """A batch as a recurrence reads it: real tokens first, then pads, so that no pad is between two tokens."""

    real: Tensor | None = None  # (B, T, 1) 1 for real tokens, in packed order
    order: Tensor | None = None  # (B, T) row index of each packed token
    back: Tensor | None = None  # (B, T) packed index of each token
    age: Tensor | None = None  # (B, T) real tokens of its document before it; very large in the first document
    keep: Tensor | None = None  # (B, T) 0 at the first token of a new document, otherwise 1

    @classmethod
    def from_context(cls, ctx: Context) -> PackedRows:
        """Return the rows of this batch, computed once for all layers."""
        return ctx.once("rows", lambda: cls._read(ctx))

    @classmethod
    def _read(cls, ctx: Context) -> PackedRows:
        rows, tokens, documents = cls(), ctx.tokens, ctx.documents
        if tokens is not None:
            rows.real = tokens[..., None].float()
            split = tokens[:, 1:] & ~tokens[:, :-1]  # a real token after a pad
            if tokens.shape[1] > 1 and (not can_read_values() or bool(split.any())):
                rows.order = (~tokens).int().argsort(dim=1, stable=True)
                rows.back = rows.order.argsort(dim=1)
                rows.real = rows.pack(rows.real)
                documents = None if documents is None else documents.gather(1, rows.order)
        if documents is not None:
            new = F.pad(begins(documents)[:, 1:], (1, 0))  # the first document may continue a cached one
            if rows.real is not None:
                new = new & rows.real[..., 0].bool()  # a pad begins no document
            rows.keep = (~new).float()
            index = torch.arange(documents.shape[1], device=documents.device)
            first = torch.where(new, index, -1).cummax(1).values
            rows.age = torch.where(first < 0, torch.iinfo(torch.long).max, index - first)
        return rows

    def pack(self, x: Tensor) -> Tensor:
        """Move the real tokens of x (B, T, D) to the front."""
        return x if self.order is None else x.gather(1, self.order[..., None].expand_as(x))

    def unpack(self, x: Tensor) -> Tensor:
        return x if self.back is None else x.gather(1, self.back[..., None].expand_as(x))

    def last_tokens(self, x: Tensor, count: int) -> Tensor:
        """Return the last `count` real tokens of x (B, count + T, I); 0 for tokens of an earlier document."""
        T = x.shape[1] - count
        if self.real is None:
            end = torch.full((x.shape[0],), T, device=x.device)
            x = x[:, T:].clone()  # a copy, so that the rest is freed
        else:
            end = self.real[..., 0].sum(1).long()
            places = end[:, None] + torch.arange(count, device=x.device)
            x = x.gather(1, places[..., None].expand(-1, -1, x.shape[2]))
        if self.age is not None:
            age = self.age.gather(1, (end - 1).clamp(min=0)[:, None])  # of the last real token
            x = x * (age >= torch.arange(count - 1, -1, -1, device=x.device))[..., None]
        return x
