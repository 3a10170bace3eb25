"""Faster linear layers for few rows, as in a decoding step, by address.

    pack(model)                       # every linear layer
    with PackedStep.of(model, 8): ... # large layers, inside the block; `generate` uses it for each step of a batch

On a CPU, a product with up to three rows is limited by memory bandwidth, and with many rows the layout of the weights
does not matter. From 4 to 64 rows, oneDNN's blocked layout takes about half the time. A packed copy is kept in addition
to the weights for as long as these live, which doubles their memory. On CUDA, one row in half precision uses
`kernels/matvec.py`, without a copy.

Outputs are equal up to rounding. Parameters keep their addresses; weights that change in place are packed again;
training uses the plain weights. `unpack` undoes it. Call `fuse` before `pack`, not after.
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

ROWS = range(4, 65)  # numbers of rows for which packed products are used
MIN_WEIGHTS = 2**19  # of a layer in PackedStep: oneDNN's call takes 50 microseconds longer than torch's own
SHARE = 4  # `generate` packs only if the copies fit in 1 / SHARE of the free memory


def pack(model: nn.Module, pattern: str = "*") -> nn.Module:
    """Use packed weights in every nn.Linear whose address matches `pattern`. Changes the model and returns it."""
    linears = {address: module for address, module in model.named_modules() if type(module) is nn.Linear}
    chosen = [module for address, module in linears.items() if fnmatch.fnmatchcase(address, pattern)]
    chosen += [joined.whole for address, joined in joined_linears(model) if fnmatch.fnmatchcase(address, pattern)]
    if not chosen:
        raise ValueError(f"no linear layer matches {quote(pattern)}; {nearest(pattern, linears)}")
    for module in chosen:
        module.__class__ = PackedLinear  # the same object at the same address, so ties and fused layers remain valid
    return model


def joined_linears(model: nn.Module) -> Iterator[tuple[str, Joined]]:
    """Yield fused linear layers (transforms/fuse.py), prepared for packing."""
    for address, module in model.named_modules():
        if isinstance(module, Joined) and type(module.whole) is nn.Linear:
            module.whole.__dict__["_views"] = [
                part.weight for part in module.parts
            ]  # its weights may change through these
            yield address, module


def unpack(model: nn.Module) -> nn.Module:
    """Undo `pack` and free the packed copies."""
    wholes = [module.whole for module in model.modules() if isinstance(module, Joined)]
    for module in [*model.modules(), *wholes]:
        if isinstance(module, PackedLinear):
            module.__dict__.pop("_views", None)
            module.__class__ = nn.Linear  # type: ignore[assignment]
    return model


class PackedLinear(nn.Linear):
    """A linear layer with a packed copy of its weights."""

    _views: ClassVar[list[Tensor]] = []  # views through which the weights may change (parts of a fused layer)

    def forward(self, x: Tensor) -> Tensor:
        if matvec.fits(x, self.weight):
            return matvec.matvec(x, self.weight, self.bias)
        rows = x.numel() // max(x.shape[-1], 1)
        if rows not in ROWS or torch.is_grad_enabled() or not packs(x, self.weight):
            return F.linear(x, self.weight, self.bias)
        if torch.compiler.is_compiling():  # a custom op takes 40 microseconds longer per call
            return packed_linear(x, self.weight, self.bias, self._views)
        return multiply_packed(x, self.weight, self.bias, self._views, self)


class PackedStep:
    """The large linear layers of a model, packed inside a `with` block and plain outside it. A layer's copy is made at
    its first packed call, and freed with the layer."""

    def __init__(self, layers: list[nn.Linear]) -> None:
        self.layers = layers

    @classmethod
    def of(cls, model: nn.Module, rows: int) -> PackedStep:
        """Select the layers that are faster packed for this many rows; none if oneDNN is missing or not faster."""
        if rows not in ROWS or torch.is_autocast_enabled("cpu") or not hardware.packed_is_faster():
            return cls([])
        joined = [module for _, module in joined_linears(model)]
        inside = {part for module in joined for part in module.parts}
        separate = [module for module in model.modules() if type(module) is nn.Linear and module not in inside]
        return cls([layer for layer in (*separate, *(module.whole for module in joined)) if is_large(layer)])

    def missing_bytes(self) -> int:
        """Return the size of the copies that have not been made yet."""
        sizes = {layer.weight.data_ptr(): layer.weight.nbytes for layer in self.layers}
        return sum(size for pointer, size in sizes.items() if pointer not in PACKED.kept)

    def __enter__(self) -> None:
        for layer in self.layers:
            layer.__class__ = PackedLinear

    def __exit__(self, *_: object) -> None:
        for layer in self.layers:
            layer.__class__ = nn.Linear


def is_large(layer: nn.Linear) -> bool:
    weight = layer.weight
    plain = type(weight) is nn.Parameter and weight.is_cpu and not weight.is_inference()
    return plain and weight.dtype == torch.float32 and weight.numel() >= MIN_WEIGHTS


PACKED = Packed()


def multiply_packed(x: Tensor, weight: Tensor, bias: Tensor | None, views: list[Tensor], owner: object) -> Tensor:
    """Multiply x (..., in) by weights (out, in), packed in oneDNN's layout for few rows. `views` share memory with the
    weights and have separate version counters, which also invalidate the copy."""
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
    """Whether oneDNN has a packed layout for this device and dtype."""
    return x.is_cpu and x.dtype == weight.dtype and x.dtype in (torch.float32, torch.bfloat16)
