"""Linear layers for few rows, as a step of decoding has them, by address.

    pack(model)                       # every linear layer; the weights stay where they are
    with PackedStep.of(model, 8): ... # the large ones, inside the block: what `generate` does for each step of a batch

On a CPU a product with up to three rows is as fast as memory, and with many rows the layout of the weights does not
matter; from 4 to 64 rows oneDNN's blocked layout takes about half the time. A packed copy is kept beside the weights
for as long as these live, which costs their memory a second time. On CUDA one row in half precision goes through
`kernels/matvec.py` and nothing is kept.

Outputs stay equal but for rounding, parameters keep their addresses, weights changed in place are packed again,
and training goes on unpacked. `unpack` undoes it. After `fuse`, not before.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels import hardware, matvec
from anyformer.kernels.packed import Packed
from anyformer.parts.fused_linear import Joined
from anyformer.specs.messages import nearest, quote

ROWS = range(4, 65)  # for which a packed product is used
LEAST = 2**19  # weights of a layer that is packed unasked: oneDNN's call takes 50 microseconds longer than torch's own
SHARE = 4  # copies that nobody asked for take at most one part in so many of the free memory


def pack(model: nn.Module, pattern: str = "*") -> nn.Module:
    """Every nn.Linear whose address matches `pattern` keeps its weights packed, too; the model is changed, returned."""
    linears = {address: module for address, module in model.named_modules() if type(module) is nn.Linear}
    chosen = [module for address, module in linears.items() if fnmatch.fnmatchcase(address, pattern)]
    chosen += [joined.whole for address, joined in joined_linears(model) if fnmatch.fnmatchcase(address, pattern)]
    if not chosen:
        raise ValueError(f"no linear layer matches {quote(pattern)}; {nearest(pattern, linears)}")
    for module in chosen:
        module.__class__ = PackedLinear  # the same object at the same address: ties and joined layers stay right
    return model


def joined_linears(model: nn.Module) -> Iterator[tuple[str, Joined]]:
    """Linear layers that are one (transforms/fuse.py), made ready to be packed."""
    for address, module in model.named_modules():
        if isinstance(module, Joined) and type(module.whole) is nn.Linear:
            module.whole.__dict__["_views"] = [part.weight for part in module.parts]  # by which it may be changed
            yield address, module


def unpack(model: nn.Module) -> nn.Module:
    """Plain linear layers again; the packed copies are freed."""
    wholes = [module.whole for module in model.modules() if isinstance(module, Joined)]
    for module in [*model.modules(), *wholes]:
        if isinstance(module, PackedLinear):
            module.__dict__.pop("_views", None)
            module.__class__ = nn.Linear  # type: ignore[assignment]
    return model


class PackedLinear(nn.Linear):
    _views: ClassVar[list[Tensor]] = []  # of the weights, by which they may be changed (a joined layer's parts)

    def forward(self, x: Tensor) -> Tensor:
        if matvec.fits(x, self.weight):
            return matvec.matvec(x, self.weight, self.bias)
        rows = x.numel() // max(x.shape[-1], 1)
        if rows not in ROWS or torch.is_grad_enabled() or not packs(x, self.weight):
            return F.linear(x, self.weight, self.bias)
        if torch.compiler.is_compiling():  # calling an operation takes 40 microseconds longer
            return packed_linear(x, self.weight, self.bias, self._views)
        return multiply_packed(x, self.weight, self.bias, self._views, self)


class PackedStep:
    """The large linear layers of a model, packed inside a `with` block and plain outside it. Copies are made when a
    layer is first used so, and go with it."""

    def __init__(self, layers: list[nn.Linear]) -> None:
        self.layers = layers

    @classmethod
    def of(cls, model: nn.Module, rows: int) -> PackedStep:
        """Those that so many rows multiply faster packed; none where oneDNN is not there, or no faster."""
        if rows not in ROWS or torch.is_autocast_enabled("cpu") or not hardware.packed_is_faster():
            return cls([])
        joined = [module for _, module in joined_linears(model)]
        inside = {part for module in joined for part in module.parts}
        alone = [module for module in model.modules() if type(module) is nn.Linear and module not in inside]
        return cls([layer for layer in (*alone, *(module.whole for module in joined)) if is_large(layer)])

    def missing_bytes(self) -> int:
        """Of the copies that are still to be made."""
        places = {layer.weight.data_ptr(): layer.weight.nbytes for layer in self.layers}
        return sum(size for place, size in places.items() if place not in PACKED.kept)

    def __enter__(self) -> None:
        for layer in self.layers:
            layer.__class__ = PackedLinear

    def __exit__(self, *_: object) -> None:
        for layer in self.layers:
            layer.__class__ = nn.Linear


def is_large(layer: nn.Linear) -> bool:
    weight = layer.weight
    plain = type(weight) is nn.Parameter and weight.is_cpu and not weight.is_inference()
    return plain and weight.dtype == torch.float32 and weight.numel() >= LEAST


PACKED = Packed()


def multiply_packed(x: Tensor, weight: Tensor, bias: Tensor | None, views: list[Tensor], owner: object) -> Tensor:
    """x (..., in) times weights (out, in) that are packed as oneDNN wants them for few rows; `views` are tensors in
    their memory through which they may be changed, and which count that for themselves."""
    if not hardware.has("onednn") or (x.dtype == torch.bfloat16 and not hardware.has("bf16")):
        return F.linear(x, weight, bias)
    changes = sum(view._version for view in views)
    packed = PACKED.get(weight, lambda: torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 8), changes, owner)
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


@torch.library.custom_op("anyformer::packed_linear", mutates_args=())
def packed_linear(x: Tensor, weight: Tensor, bias: Tensor | None, views: list[Tensor]) -> Tensor:
    return multiply_packed(x, weight, bias, views, None)


@packed_linear.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, views: list[Tensor]) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def packs(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN has a layout for these."""
    return x.is_cpu and x.dtype == weight.dtype and x.dtype in (torch.float32, torch.bfloat16)
