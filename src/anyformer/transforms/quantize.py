"""Weight quantization to 8 or 4 bits (int8, fp8, int4) by address, for inference. The float weights are discarded.

    quantize(model)                              # int8, every linear layer and the head: a quarter of fp32's memory
    quantize(model, "decoder.*")                 # some of them
    quantize(model, format="fp8")                # e4m3 floats, one scale per output channel
    quantize(model, format="int4", group=64)     # half a byte per weight; a scale and an offset per 64 inputs

`kernels/quantized.py` rounds the weights and has CUDA kernels for few rows, which take as long as reading the weights.
Activations are not quantized, with one exception: on a CPU with fast 8-bit products (int8 with torch's 8-bit engine on
x86; int4 and large int8 layers on ARM with dot products) each row is rounded to 8 bits with its own scale, so that rows
of a batch do not affect each other. Other int8 weights on a CPU get additional fp32 copies, with one warning.
`exact=True` neither rounds activations nor keeps copies.

`af.save` writes the quantized weights and `af.load` reads them; `format="hf"` writes floats.
"""

from __future__ import annotations

import fnmatch
import functools
import warnings
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels import four_bits, hardware, quantized
from anyformer.kernels.packed import PackedWeights
from anyformer.kernels.quantized import FEW, FP8, plain_linear, quantized_linear
from anyformer.models import TransformerModule
from anyformer.parts.forward_override import is_plain
from anyformer.parts.fused_linear import Concatenable
from anyformer.specs.messages import nearest, quote
from anyformer.transforms.fuse import fuse, sites, unfuse
from anyformer.weights.io import Checkpoint
from anyformer.weights.pieces import Pieces

M = TypeVar("M", bound=TransformerModule)


@torch.no_grad()
def quantize(model: M, pattern: str = "*", *, format: str = "int8", group: int = 128, exact: bool = False) -> M:
    """Quantize every nn.Linear whose address matches `pattern`. Changes the model in place and returns it.

    `format` is int8, fp8 or int4. `group` is the number of inputs per scale in int4, a power of 2 and at least 32. If
    the head is tied to the token embedding, only the head is quantized. Fused projections stay fused."""
    if model.training:
        raise ValueError(f"{format} weights cannot be trained: call model.eval() first")
    if format not in FORMATS:
        raise ValueError(f"unknown format {quote(format)}; {nearest(format, FORMATS)}")
    if not possible_group(group):
        raise ValueError(f"group: {group} is not a power of 2 of at least 32; try 32, 64 or 128")
    linears: dict[str, Any] = {address: module for address, module in model.named_modules() if is_plain(module)}
    chosen = [address for address in linears if fnmatch.fnmatchcase(address, pattern)]
    if not chosen:
        raise ValueError(f"no linear layer matches {quote(pattern)}; {nearest(pattern, linears)}")
    fused = [address for address, module, name, _ in sites(model) if getattr(module, name) is not None]
    unfuse(model)
    for address in chosen:
        model.set_submodule(address, FORMATS[format].from_linear(linears[address], exact, group))
    for address in fused:
        fuse(model, address)
    return model


class QuantizedLinear(Concatenable):
    """A linear layer with quantized weights: x (..., in) -> (..., out). `.half()` does not convert its buffers."""

    exact: ClassVar[tuple[str, ...]] = ("weight", "scale")  # buffers that the loader does not convert

    exact_activations = False  # True: activations are not rounded on a CPU either

    def __init__(self, tensors: Sequence[Tensor], in_features: int, bias: Tensor | None) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, tensors[0].shape[0]
        for name, tensor in zip_longest(("weight", "scale", "offset"), tensors):
            self.register_buffer(name, tensor)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    @classmethod
    def from_linear(cls, linear: nn.Linear, exact: bool = False, group: int = 128) -> Any:
        bias = None if linear.bias is None else linear.bias.detach().clone()
        layer = cls(cls.round(linear.weight.detach().float(), group), linear.in_features, bias)
        layer.exact_activations = exact
        return layer

    @staticmethod
    def round(weight: Tensor, group: int) -> Sequence[Tensor]:
        """Round float weights (out, in) and return the buffers."""
        raise NotImplementedError

    @staticmethod
    def shapes(outputs: int, inputs: int, group: int) -> list[tuple[int, ...]]:
        """Return the shapes of the buffers."""
        return [(outputs, inputs), (outputs,)]

    def concat(self, *others: Any) -> Any:
        """Return one layer with the outputs of all. The weights of these layers become views of its weights."""
        parts = (self, *others)
        bias = None
        if any(p.bias is not None for p in parts):
            bias = torch.cat([p.scale.new_zeros(p.out_features) if p.bias is None else p.bias for p in parts])
        tensors = []
        for name in self.exact:
            pieces = [getattr(p, name) for p in parts]
            whole = torch.cat([piece.view(torch.uint8) if piece.dtype == FP8 else piece for piece in pieces])
            tensors.append(whole.view(pieces[0].dtype))
            for part, view in zip(parts, tensors[-1].split([p.out_features for p in parts]), strict=True):
                setattr(part, name, view)
        joined = type(self)(tensors, self.in_features, bias)
        joined.exact_activations = self.exact_activations
        return joined

    def dequantize(self) -> Tensor:
        return quantized.dequantize(self.weight, self.scale, self.offset, self.in_features)

    def forward(self, x: Tensor) -> Tensor:
        few = x.is_cuda and x.numel() <= FEW * self.in_features and not torch.is_grad_enabled()
        multiply = quantized_linear if few else plain_linear
        return multiply(x, self.weight, self.scale, self.offset, self.bias)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        kept = {name: getattr(self, name) for name in self.exact}
        super()._apply(fn, recurse)
        for name, tensor in kept.items():
            if getattr(self, name).dtype != tensor.dtype:
                setattr(self, name, tensor.to(getattr(self, name).device))
        return self

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class FP8Linear(QuantizedLinear):
    """weight (out, in) e4m3, scale (out,) fp32"""

    @staticmethod
    def round(weight: Tensor, group: int) -> Sequence[Tensor]:
        return quantized.round_fp8(weight)


class Int4Linear(QuantizedLinear):
    """weight (out, groups * group / 2) uint8, scale and offset (out, groups) bf16"""

    exact = ("weight", "scale", "offset")

    @staticmethod
    def round(weight: Tensor, group: int) -> Sequence[Tensor]:
        return quantized.round_int4(weight, group)

    @staticmethod
    def shapes(outputs: int, inputs: int, group: int) -> list[tuple[int, ...]]:
        groups = -(-inputs // group)
        return [(outputs, groups * group // 2), (outputs, groups), (outputs, groups)]

    def forward(self, x: Tensor) -> Tensor:
        if not self.exact_activations and x.is_cpu and x.numel() and has_engine("int4"):
            assert self.offset is not None
            multiply = torch.ops.anyformer.by_groups if torch.compiler.is_compiling() else four_bits.int4_linear
            out = multiply(x.float().reshape(-1, x.shape[-1]), self.weight, self.scale, self.offset)
            out = out if self.bias is None else out + self.bias.float()
            return out.view(*x.shape[:-1], -1).to(x.dtype)
        return super().forward(x)


class Int8Linear(QuantizedLinear):
    """weight (out, in) int8, scale (out,) fp32"""

    @staticmethod
    def round(weight: Tensor, group: int) -> Sequence[Tensor]:
        return quantized.round_int8(weight)

    def forward(self, x: Tensor) -> Tensor:
        if not self.exact_activations and x.is_cpu and x.numel():
            wide, bias = x.float(), None if self.bias is None else self.bias.float()
            multiply = torch.ops.anyformer.by_bytes if torch.compiler.is_compiling() else by_bytes
            if not has_engine("int8"):
                return multiply(wide, self.weight, self.scale, bias).to(x.dtype)
            # scale each row to [-1, 1], so that all rows can use the same step size
            top = wide.abs().amax(-1, keepdim=True).clamp_(min=1e-30)
            out = multiply(wide / top, self.weight, self.scale, None)
            return (out * top if bias is None else torch.addcmul(bias, out, top)).to(x.dtype)
        return super().forward(x)


FORMATS: dict[str, type[QuantizedLinear]] = {"int8": Int8Linear, "fp8": FP8Linear, "int4": Int4Linear}
TYPES = {torch.int8: Int8Linear, FP8: FP8Linear, torch.uint8: Int4Linear}  # dtype of stored weights -> layer


def possible_group(group: int) -> bool:
    return group >= 32 and group & (group - 1) == 0


def place_quantized(model: TransformerModule, stored: Checkpoint | Pieces) -> None:
    """Replace linear layers of a model on meta by quantized ones, if a checkpoint in our layout has such weights."""
    names = {*stored.names}
    for address, linear in list(model.named_modules()):
        weight, scale = f"{address}.weight", f"{address}.scale"
        if type(linear) is not nn.Linear or not {weight, scale} <= names or stored.dtype(weight) not in TYPES:
            continue
        kind = TYPES[stored.dtype(weight)]
        leaves = [leaf for leaf in kind.exact if f"{address}.{leaf}" in names]
        shapes = [stored.shape(f"{address}.{leaf}") for leaf in leaves]
        group = 2 * shapes[0][-1] // max(shapes[1][-1], 1) if kind is Int4Linear and all(shapes) else 32
        if not possible_group(group) or shapes != kind.shapes(linear.out_features, linear.in_features, group):
            raise ValueError(f"{stored.folder}: {address} has quantized weights of wrong shapes {quote(shapes)}")
        tensors = [
            torch.empty(shape, dtype=stored.dtype(f"{address}.{leaf}"), device="meta")
            for leaf, shape in zip(leaves, shapes, strict=True)
        ]
        model.set_submodule(address, kind(tensors, linear.in_features, linear.bias))


PACKED, COPIES = PackedWeights(), PackedWeights()
LARGE = 2**19  # weights; from here on, two products with 4-bit halves are faster than one with floats
MANY = 32  # rows; from here on, a temporary float copy of the weights takes little of the time
SLOW = (
    "quantize: this CPU multiplies faster with fp32 weights than with int8, so fp32 copies are kept in addition; "
    "exact=True keeps no copies and is slower"
)


def by_bytes(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply fp32 x (..., in) by int8 weights (out, in), by the fastest method for this CPU. With torch's 8-bit
    engine, x must be in [-1, 1]."""
    if hardware.has("int8"):
        levels = activation_levels()
        multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
        return multiply(x, 1 / levels, levels + 1, PACKED.get(weight, lambda: pack(weight, scale)))
    rows = x.numel() // x.shape[-1]
    if weight.numel() >= LARGE and x.shape[-1] % 2 == 0 and hardware.has("int4"):
        out = four_bits.int8_linear(x.reshape(rows, -1), weight, scale).view(*x.shape[:-1], -1)
        return out if bias is None else out.add_(bias)
    if rows >= MANY:
        return F.linear(x, quantized.dequantize(weight, scale, None, weight.shape[1]), bias)
    return F.linear(x, COPIES.get(weight, lambda: tell_and_dequantize(weight, scale)), bias)


@torch.compiler.assume_constant_result
def has_engine(bits: str) -> bool:
    return hardware.has(bits)


# Opaque ops: torch.compile cannot trace packed weights. `custom_op` would take 40 microseconds longer per call.
torch.library.define("anyformer::by_bytes", "(Tensor x, Tensor weight, Tensor scale, Tensor? bias) -> Tensor")
torch.library.impl("anyformer::by_bytes", "CPU", by_bytes)
torch.library.define("anyformer::by_groups", "(Tensor x, Tensor weight, Tensor scale, Tensor offset) -> Tensor")
torch.library.impl("anyformer::by_groups", "CPU", four_bits.int4_linear)


@torch.library.register_fake("anyformer::by_bytes")
@torch.library.register_fake("anyformer::by_groups")
def _(x: Tensor, weight: Tensor, scale: Tensor, other: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def activation_levels() -> int:
    """Return the number of steps from 0 to the largest activation of a row.

    CPUs without VNNI add pairs of products in 16 bits, so their activations are limited to 7 bits with zero point 64;
    with VNNI they have 8 bits with zero point 128."""
    return 127 if torch.cpu._is_vnni_supported() else 63


def tell_and_dequantize(weight: Tensor, scale: Tensor) -> Tensor:
    tell_once()
    return quantized.dequantize(weight, scale, None, weight.shape[1])


@functools.cache
def tell_once() -> None:
    warnings.warn(SLOW, stacklevel=2)


def pack(weight: Tensor, scale: Tensor) -> Any:
    zeros = torch.zeros(weight.shape[0], dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about deprecation
        tensor = torch._make_per_channel_quantized_tensor(weight, scale.double(), zeros, 0)
    return torch.ops.quantized.linear_prepack(tensor, None)
