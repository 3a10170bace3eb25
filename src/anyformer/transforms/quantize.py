"""Int8 weights by address: a linear layer keeps one signed byte a weight and one scale an output channel.

    quantize(model)                              # every linear layer, the head too: a quarter of fp32's memory
    quantize(model, "decoder.*")                 # some of them

A weight is round(w / scale), scale = largest |w| of its row / 127. On a CPU each row of activations is rounded to 8
bits too, with a scale of its own: that is what VNNI instructions multiply, and a batch changes no row. Where torch has
no 8-bit products for the CPU (ARM) the activations stay as they are, and are multiplied by the bytes if that is faster
than by fp32 weights; if not, by fp32 copies of the weights, which is said once. `exact=True` keeps the activations and
no copies, and so does every other device. Inference only: the float weights are gone.
"""

from __future__ import annotations

import fnmatch
import functools
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels import hardware
from anyformer.kernels.packed import Packed
from anyformer.models import TransformerModule
from anyformer.parts.fused_linear import Concatenable
from anyformer.specs.messages import nearest, quote
from anyformer.transforms.fuse import fuse, sites, unfuse


@torch.no_grad()
def quantize(model: TransformerModule, pattern: str = "*", *, exact: bool = False) -> Any:
    """Every nn.Linear whose address matches `pattern` becomes an Int8Linear; the model is changed and returned. A head
    tied to the token table is quantised, the table stays as it is. Fused projections stay fused."""
    if model.training:
        raise ValueError("int8 weights cannot be trained: model.eval() first")
    linears = {address: module for address, module in model.named_modules() if type(module) is nn.Linear}
    chosen = [address for address in linears if fnmatch.fnmatchcase(address, pattern)]
    if not chosen:
        raise ValueError(f"no linear layer matches {quote(pattern)}; {nearest(pattern, linears)}")
    fused = [address for address, module, name, _ in sites(model) if getattr(module, name) is not None]
    unfuse(model)
    for address in chosen:
        path, _, leaf = address.rpartition(".")
        setattr(model.get_submodule(path), leaf, Int8Linear.from_linear(linears[address], exact))
    for address in fused:
        fuse(model, address)
    return model


class Int8Linear(Concatenable):
    """x (..., in) -> (..., out), the weights int8 with one scale an output channel."""

    weight: Tensor
    scale: Tensor

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None, exact: bool = False) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.register_buffer("weight", weight)  # (out, in) int8
        self.register_buffer("scale", scale)  # (out,) fp32
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.exact = exact

    @classmethod
    def from_linear(cls, linear: nn.Linear, exact: bool = False) -> Int8Linear:
        weight = linear.weight.detach().float()
        scale = weight.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / 127
        rounded = (weight / scale[:, None]).round().to(torch.int8)
        return cls(rounded, scale, None if linear.bias is None else linear.bias.detach().clone(), exact)

    def concat(self, *others: Int8Linear) -> Int8Linear:
        parts = (self, *others)
        bias = None
        if any(p.bias is not None for p in parts):
            bias = torch.cat([p.scale.new_zeros(p.out_features) if p.bias is None else p.bias for p in parts])
        weights, scales = torch.cat([p.weight for p in parts]), torch.cat([p.scale for p in parts])
        return Int8Linear(weights, scales, bias, self.exact)

    def dequantize(self) -> Tensor:
        """(out, in) fp32: what the layer multiplies by."""
        return dequantize(self.weight, self.scale)

    def forward(self, x: Tensor) -> Tensor:
        if not self.exact and x.is_cpu and x.numel():
            wide, bias = x.float(), None if self.bias is None else self.bias.float()
            multiply = torch.ops.anyformer.by_bytes if torch.compiler.is_compiling() else by_bytes
            if not has_engine():
                return multiply(wide, self.weight, self.scale, bias).to(x.dtype)
            # each row in [-1, 1], so that one step size is right for all of them
            top = wide.abs().amax(-1, keepdim=True).clamp_(min=1e-30)
            out = multiply(wide / top, self.weight, self.scale, None)
            return (out * top if bias is None else torch.addcmul(bias, out, top)).to(x.dtype)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        if x.dtype == torch.float16:  # sums of whole numbers up to 127 are beyond its range
            return F.linear(x, self.weight.to(x.dtype) * self.scale.to(x.dtype)[:, None], bias)
        # scales after the product: a compiler fuses the conversion into it and makes no float copy of the weights
        out = F.linear(x, self.weight.to(x.dtype)) * self.scale.to(x.dtype)
        return out if bias is None else out + bias

    def _apply(self, fn: Any, recurse: bool = True) -> Int8Linear:
        scale = self.scale
        super()._apply(fn, recurse)
        if self.scale.dtype != torch.float32:  # .half() is for activations: 8 bits have no room for a rough scale
            self.scale = scale.to(self.scale.device)
        return self

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


PACKED, COPIES = Packed(), Packed()
MANY = 32  # rows for which a float copy of the weights takes little of the time: it is made for them and let go
SLOW = (
    "quantize: this CPU multiplies by fp32 weights faster than by int8 ones, so fp32 copies are kept beside them; "
    "exact=True keeps none and is slower"
)


def by_bytes(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """fp32 (..., in) times int8 (out, in), the way that is fastest here; with an engine x is in [-1, 1]."""
    if has_engine():
        levels = activation_levels()
        multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
        return multiply(x, 1 / levels, levels + 1, PACKED.get(weight, lambda: pack(weight, scale)))
    rows = x.numel() // x.shape[-1]
    if rows <= hardware.int8_weight_rows() and x.shape[-1] % 8 == 0:  # eight at once, and none for what is left
        out = torch._weight_int8pack_mm(x.reshape(rows, -1), weight, scale).view(*x.shape[:-1], -1)
        return out if bias is None else out.add_(bias)
    if rows >= MANY:
        return F.linear(x, dequantize(weight, scale), bias)
    return F.linear(x, COPIES.get(weight, lambda: tell_and_dequantize(weight, scale)), bias)


@torch.compiler.assume_constant_result
def has_engine() -> bool:
    return hardware.has("int8")


# One operation to a compiler, which cannot look into the packed weights. `custom_op` would do the same and take 40
# microseconds longer for each call.
torch.library.define("anyformer::by_bytes", "(Tensor x, Tensor weight, Tensor scale, Tensor? bias) -> Tensor")
torch.library.impl("anyformer::by_bytes", "CPU", by_bytes)


@torch.library.register_fake("anyformer::by_bytes")
def _(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def activation_levels() -> int:
    """Steps from 0 to the largest activation of a row. CPUs without VNNI add pairs of products in 16 bits, so their
    bytes stay below 128: 7 bits with a zero at 64, where others have 8 bits with a zero at 128."""
    return 127 if torch.cpu._is_vnni_supported() else 63


def dequantize(weight: Tensor, scale: Tensor) -> Tensor:
    return weight.float().mul_(scale[:, None])


def tell_and_dequantize(weight: Tensor, scale: Tensor) -> Tensor:
    tell_once()
    return dequantize(weight, scale)


@functools.cache
def tell_once() -> None:
    warnings.warn(SLOW, stacklevel=2)


def pack(weight: Tensor, scale: Tensor) -> Any:
    zeros = torch.zeros(weight.shape[0], dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of the deprecation
        tensor = torch._make_per_channel_quantized_tensor(weight, scale.double(), zeros, 0)
    return torch.ops.quantized.linear_prepack(tensor, None)
