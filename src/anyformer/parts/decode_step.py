"""Fused kernels that a module offers for a decoding step: one token per row, on CUDA, without gradients.

    class MLPStep(DecodeStep, of=MLPModule):        # next to MLPModule
        layers = ("up", "down")
        def __call__(self, x, norm, shortcut, ctx): ...

`transforms/decode_kernels.py` asks for the steps and norms offered here. B rows, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anyformer.kernels import few_rows
from anyformer.kernels.few_rows import NormWeights
from anyformer.parts.activation import ACTIVATIONS
from anyformer.parts.forward_override import is_product
from anyformer.parts.fused_linear import Concatenable
from anyformer.runtime.context import Context

NAMES = {function: name for name, function in ACTIVATIONS.items() if name in few_rows.ACTIVATIONS}


class DecodeStep:
    """The op of a residual step for one token per row, including the norm before it and the residual sum after it.
    An offer holds for the named module class, not for its subclasses."""

    offers: ClassVar[dict[type[nn.Module], type[DecodeStep]]] = {}
    layers: ClassVar[tuple[str, ...]] = ()  # names of the linear layers that its kernels read

    def __init_subclass__(cls, of: type[nn.Module] | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if of is not None:
            DecodeStep.offers[of] = cls

    def __init__(self, op: Any) -> None:
        self.op = op

    def __call__(self, x: Tensor, norm: NormWeights | None, shortcut: Tensor | None, ctx: Context) -> Tensor:
        """x (B, D) -> (B, D). Normalises x if `norm` is given, and adds `shortcut` to the output if it is given."""
        raise NotImplementedError

    def obstacle(self, rows: int) -> str | None:
        """Return the reason why the kernels cannot run this op for `rows` rows, or None."""
        linears = [getattr(self.op, name) for name in self.layers]
        if not all(is_readable(layer, rows) for layer in linears) or len({layer.weight.dtype for layer in linears}) > 1:
            return self.unusual_layer()
        return None

    def unusual_layer(self) -> str:
        return f"a layer of {type(self.op).__name__} is not a plain one"

    def unknown_activation(self) -> str | None:
        return None if self.op.activation in NAMES else "an activation without a kernel"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return getattr(self.op, self.layers[0]).weight.dtype

    def is_ready(self, x: Tensor, ctx: Context) -> bool:
        """Whether the decoding state and this call, x (B, 1, D), allow the kernels."""
        return True


def decode_step(op: nn.Module) -> DecodeStep | None:
    """Return the fused step that an op offers, or None."""
    kind = DecodeStep.offers.get(type(op))
    return None if kind is None else kind(op)


def is_readable(layer: Any, rows: int) -> bool:
    """Whether a layer is only a product with a weight. For one row, the weight may be quantized."""
    few_bits = rows == 1 and isinstance(layer, Concatenable)
    return (is_product(layer) or few_bits) and layer.weight.is_contiguous()


def linear(x: Tensor, *layers: Any, **options: Any) -> Tensor:
    """Apply parallel linear layers to x (B, D) and concatenate their outputs."""
    if isinstance(layers[0], Concatenable):
        options["scales"] = [layer.scale for layer in layers]
        options["offsets"] = [layer.offset for layer in layers if layer.offset is not None]
    return few_rows.linear(x, [layer.weight for layer in layers], [layer.bias for layer in layers], **options)


# -- norms -------------------------------------------------------------------------------------------------------------

NormReader = Callable[[Any], NormWeights | None]
NORM_READERS: dict[type[nn.Module], NormReader] = {}


def offers_norm(kind: type[nn.Module]) -> Callable[[NormReader], NormReader]:
    """Register a function that returns the weights of a norm of this class for the kernels, or None."""

    def register(read: NormReader) -> NormReader:
        NORM_READERS[kind] = read
        return read

    return register


def norm_weights(norm: nn.Module) -> NormWeights | None:
    """Return the weights of a norm for a kernel; None if the norm is not supported or too wide."""
    read = NORM_READERS.get(type(norm))
    weights = None if read is None else read(norm)
    if weights is None or weights.weight is None or len(weights.weight) <= few_rows.WIDEST:
        return weights
    return None


@offers_norm(nn.LayerNorm)
def layer_norm_weights(norm: nn.LayerNorm) -> NormWeights | None:
    if len(norm.normalized_shape) > 1:
        return None
    return NormWeights("layer", norm.weight, norm.bias, norm.eps)
