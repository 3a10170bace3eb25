"""Mamba-2's mixer [Dao and Gu 2024]: heads that share what a token writes and reads; each head has one decay rate.

B rows, T tokens, D width, H heads of P channels (I = H P) in G groups, N states per channel, K size of the convolution.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels import few_rows
from anyformer.kernels.few_rows import NormWeights
from anyformer.kernels.mamba_step import dual_step
from anyformer.kernels.ssd import ssd, ssd_step
from anyformer.parts.activation import ACTIVATIONS, Activation
from anyformer.parts.decode_step import linear, norm_weights
from anyformer.parts.norm import Norm, RMSNorm
from anyformer.parts.op import Op
from anyformer.parts.recurrent.mamba import ConvolvingModule, ConvolvingStep, PackedRows, StepBias
from anyformer.runtime.context import Context
from anyformer.runtime.stores import PerRow
from anyformer.specs.field_types import Count, NonNegative
from anyformer.specs.part import Site


class DualState(Op, sees="past", called=("Mamba-2", "SSD", "state space duality")):
    """Mamba-2's mixer: a short causal convolution, the recurrence, a gate and a norm."""

    num_heads: Count
    head_width: Count = 64
    groups: Count = 1  # groups of heads that share what a token writes (b) and reads (c)
    states: Count = 128  # N, states per channel
    taps: Count = 4  # K, size of the convolution
    activation: Activation = "silu"  # after the convolution; the gate is always silu
    bias: bool = False  # bias of the input and output projections
    conv_bias: bool = True
    step_low: NonNegative = 0.0  # lower bound of the time step
    step_high: NonNegative | None = None  # upper bound of the time step
    norm: Norm = RMSNorm(eps=1e-5)
    bias_start: StepBias = StepBias()

    def check(self) -> None:
        if self.num_heads % self.groups:
            raise ValueError(f"num_heads {self.num_heads} is not a multiple of groups {self.groups}")


class DualStateModule(ConvolvingModule, of=DualState):
    def __init__(self, part: DualState, site: Site) -> None:
        super().__init__()
        self.starts = {**self.begins, "step_bias": part.bias_start}
        self.part, self.address = part, site.address
        H, I, shared = part.num_heads, part.num_heads * part.head_width, part.groups * part.states
        self.sizes = (I, shared, shared)
        self.gate = nn.Linear(site.width, I, bias=part.bias)
        self.up = nn.Linear(site.width, sum(self.sizes), bias=part.bias)  # x, b and c
        self.step = nn.Linear(site.width, H, bias=part.bias)
        self.conv = nn.Conv1d(sum(self.sizes), sum(self.sizes), part.taps, groups=sum(self.sizes), bias=part.conv_bias)
        self.step_bias = nn.Parameter(torch.empty(H))
        self.rate = nn.Parameter(torch.empty(H))  # A = -exp(rate)
        self.skip = nn.Parameter(torch.empty(H))
        self.norm = part.norm.build(site.child("norm", width=I))
        self.down = nn.Linear(I, site.width, bias=part.bias)
        self.activation = ACTIVATIONS[part.activation]

    def state_spec(self) -> PerRow:
        part = self.part
        state = part.num_heads, part.head_width, part.states
        shapes = {"window": (part.taps - 1, sum(self.sizes)), "state": state}
        return PerRow(shapes, dtypes={"state": torch.float32})

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        rows = PackedRows.from_context(ctx)
        part, x, store = self.part, rows.pack(x), ctx.store(self.address)
        gate, step, dtype = self.gate(x), self.step(x), x.dtype
        mixed = self.convolve(self.up(x), rows, store, ctx)
        # fp32 up to the norm, whatever the model's dtype
        x, b, c = mixed.float().split(self.sizes, dim=-1)
        x = x.unflatten(-1, (part.num_heads, -1))
        b, c = (t.unflatten(-1, (part.groups, -1)) for t in (b, c))
        dt = F.softplus(step.float() + self.step_bias.float()).clamp(part.step_low, part.step_high)
        if rows.real is not None:
            dt = dt * rows.real  # no time passes at a pad: the state does not change
        A = -torch.exp(self.rate.float())
        state = None if store is None else store.tensors["state"].expand(x.shape[0], -1, -1, -1)
        if x.shape[1] == 1 and state is not None:
            y, last = ssd_step(x[:, 0], dt[:, 0], A, b[:, 0], c[:, 0], state)
            y = y[:, None]
        else:
            y, last = ssd(x, dt, A, b, c, state=state, keep=rows.keep)
        if store is not None:
            store.replace("state", last)
        y = torch.addcmul(y, x, self.skip.float()[:, None]).flatten(2) * F.silu(gate.float())
        return rows.unpack(self.down(ctx.tap(self.address, "mixed", self.norm(y.to(dtype)))))


class DualStateStep(ConvolvingStep, of=DualStateModule):
    """The fused decoding step."""

    layers = ("gate", "up", "step", "down")

    def obstacle(self, rows: int) -> str | None:
        norm = self.op.norm
        if (why := super().obstacle(rows)) is not None:
            return why
        if {weight.dtype for weight in norm.parameters()} - {self.dtype} or norm_weights(norm) is None:
            return f"{type(norm).__name__} in {type(self.op).__name__}"
        return None

    def __call__(self, x: Tensor, norm: NormWeights | None, shortcut: Tensor | None, ctx: Context) -> Tensor:
        op, part, store, out_norm = self.op, self.op.part, ctx.store(self.op.address), norm_weights(self.op.norm)
        assert store is not None and out_norm is not None
        sizes = [op.sizes[0], sum(op.sizes), part.num_heads]
        gate, up, step = linear(x, op.gate, op.up, op.step, norm=norm).split(sizes, dim=1)
        mixed = self.convolve(up, store)
        limits = part.step_low, math.inf if part.step_high is None else part.step_high
        y = dual_step(mixed, gate, step, op.step_bias, op.rate, op.skip, store.tensors["state"], limits)
        return linear(few_rows.norm_rows(y, out_norm), op.down, onto=shortcut)
