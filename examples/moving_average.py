"""A custom mixer: a gated exponential moving average of the past, with a learned decay per channel.

B rows, T tokens, D width of the model, W width of the average.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.scan import scan
from anyformer.parts.base import PartModule
from anyformer.parts.init import Initializer
from anyformer.parts.op import Op
from anyformer.parts.recurrent.mamba import PackedRows
from anyformer.runtime.context import Context
from anyformer.runtime.stores import PerRow
from anyformer.specs.field_types import Count, Positive
from anyformer.specs.part import Site


class MovingAverage(Op, sees="past"):
    """h[t] = a h[t-1] + (1 - a) v[t]; the output is o(silu(gate) h[t]). The decay a of each channel is learned."""

    width: Count | None = None  # W; default: the width of the model
    longest: Positive = 256.0  # initial half-life of the slowest channel, in tokens


class MovingAverageModule(PartModule, of=MovingAverage):  # MovingAverage.build(site) returns it
    def __init__(self, part: MovingAverage, site: Site) -> None:
        super().__init__()
        self.address = site.address  # of this mixer's decoding state
        self.width = part.width or site.width
        self.v = nn.Linear(site.width, self.width, bias=False)
        self.gate = nn.Linear(site.width, self.width, bias=False)
        self.o = nn.Linear(self.width, site.width, bias=False)
        self.pace = nn.Parameter(torch.empty(self.width))  # a = exp(-exp(pace))
        self.starts = {"pace": Paces(longest=part.longest)}

    def state_spec(self) -> PerRow:
        return PerRow({"average": (1, self.width)}, dtypes={"average": torch.float32})

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        rows = PackedRows.from_context(ctx)  # moves real tokens to the front; knows where documents begin
        x, store = rows.pack(x), ctx.store(self.address)
        v = self.v(x).float()
        # time step per token: 0 for padding, which does not change the state
        time = torch.ones_like(v) if rows.real is None else rows.real.expand_as(v)
        fade = -torch.exp(self.pace.float())[None]  # (1, W): log a
        one = v.new_ones(*v.shape[:2], 1)
        before = None if store is None else store.tensors["average"].expand(x.shape[0], -1, -1)
        h, last = scan(v * -torch.expm1(fade), time, fade, one, one, before, rows.keep)
        if store is not None:
            store.replace("average", last)
        return rows.unpack(self.o(F.silu(self.gate(x)) * h.to(x.dtype)))


class Paces(Initializer):
    """Half-lives from 1 to `longest` tokens, evenly spaced in the logarithm."""

    longest: float

    def fill(self, tensor: Tensor, generator: torch.Generator, depth: int) -> None:
        half = self.longest ** torch.linspace(0, 1, len(tensor), device=tensor.device)
        tensor.copy_((torch.log(torch.tensor(2.0)) / half).log())
