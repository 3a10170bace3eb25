"""Fused Triton kernels for a decoding step, which need few launches (kernels/few_rows.py).

    with decode_kernels(model, rows=1) as used:      # one token per row, on CUDA, without gradients
        ...

A residual step with attention, Mamba's mixer, a feed-forward or experts becomes two to eight launches: the norm is
fused into the input projections, gate and activation into the inner layer, the residual sum into the last layer. Other
norms and linear layers have separate kernels, and modules without a kernel run unchanged. Outputs differ only by the
order of sums. The model is restored after the block. `used` reports how many residual steps were fused, and why others
were not. An op or a norm offers its kernels next to its module (parts/decode_step.py); another kind of residual step
defines its own `FewRowsForward`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anyformer.kernels import few_rows
from anyformer.parts.decode_step import NORM_READERS, decode_step, linear, norm_weights
from anyformer.parts.forward_override import ForwardOverride, is_product
from anyformer.parts.fused_linear import Concatenable
from anyformer.parts.residual import ScaledModule
from anyformer.runtime.context import Context
from anyformer.stacks.block import ParallelModule
from anyformer.stacks.sublayer import SublayerModule, apply


@dataclasses.dataclass
class Used:
    """Which residual steps run as fused kernels."""

    fused: int = 0  # number of fused residual steps
    others: Counter[str] = dataclasses.field(default_factory=Counter)  # number of others, by reason

    def __str__(self) -> str:
        others = "; ".join(f"{count} not: {why}" for why, count in self.others.items())
        return f"{self.fused} of {self.fused + self.others.total()} residual steps fused" + (others and f" ({others})")


@contextlib.contextmanager
def decode_kernels(model: nn.Module, rows: int) -> Iterator[Used]:
    """Use fused kernels for decoding steps of `rows` rows inside the block, if the device has them."""
    used, overrides = Used(), []
    like = next(model.parameters())
    if few_rows.fits(like, rows) and not torch.is_autocast_enabled("cuda"):
        for module in model.modules():
            why = obstacle(module, rows) if isinstance(module, SublayerModule) else None
            if why is not None:
                used.others[why] += 1
                continue
            used.fused += isinstance(module, SublayerModule)
            if (kind := fused_forward(module)) is not None:
                overrides.append(kind(module))
    else:
        used.others.update(f"{rows} rows of {like.dtype}" for m in model.modules() if isinstance(m, SublayerModule))
    for override in overrides:
        override.install()
    try:
        yield used
    finally:
        for override in overrides:
            override.remove()


# -- what can be fused -------------------------------------------------------------------------------------------------


def obstacle(step: SublayerModule, rows: int) -> str | None:
    """Return the reason why a residual step of this many rows has no fused kernel, or None."""
    if fused_forward(step) is None:
        return "an unusual residual step"
    if step.pre_norm is not None and norm_weights(step.pre_norm) is None:
        return f"{type(step.pre_norm).__name__} before {type(step.op).__name__}"
    fused = decode_step(step.op)
    if fused is None:
        return type(step.op).__name__
    if (why := fused.obstacle(rows)) is not None:
        return why
    dtype, first = fused.dtype, next(step.op.parameters(), None)
    if step.fp32_stream and (first is None or first.dtype != dtype):  # the stream is rounded to the first type
        return f"{type(step.op).__name__} with several dtypes"
    norm = None if step.pre_norm is None else norm_weights(step.pre_norm)
    weight = None if norm is None else norm.weight
    if weight is not None and dtype.is_floating_point and dtype.itemsize > 1 and weight.dtype != dtype:
        return "a norm with a different dtype than the next layer"
    return None


def takes(x: Tensor, like: Tensor | None = None) -> bool:
    """Whether x is one token per row and has few enough rows; `like` is a weight (default: dtype and device of x)."""
    return x.dim() == 3 and x.shape[1] == 1 and few_rows.fits(x if like is None else like, x.shape[0])


# -- modules that use the kernels --------------------------------------------------------------------------------------


class FewRowsForward(ForwardOverride):
    """The forward of one kind of module by fused kernels. It calls `replaced` for inputs without a kernel."""

    kinds: ClassVar[list[type[FewRowsForward]]] = []
    same_function: ClassVar[bool] = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        FewRowsForward.kinds.append(cls)

    @staticmethod
    def covers(module: nn.Module) -> bool:
        """Whether this class is for such modules."""
        raise NotImplementedError


def fused_forward(module: nn.Module) -> type[FewRowsForward] | None:
    return next((kind for kind in FewRowsForward.kinds if kind.covers(module)), None)


class FewRowsLinear(FewRowsForward):
    @staticmethod
    def covers(module: nn.Module) -> bool:
        return is_product(module)

    def __call__(self, x: Tensor) -> Tensor:
        layer, rows = self.module, x.numel() // max(x.shape[-1], 1)
        if x.dtype != layer.weight.dtype or not few_rows.fits(x, rows) or not layer.weight.is_contiguous():
            return self.replaced(x)
        return linear(x.reshape(rows, x.shape[-1]), layer).view(*x.shape[:-1], layer.out_features)


class FewRowsQuantized(FewRowsForward):
    @staticmethod
    def covers(module: nn.Module) -> bool:
        return isinstance(module, Concatenable)

    def __call__(self, x: Tensor) -> Tensor:
        layer = self.module
        if not few_rows.fits(x, 1) or x.numel() != layer.in_features:
            return self.replaced(x)
        return linear(x.reshape(1, -1), layer).view(*x.shape[:-1], layer.out_features)


class FewRowsNorm(FewRowsForward):
    @staticmethod
    def covers(module: nn.Module) -> bool:
        return type(module) in NORM_READERS

    def __call__(self, x: Tensor) -> Tensor:
        norm, rows = norm_weights(self.module), x.numel() // max(x.shape[-1], 1)
        mixed = norm is None or (norm.weight is not None and norm.weight.dtype != x.dtype)
        if norm is None or mixed or not few_rows.fits(x, 1) or rows > 4096:
            return self.replaced(x)
        return few_rows.norm_rows(x.reshape(rows, x.shape[-1]), norm).view(x.shape)


class FewRowsSublayer(FewRowsForward):
    def __init__(self, module: SublayerModule) -> None:
        super().__init__(module)
        self.op = decode_step(module.op)

    @staticmethod
    def covers(module: nn.Module) -> bool:
        return type(module) is SublayerModule and module.skip is None

    def __call__(self, x: Tensor, ctx: Context, shortcut: Tensor | None = None) -> Tensor:
        step, op = self.module, self.op
        assert op is not None  # see `obstacle`
        shortcut = x if shortcut is None else shortcut
        like = next(step.op.parameters()) if step.fp32_stream else x
        if step.is_skipped(ctx) or ctx.taps is not None or not takes(x, like) or not op.is_ready(x, ctx):
            return self.replaced(x, ctx, shortcut)
        adds = (
            step.post_norm is None
            and isinstance(step.residual, ScaledModule)
            and (step.residual.plain or step.fp32_stream)
        )
        shortcut = shortcut.float() if step.fp32_stream else shortcut
        norm = None if step.pre_norm is None else norm_weights(step.pre_norm)
        y = op(x[:, 0], norm, shortcut[:, 0] if adds else None, ctx)[:, None]
        if not adds:
            y = y if step.post_norm is None else apply(step.post_norm, ctx, y)
            y = apply(step.residual, ctx, shortcut, y)
        return y if step.out_norm is None else apply(step.out_norm, ctx, y)


class FewRowsParallel(FewRowsForward):
    """Parallel residual steps: all read x, and each adds its branch to the sum so far."""

    @staticmethod
    def covers(module: nn.Module) -> bool:
        return type(module) is ParallelModule

    def __call__(self, x: Tensor, ctx: Context) -> Tensor:
        steps = list(self.module.children())
        if not takes(x) or not all(isinstance(step.forward, FewRowsSublayer) for step in steps):
            return self.replaced(x, ctx)
        y = x
        for step in steps:
            y = step(x, ctx, y)
        return y
