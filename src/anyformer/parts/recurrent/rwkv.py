"""RWKV-4's two mixers [Peng et al. 2023]: both blend each token with the previous one; then the time mix averages over
the whole past, and the channel mix is a gated feed-forward.

B rows, T tokens, D width, A width of the average, F inner width.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.wkv import wkv, wkv_last, wkv_step
from anyformer.parts.base import PartModule
from anyformer.parts.init import Initializer, Value
from anyformer.parts.op import Op
from anyformer.parts.recurrent.mamba import PackedRows
from anyformer.parts.residual import Residual
from anyformer.runtime.context import Context
from anyformer.runtime.stores import PerRow, Store
from anyformer.runtime.taps import TapNames
from anyformer.specs.field_types import Count, Natural
from anyformer.specs.part import Site


class TimeMix(Op, sees="past", called=("RWKV", "WKV", "time mixing")):
    """RWKV's attention: a gated average of the past, weighted by keys that decay at one rate per channel."""

    width: Count | None = None  # A; default: D
    halve_every: Natural = 0  # see `Halved`


class ChannelMix(Op, sees="past", called=("RWKV feed-forward", "channel mixing")):
    """RWKV's feed-forward: gate * down(relu(up)^2)."""

    width: Count  # F
    halve_every: Natural = 0  # see `Halved`


class Halved(Residual, sees="itself"):
    """x + branch, halved in every `every`-th layer, only in evaluation, so that fp16 does not overflow. The branches of
    later layers, which would otherwise weigh more, are scaled down by their own `halve_every`."""

    every: Count  # layers


class HalvedModule(PartModule, of=Halved):
    def __init__(self, part: Halved, site: Site) -> None:
        super().__init__()
        self.halves = (site.layer + 1) % part.every == 0

    def forward(self, x: Tensor, branch: Tensor) -> Tensor:
        x = x + branch
        return x / 2 if self.halves and not self.training else x


class ShiftModule(PartModule):
    """Base class of both mixers: it blends each token with the previous one for the projections."""

    def __init__(self, part: Any, site: Site, *blends: str) -> None:
        super().__init__()
        self.part, self.address, self.width = part, site.address, site.width
        self.names = blends
        for name in blends:
            self.register_parameter(name, nn.Parameter(torch.empty(site.width)))
        self.share = 0.5 ** (site.layer // part.halve_every) if part.halve_every else 1.0

    def state_spec(self) -> PerRow:
        return PerRow({"last": (1, self.width)})

    def blends(self, x: Tensor, rows: PackedRows, store: Store | None) -> list[Tensor]:
        """One blend (B, T, D) per name: a share (D,) of the token, the rest of the previous token of its document."""
        past = x.new_zeros(()) if store is None else store.tensors["last"].to(x.dtype)
        whole = torch.cat((past.expand(x.shape[0], 1, -1 if past.dim() else x.shape[2]), x), dim=1)
        before = whole[:, :-1]
        if rows.keep is not None:
            before = before * rows.keep[..., None].to(x.dtype)
        if store is not None:
            store.replace("last", rows.last_tokens(whole, 1))
        return [torch.lerp(before, x, self.get_parameter(name)) for name in self.names]

    def shrink(self, x: Tensor) -> Tensor:
        """Scale x before the output projection, so that the projection does not overflow either."""
        return x if self.training or self.share == 1.0 else x * self.share


class TimeMixModule(ShiftModule, of=TimeMix):
    tapped: ClassVar[TapNames] = {"k": None, "v": None, "mixed": None, "out": "attentions"}  # `out` as published

    def __init__(self, part: TimeMix, site: Site) -> None:
        super().__init__(part, site, "mix_k", "mix_v", "mix_gate")
        D, A = site.width, part.width or site.width
        self.inner = A
        self.k = nn.Linear(D, A, bias=False)
        self.v = nn.Linear(D, A, bias=False)
        self.gate = nn.Linear(D, A, bias=False)
        self.o = nn.Linear(A, D, bias=False)
        self.decay = nn.Parameter(torch.empty(A))  # a weight decays by e^-e^decay per token
        self.bonus = nn.Parameter(torch.empty(A))  # added to the key of the token itself
        first, last = site.layer / max(site.depth - 1, 1), 1 - site.layer / site.depth
        self.starts = {
            "decay": Ramp(low=-5.0, rise=8.0, power=0.7 + 1.3 * first, closed=True),
            "bonus": Value(value=1.0),  # as in the published class; in the paper: log 0.3 and a zigzag
            "mix_k": Ramp(power=last),
            "mix_v": Ramp(low=0.3 * first, power=last),
            "mix_gate": Ramp(power=0.5 * last),
        }

    def state_spec(self) -> PerRow:
        return PerRow({"last": (1, self.width), "sums": (3, self.inner)}, dtypes={"sums": torch.float32})

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        rows = PackedRows.from_context(ctx)
        store = ctx.store(self.address)
        x = rows.pack(x)
        for_k, for_v, for_gate = self.blends(x, rows, store)
        k, v, gate = self.k(for_k), self.v(for_v), torch.sigmoid(self.gate(for_gate))
        k, v = (ctx.tap(self.address, name, t).float() for name, t in (("k", k), ("v", v)))
        decay, bonus = -torch.exp(self.decay.float()), self.bonus.float()
        state = k.new_zeros(1, 3, self.inner) if store is None else store.tensors["sums"]
        state = state.expand(x.shape[0], -1, -1)
        if x.shape[1] == 1:
            y, last = wkv_step(decay, bonus, k[:, 0], v[:, 0], state)
            y, last = y[:, None], last if rows.real is None else torch.where(rows.real.bool(), last, state)
        else:
            y = wkv(decay, bonus, k, v, None if store is None else state, rows.keep)
            if store is not None:
                last = wkv_last(decay, k, v, state, *ctx.once("ages", lambda: ages(rows, x)))
        if store is not None:
            store.replace("sums", last)
        y = ctx.tap(self.address, "mixed", self.shrink(gate * y.to(x.dtype)))
        return ctx.tap(self.address, "out", rows.unpack(self.o(y)))


class ChannelMixModule(ShiftModule, of=ChannelMix):
    def __init__(self, part: ChannelMix, site: Site) -> None:
        super().__init__(part, site, "mix_up", "mix_gate")
        self.up = nn.Linear(site.width, part.width, bias=False)
        self.gate = nn.Linear(site.width, site.width, bias=False)
        self.down = nn.Linear(part.width, site.width, bias=False)
        last = 1 - site.layer / site.depth
        self.starts = {"mix_up": Ramp(power=last), "mix_gate": Ramp(power=last)}

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        rows = PackedRows.from_context(ctx)
        x = rows.pack(x)
        for_up, for_gate = self.blends(x, rows, ctx.store(self.address))
        inner = torch.relu(self.up(for_up)).square()
        return rows.unpack(torch.sigmoid(self.gate(for_gate)) * self.down(self.shrink(inner)))


def ages(rows: PackedRows, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """(1 or B, 1 + T) the number of real tokens since the previous state and since each token, and which of them count:
    neither pads nor anything before the last document."""
    real = x.new_ones(1, x.shape[1], dtype=torch.float32) if rows.real is None else rows.real[..., 0]
    count = real.flip(1).cumsum(1).flip(1)
    age = torch.cat((count[:, :1], count - 1), dim=1).clamp(min=0)
    if rows.real is None and rows.keep is None:
        return age, None
    seen = F.pad(real, (1, 0), value=1.0).bool()
    if rows.keep is not None:
        seen = seen & (F.pad(1 - rows.keep, (0, 1)).flip(1).cumsum(1).flip(1) == 0)
    return age, seen


# -- initialisation ---------------------------------------------------------------------------------------------------


class Ramp(Initializer):
    """low + rise * (i / n)^power for index i of n; if `closed`, (i / (n - 1))^power, which ends at 1."""

    low: float = 0.0
    rise: float = 1.0
    power: float = 1.0
    closed: bool = False

    def fill(self, tensor: Tensor, generator: torch.Generator, depth: int) -> None:
        places = torch.arange(len(tensor), device=tensor.device) / max(len(tensor) - self.closed, 1)
        tensor.copy_(self.low + self.rise * places**self.power)


class Orthogonal(Initializer):
    """Orthogonal rows or columns [Saxe et al. 2014], times gain * sqrt(max(1, outputs / inputs))."""

    gain: float = 1.0

    def fill(self, tensor: Tensor, generator: torch.Generator, depth: int) -> None:
        rows, columns = tensor.shape
        whole = torch.empty(rows, columns, device=tensor.device)  # QR decomposition needs fp32
        gain = self.gain * math.sqrt(max(1.0, rows / columns))
        tensor.copy_(nn.init.orthogonal_(whole, gain, generator=generator))
