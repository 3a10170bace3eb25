"""Gated recurrent networks: the long short-term memory [Hochreiter and Schmidhuber 1997] and the gated recurrent unit
[Cho et al. 2014].

B rows, T tokens, D width, W width of the hidden state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anyformer.kernels.capture import can_read_values
from anyformer.parts.base import PartModule
from anyformer.parts.forward_override import is_plain
from anyformer.parts.init import Uniform
from anyformer.parts.op import Op
from anyformer.parts.recurrent.mamba import PackedRows
from anyformer.runtime.context import Context
from anyformer.runtime.stores import PerRow
from anyformer.runtime.taps import TapNames
from anyformer.specs.field_types import Count
from anyformer.specs.part import Site


class Recurrent(Op, sees="past", abstract=True):
    """A recurrent network: each token changes a hidden state, which is also the output."""

    width: Count | None = None  # W; default: D; a different width is projected back to D


class LSTM(Recurrent, sees="past", called=("long short-term memory", "RNN", "recurrent")):
    """Three gates, computed from the token and the previous hidden state, decide what the cell keeps, what is written
    to it and what is read from it."""


class GRU(Recurrent, sees="past", called=("gated recurrent unit",)):
    """One gate mixes the previous state with a candidate, another decides what the candidate sees of the state [Cho et
    al. 2014]. It has one state instead of the LSTM's two, and three products instead of four."""


# Documents of very different lengths would make these rows nearly all padding. Above this factor they are read
# token by token.
MOST_PADDING = 8
State = tuple[Tensor, ...]  # (B, W) each; the first is the hidden state


class RecurrentModule(PartModule):
    tapped: ClassVar[TapNames] = {"mixed": None}
    states: ClassVar[tuple[str, ...]]
    num_gates: ClassVar[int]
    kernel: ClassVar[Callable[..., Any]]  # torch's function for all tokens

    def __init__(self, part: Recurrent, site: Site) -> None:
        super().__init__()
        self.address, self.width = site.address, part.width or site.width
        self.gates = nn.Linear(site.width, self.num_gates * self.width)  # gates from the token, in torch's order
        self.recurrent = self.make_recurrent()
        self.o = nn.Linear(self.width, site.width) if self.width != site.width else None
        start = Uniform(low=-(self.width**-0.5), high=self.width**-0.5)
        self.starts: dict[str, Any] = {"gates.weight": start, "recurrent.weight": start}

    def make_recurrent(self) -> nn.Linear:
        return nn.Linear(self.width, self.num_gates * self.width)

    def state_spec(self) -> PerRow:
        return PerRow({name: (self.width,) for name in self.states})

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        rows, store = PackedRows.from_context(ctx), ctx.store(self.address)
        x = rows.pack(x)
        if store is None:
            before = x.new_zeros(len(self.states), x.shape[0], self.width).unbind(0)
        else:
            before = tuple(store.tensors[name].expand(x.shape[0], -1).to(x.dtype) for name in self.states)
        plain = is_plain(self.gates) and is_plain(self.recurrent) and can_read_values() and not x.is_meta
        if not plain or (store is not None and (rows.keep is not None or rows.real is not None)):
            y, last = self.steps(x, before, rows)
        elif rows.keep is None:  # pads are at the end, where they change no real token
            y, last = self.all_at_once(x, before)
        else:
            y, last = self.by_document(x, before, rows), before
        if store is not None:
            for name, tensor in zip(self.states, last, strict=True):
                store.replace(name, tensor)
        y = ctx.tap(self.address, "mixed", y)
        return rows.unpack(y if self.o is None else self.o(y))

    def all_at_once(self, x: Tensor, before: State) -> tuple[Tensor, State]:
        """Run torch's kernel, which takes a single state as a tensor and two states as a list."""
        bias = self.recurrent.bias
        bias = torch.zeros_like(self.gates.bias) if bias is None else bias
        weights = [self.gates.weight, self.recurrent.weight, self.gates.bias, bias]
        states = [each[None].contiguous() for each in before]
        initial = states if len(states) > 1 else states[0]
        y, *last = type(self).kernel(x, initial, weights, True, 1, 0.0, self.training, False, True)
        return y, tuple(each[0] for each in last)

    def by_document(self, x: Tensor, before: State, rows: PackedRows) -> Tensor:
        """Put each document into a separate row, so that torch's kernel can read all of them side by side."""
        assert rows.keep is not None
        first = rows.keep == 0
        first[:, 0] = True
        starts = first.flatten().nonzero()[:, 0]  # (N,) for N documents
        document = first.flatten().cumsum(0) - 1  # (B T)
        place = torch.arange(len(document), device=x.device) - starts[document]  # within the document
        longest = int(place.max()) + 1
        if len(starts) * longest > MOST_PADDING * len(document):
            return self.steps(x, before, rows)[0]
        apart = x.new_zeros(len(starts), longest, x.shape[-1])
        apart[document, place] = x.flatten(0, 1)
        y, _ = self.all_at_once(apart, x.new_zeros(len(before), len(starts), self.width).unbind(0))
        return y[document, place].view(*x.shape[:2], self.width)

    def steps(self, x: Tensor, before: State, rows: PackedRows) -> tuple[Tensor, State]:
        """Run token by token. A new document begins with a zero state, and a pad does not change the state."""
        state, outs, gates = before, [], self.gates(x)
        for t in range(x.shape[1]):
            if rows.keep is not None:
                keep = rows.keep[:, t, None].to(x.dtype)
                state = tuple(each * keep for each in state)
            new = self.step(gates[:, t], state)
            if rows.real is not None:
                real = rows.real[:, t].bool()
                new = tuple(torch.where(real, after, each) for after, each in zip(new, state, strict=True))
            state = new
            outs.append(state[0])
        return torch.stack(outs, dim=1), state

    def step(self, gates: Tensor, state: State) -> State:
        """Return the state after a token with these gates (B, num_gates W)."""
        raise NotImplementedError


class LSTMModule(RecurrentModule, of=LSTM):
    states = ("hidden", "cell")
    num_gates = 4  # write, keep, value, read
    kernel = torch.lstm

    def make_recurrent(self) -> nn.Linear:
        return nn.Linear(self.width, 4 * self.width, bias=False)  # the bias of the token's gates is enough

    def step(self, gates: Tensor, state: State) -> State:
        hidden, cell = state
        write, keep, value, read = (gates + self.recurrent(hidden)).chunk(4, dim=-1)
        cell = torch.sigmoid(keep) * cell + torch.sigmoid(write) * torch.tanh(value)
        return torch.sigmoid(read) * torch.tanh(cell), cell


class GRUModule(RecurrentModule, of=GRU):
    states = ("hidden",)
    num_gates = 3  # reset, keep, value
    kernel = torch.gru

    def step(self, gates: Tensor, state: State) -> State:
        (hidden,) = state
        token, past = gates.chunk(3, dim=-1), self.recurrent(hidden).chunk(3, dim=-1)
        reset, keep = (torch.sigmoid(a + b) for a, b in zip(token[:2], past[:2], strict=True))
        value = torch.tanh(token[2] + reset * past[2])
        return (value + keep * (hidden - value),)  # under autocast their dtypes differ, so not torch.lerp
