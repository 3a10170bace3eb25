"""Structured state spaces: a linear recurrence that is the same for every token, and therefore also a convolution
[Gu et al. 2021], with a diagonal state matrix [Gu et al. 2022].

    h'(t) = A h(t) + B x(t),   y(t) = C h(t)                      in continuous time, per channel
    h[t] = exp(dt A) h[t-1] + (exp(dt A) - 1) / A B x[t]          for constant x during a step dt (zero-order hold)
    y[t] = sum over l of K[l] x[t - l],   K[l] = C exp(dt A)^l (exp(dt A) - 1) / A B

B rows, T tokens, D width = channels, N complex states per channel, one of each conjugate pair.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.s4 import s4, s4_by_steps
from anyformer.parts.activation import ACTIVATIONS, Activation
from anyformer.parts.base import PartModule
from anyformer.parts.init import Initializer, Normal, Value
from anyformer.parts.op import Op
from anyformer.parts.recurrent.mamba import PackedRows
from anyformer.runtime.context import Context
from anyformer.runtime.stores import PerRow
from anyformer.runtime.taps import TapNames
from anyformer.specs.field_types import Even, Positive
from anyformer.specs.part import Site

# -- initialisation ---------------------------------------------------------------------------------------------------


def hippo(states: int) -> tuple[Tensor, Tensor]:
    """Return the `states` // 2 positive frequencies of HiPPO's matrix, and the magnitudes of B for them, in the
    basis of its eigenvectors. HiPPO-LegS stores the past as coefficients of Legendre polynomials; without a rank-one
    term it is -1/2 + a skew matrix [Gu et al. 2020; 2022], so its eigenvalues are -1/2 + i frequency."""
    n = torch.arange(states, dtype=torch.float64)
    skew = torch.tril(torch.sqrt((n[:, None] + 0.5) * (n + 0.5)), -1)
    frequencies, vectors = torch.linalg.eigh(1j * (skew - skew.T))
    sizes = (vectors.mH @ torch.sqrt(2 * n + 1).to(vectors.dtype)).abs()
    return frequencies[states // 2 :], sizes[states // 2 :]


class Frequencies(Initializer, called=("S4D-LegS", "HiPPO")):
    """The imaginary parts of the eigenvalues of HiPPO's matrix."""

    def fill(self, tensor: Tensor, generator: torch.Generator, depth: int) -> None:
        tensor.copy_(hippo(2 * tensor.shape[-1])[0].expand_as(tensor))


class ReadStates(Initializer):
    """C B of each state: HiPPO's B times a complex C of normal random numbers."""

    def fill(self, tensor: Tensor, generator: torch.Generator, depth: int) -> None:
        tensor.normal_(0.0, math.sqrt(0.5), generator=generator)
        tensor.mul_(hippo(2 * tensor.shape[-2])[1][:, None].to(tensor))


class LogUniform(Initializer):
    """The logarithm of numbers that are log-uniform between `low` and `high`."""

    low: Positive
    high: Positive

    def fill(self, tensor: Tensor, generator: torch.Generator, depth: int) -> None:
        tensor.uniform_(math.log(self.low), math.log(self.high), generator=generator)


# -- the mixer --------------------------------------------------------------------------------------------------------


class S4(Op, sees="past", called=("S4D", "structured state space", "HiPPO")):
    """A state space that is the same for every token: trained as one long convolution by Fourier transforms, decoded as
    a recurrence with a state of fixed size. Unlike in Mamba, what it keeps does not depend on the token."""

    states: Even = 64  # 2 N: complex states in conjugate pairs
    activation: Activation = "gelu"  # applied to the output of the states
    gated: bool = True  # the output layer is a gated linear unit instead of a linear layer
    step_low: Positive = 0.001  # lowest initial step dt of a channel; a state lasts about 1 / dt tokens
    step_high: Positive = 0.1  # highest initial step

    def check(self) -> None:
        if self.step_low > self.step_high:
            raise ValueError(f"S4.step_low is {self.step_low}; it must be at most step_high, {self.step_high}")


class S4Module(PartModule, of=S4):
    tapped: ClassVar[TapNames] = {"mixed": None}

    def __init__(self, part: S4, site: Site) -> None:
        super().__init__()
        self.address, self.activation, self.gated = site.address, ACTIVATIONS[part.activation], part.gated
        D, self.num_states = site.width, part.states // 2
        self.step = nn.Parameter(torch.empty(D))  # log dt
        self.rate = nn.Parameter(torch.empty(D, self.num_states))  # the real part of A is -exp(rate)
        self.frequency = nn.Parameter(torch.empty(D, self.num_states))  # the imaginary part
        self.read = nn.Parameter(torch.empty(D, self.num_states, 2))  # C B; only their product matters
        self.skip = nn.Parameter(torch.empty(D))
        self.o = nn.Linear(D, 2 * D if part.gated else D)
        self.starts: dict[str, Any] = {
            "step": LogUniform(low=part.step_low, high=part.step_high), "rate": Value(value=math.log(0.5)),
            "frequency": Frequencies(), "read": ReadStates(), "skip": Normal(std=1.0),
        }  # fmt: skip

    def state_spec(self) -> PerRow:
        return PerRow({"state": (*self.rate.shape, 2)}, dtypes={"state": torch.float32})

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        rows, store = PackedRows.from_context(ctx), ctx.store(self.address)
        x = rows.pack(x)
        x32 = x.to(torch.promote_types(x.dtype, torch.float32))  # up to the activation
        x32 = x32 if rows.real is None else x32 * rows.real.to(x32.dtype)
        real, pace, c, state = None if rows.real is None else rows.real[..., 0], *self.system(x32.dtype), None
        if store is not None:
            state = torch.view_as_complex(store.tensors["state"].expand(x.shape[0], -1, -1, -1).to(x32.dtype))
        arguments = x32, pace, c, state, rows.keep, real
        one = x.shape[1] == 1 and store is not None
        y, last = s4_by_steps(*arguments) if one else s4(*arguments, last=store is not None)
        if store is not None and last is not None:
            store.replace("state", torch.view_as_real(last))
        y = self.activation(torch.addcmul(y, x32, self.skip.to(x32.dtype))).to(x.dtype)
        y = self.o(ctx.tap(self.address, "mixed", y))
        return rows.unpack(F.glu(y, dim=-1) if self.gated else y)

    def system(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return dt A in fp64, and C (exp(dt A) - 1) / A B, of each channel and state (D, N)."""
        A = torch.complex(-torch.exp(self.rate.double()), self.frequency.double())
        pace = A * torch.exp(self.step.double())[:, None]
        c = torch.view_as_complex(self.read.double().contiguous()) * (torch.exp(pace) - 1) / A
        return pace, torch.complex(c.real.to(dtype), c.imag.to(dtype))
