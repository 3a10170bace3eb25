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
from collections.abc import Iterator, Sequence
from typing import ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels import hardware, matvec
from anyformer.kernels.packed import PackedWeights
from anyformer.parts.forward_override import ForwardOverride, is_plain
from anyformer.parts.fused_linear import Joined
from anyformer.specs.messages import nearest, quote

M = TypeVar("M", bound=nn.Module)

ROWS = range(4, 65)  # numbers of rows for which packed products are used
MIN_WEIGHTS = 2**19  # of a layer in PackedStep: oneDNN's call takes 50 microseconds longer than torch's own
SHARE = 4  # `generate` packs only if the copies fit in 1 / SHARE of the free memory


def pack(model: M, pattern: str = "*") -> M:
    """Use packed weights in every nn.Linear whose address matches `pattern`. Changes the model and returns it."""
    linears = {address: module for address, module in model.named_modules() if is_plain(module)}
    chosen = [PackedForward(module) for address, module in linears.items() if fnmatch.fnmatchcase(address, pattern)]
    chosen += [packed for address, packed in packed_wholes(model) if fnmatch.fnmatchcase(address, pattern)]
    if not chosen:
        raise ValueError(f"no linear layer matches {quote(pattern)}; {nearest(pattern, linears)}")
    for packed in chosen:
        packed.install()
    return model


def packed_wholes(model: nn.Module) -> Iterator[tuple[str, PackedForward]]:
    """Yield the addresses of fused linear layers (transforms/fuse.py) and their forward with packed weights."""
    for address, module in model.named_modules():
        if isinstance(module, Joined) and is_plain(module.whole):
            yield address, PackedForward(module.whole, [part.weight for part in module.parts])


def unpack(model: M) -> M:
    """Undo `pack` and free the packed copies."""
    wholes = [module.whole for module in model.modules() if isinstance(module, Joined) and module.whole is not None]
    for module in [*model.modules(), *wholes]:
        if isinstance(module.forward, PackedForward):
            module.forward.remove()
    return model


class PackedForward(ForwardOverride):
    """The forward of a linear layer with a packed copy of its weights."""

    same_function: ClassVar[bool] = True

    def __init__(self, module: nn.Linear, views: Sequence[Tensor] = ()) -> None:
        super().__init__(module)
        self.views = list(views)  # views through which the weights may change (parts of a fused layer)

    def __call__(self, x: Tensor) -> Tensor:
        layer = self.module
        weight, bias = layer.weight, layer.bias
        if matvec.fits(x, weight):
            return matvec.matvec(x, weight, bias)
        rows = x.numel() // max(x.shape[-1], 1)
        if rows not in ROWS or torch.is_grad_enabled() or not packs(x, weight):
            return F.linear(x, weight, bias)
        if torch.compiler.is_compiling():  # a custom op takes 40 microseconds longer per call
            return packed_linear(x, weight, bias, self.views)
        return multiply_packed(x, weight, bias, self.views, layer)


class PackedStep:
    """The large linear layers of a model, packed inside a `with` block and plain outside it. A layer's copy is made at
    its first packed call, and freed with the layer."""

    def __init__(self, forwards: list[PackedForward]) -> None:
        self.forwards = forwards

    @classmethod
    def of(cls, model: nn.Module, rows: int) -> PackedStep:
        """Select the layers that are faster packed for this many rows; none if oneDNN is missing or not faster."""
        if rows not in ROWS or torch.is_autocast_enabled("cpu") or not hardware.packed_is_faster():
            return cls([])
        joined = [module for module in model.modules() if isinstance(module, Joined) and is_plain(module.whole)]
        inside = {part for module in joined for part in module.parts}
        separate = [module for module in model.modules() if is_plain(module) and module not in inside]
        packed = [*(PackedForward(each) for each in separate), *(packed for _, packed in packed_wholes(model))]
        return cls([each for each in packed if is_large(each.module)])

    def missing_bytes(self) -> int:
        """Return the size of the copies that have not been made yet."""
        weights = [packed.module.weight for packed in self.forwards]
        sizes = {weight.data_ptr(): weight.nbytes for weight in weights}
        return sum(size for pointer, size in sizes.items() if pointer not in PACKED.kept)

    def __enter__(self) -> None:
        for packed in self.forwards:
            packed.install()

    def __exit__(self, *_: object) -> None:
        for packed in self.forwards:
            packed.remove()


def is_large(layer: nn.Linear) -> bool:
    weight = layer.weight
    plain = type(weight) is nn.Parameter and weight.is_cpu and not weight.is_inference()
    return plain and weight.dtype == torch.float32 and weight.numel() >= MIN_WEIGHTS


PACKED = PackedWeights()


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
