"""Total cost of a forward pass: operations, peak memory, and the longest chain of dependent operations. The model runs
on the meta device, so that the load of the machine does not change the figures.
"""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anyformer.counting.flops import COSTS, inputs_of
from anyformer.counting.simulated_gpu import Device
from anyformer.counting.step_memory import Live
from anyformer.kernels.capture import graph_capture
from anyformer.models import Model
from anyformer.models.base import TransformerModule
from anyformer.models.call import Call
from anyformer.models.construct import skeleton
from anyformer.parts.computed import compute


@dataclasses.dataclass(frozen=True)
class ForwardCost:
    """The cost of a forward pass."""

    flops: int  # 2 per multiply-add of a product, 1 per output number of any other operation
    bytes: int  # peak memory, without the weights
    depth: int  # length of the longest chain of dependent operations; a kernel is one operation


def forward_cost(spec: Model, length: int, batch: int = 1, fused: bool = True, step: bool = False) -> ForwardCost:
    """Return the cost of a pass over `batch` texts of `length` tokens, or with `step` over the last token only.
    Attention is one kernel that stores no scores; without `fused`, it is two products and a softmax."""
    model = skeleton(spec).eval()
    compute(model)
    if not fused:
        model.kernel = "eager"
    inputs = {name: row.expand(batch, *row.shape[1:]) for name, row in inputs_of(spec, length).items()}
    state, call = None, model.__call__
    with torch.no_grad(), torch.device("meta"), graph_capture():
        if step:
            state, ids = model.new_state(), inputs["input_ids"]
            call(Call({"input_ids": ids[:, 1:]}, state, kernel=model.kernel))
            inputs = {"input_ids": ids[:, :1]}
        meter = Meter(model)
        with meter, MeteredDevice(model, meter):
            call(Call(inputs, state, kernel=model.kernel))
    return ForwardCost(meter.flops, meter.most, meter.depth)


def _scan(out: Any, x: Tensor, dt: Tensor, A: Tensor, *rest: Any) -> int:
    """x (B, T, I), A (N, I): 8 FLOPs per state, for the decay and its exponential, the input and two multiply-adds."""
    return 8 * x.numel() * A.shape[0]


def _fourier(out: Tensor, x: Tensor, *rest: Any) -> int:
    """2.5 N log N for a real transform of N numbers, 5 N log N for a complex one [Cooley and Tukey 1965]."""
    whole = max(out.numel(), x.numel())
    length = max(out.shape[-1], x.shape[-1], 2)
    return round((5 if out.is_complex() and x.is_complex() else 2.5) * whole * math.log2(length))


OTHER: dict[str, Callable[..., int]] = {
    "anyformer::selective_scan": _scan,
    "anyformer::wkv": lambda out, decay, u, k, *rest: 16 * k.numel(),  # 16 per number, as in `wkv_step`
    "aten::_fft_r2c": _fourier,
    "aten::_fft_c2r": _fourier,
    "aten::_fft_c2c": _fourier,
}
FREE = frozenset(("aten::empty", "aten::empty_like", "aten::new_empty", "aten::zeros", "aten::zeros_like", "aten::ones",
                  "aten::arange", "aten::full", "aten::detach", "aten::_to_copy", "aten::clone"))  # fmt: skip


class Meter(Live):
    """Measures peak memory, operations and the depth of every tensor."""

    def __init__(self, model: TransformerModule) -> None:
        super().__init__((*model.parameters(), *model.buffers()))
        self.flops = self.depth = 0
        self.depths: dict[int, int] = {}  # depth of each storage, by address

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out, name = super().__torch_dispatch__(func, types, args, kwargs), func._schema.name
        results = [each for each in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(each, Tensor)]
        if not results:
            return out
        cost = (COSTS | OTHER).get(name)
        view = name in FREE or (func.is_view and cost is None)
        if not view:
            self.flops += cost(out, *args) if cost else sum(each.numel() for each in results)
        self.deepen([*_tensors(args), *_tensors((kwargs or {}).values())], results, 0 if view else 1)
        return out

    def deepen(self, given: list[Tensor], results: list[Tensor], steps: int) -> None:
        depth = steps + max((self.depths.get(each.untyped_storage()._cdata, 0) for each in given), default=0)
        self.depth = max(self.depth, depth)
        for each in results:
            storage = each.untyped_storage()
            key = storage._cdata
            if key not in self.depths:
                weakref.finalize(storage, self.depths.pop, key, 0).atexit = False
            self.depths[key] = max(depth, self.depths.get(key, 0))


def _tensors(values: Any) -> list[Tensor]:
    """Return all tensors, including those in nested lists (as in torch.cat)."""
    tensors = []
    for value in values:
        tensors += [value] if isinstance(value, Tensor) else _tensors(value) if isinstance(value, (list, tuple)) else []
    return tensors


class MeteredDevice(Device):
    """Counts attention as one operation."""

    def __init__(self, model: TransformerModule, meter: Meter) -> None:
        super().__init__(model, None)
        self.meter = meter

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        self.meter.flops += 2 * math.prod(q.shape[:-1]) * k.shape[-2] * (q.shape[-1] + v.shape[-1])
        out = super().attend(q, k, v, mask)
        self.meter.deepen([q, k, v], [out], 1)
        return out
