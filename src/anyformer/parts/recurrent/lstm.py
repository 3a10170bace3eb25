"""The long short-term memory, with which the lectures begin [Hochreiter and Schmidhuber 1997].

B rows, T tokens, D width, W width of the memory.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anyformer.kernels.recording import is_recording
from anyformer.parts.init import Uniform
from anyformer.parts.op import Op
from anyformer.parts.recurrent.mamba import PackedRows
from anyformer.runtime.context import Context
from anyformer.runtime.state import PerRow
from anyformer.runtime.taps import Declared
from anyformer.specs.checks import at_least
from anyformer.specs.part import Site


class LSTM(Op, sees="past", called=("long short-term memory", "RNN", "recurrent")):
    """From left to right: what is kept of the cell, what is written to it and what is said of it are gates of the token
    and of what was said before."""

    width: int | None = None  # W; default: D, and projected back to D where it is another

    def check(self) -> None:
        at_least(self, 1, "width")

    def build(self, site: Site) -> nn.Module:
        return LSTMModule(self, site)


class LSTMModule(nn.Module):
    tapped: ClassVar[Declared] = {"mixed": None}

    def __init__(self, part: LSTM, site: Site) -> None:
        super().__init__()
        self.address, self.width = site.address, part.width or site.width
        self.gates = nn.Linear(site.width, 4 * self.width)  # of the token, in torch's order: write, keep, value, say
        self.recurrent = nn.Linear(self.width, 4 * self.width, bias=False)
        self.o = nn.Linear(self.width, site.width) if self.width != site.width else None
        start = Uniform(low=-(self.width**-0.5), high=self.width**-0.5)
        self.starts: dict[str, Any] = {"gates.weight": start, "recurrent.weight": start}

    def state_spec(self) -> PerRow:
        return PerRow({"said": (self.width,), "cell": (self.width,)})

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        rows, store = PackedRows.from_context(ctx), ctx.store(self.address)
        x = rows.pack(x)
        if store is None:
            before = x.new_zeros(2, x.shape[0], self.width).unbind(0)
        else:
            before = tuple(store.tensors[name].expand(x.shape[0], -1).to(x.dtype) for name in ("said", "cell"))
        plain = type(self.gates) is type(self.recurrent) is nn.Linear  # neither adapted nor quantised
        goes_on = rows.keep is None and (rows.real is None or store is None)  # pads at the end change no real token
        if plain and goes_on and not is_recording() and not x.is_meta:
            weights = [self.gates.weight, self.recurrent.weight, self.gates.bias, torch.zeros_like(self.gates.bias)]
            states = [each[None].contiguous() for each in before]
            y, said, cell = torch.lstm(x, states, weights, True, 1, 0.0, self.training, False, True)
            last = said[0], cell[0]
        else:
            y, last = self.steps(x, before, rows)
        if store is not None:
            for name, tensor in zip(("said", "cell"), last, strict=True):
                store.replace(name, tensor)
        y = ctx.tap(self.address, "mixed", y)
        return rows.unpack(y if self.o is None else self.o(y))

    def steps(self, x: Tensor, before: Any, rows: PackedRows) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """One token after another: a new document begins with nothing, and a pad leaves all as it was."""
        said, cell = before
        found, gates = [], self.gates(x)
        for t in range(x.shape[1]):
            if rows.keep is not None:
                keep = rows.keep[:, t, None].to(x.dtype)
                said, cell = said * keep, cell * keep
            write, hold, value, say = (gates[:, t] + self.recurrent(said)).chunk(4, dim=-1)
            new = torch.sigmoid(hold) * cell + torch.sigmoid(write) * torch.tanh(value)
            out = torch.sigmoid(say) * torch.tanh(new)
            if rows.real is not None:
                real = rows.real[:, t].bool()
                new, out = torch.where(real, new, cell), torch.where(real, out, said)
            said, cell = out, new
            found.append(said)
        return torch.stack(found, dim=1), (said, cell)
