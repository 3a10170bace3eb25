"""FLOPs of a forward pass and the bytes that it keeps for the backward pass, measured on the meta device, where tensors
have shapes but no data.

B batch, H heads, T queries, S keys, K head width.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from anyformer.counting.shared_layers import original, walk_modules
from anyformer.counting.simulated_gpu import Device
from anyformer.kernels.capture import graph_capture
from anyformer.models import Model
from anyformer.models.base import TransformerModule
from anyformer.models.call import Call
from anyformer.parts.base import extra_inputs
from anyformer.parts.computed import compute
from anyformer.parts.head.classify import MultipleChoiceHead
from anyformer.parts.mask import All, Causal, Full, Mask, Window
from anyformer.parts.op import Op
from anyformer.runtime.inputs import COMMON
from anyformer.runtime.visibility import Rows
from anyformer.specs.addresses import value_at
from anyformer.specs.part import Part, walk
from anyformer.stacks.stack import StackModule
from anyformer.transforms.fuse import fuse


@dataclasses.dataclass(frozen=True)
class Work:
    """The work for one row: FLOPs by address (2 per multiply-add) and bytes."""

    products: dict[str, int]  # all products
    pairs: dict[str, int]  # of these, products of two activations, as in attention
    later: dict[str, int]  # of `pairs`, attention to later tokens in causal layers
    hidden: dict[str, int]  # of `pairs`, attention to keys that the mask hides
    kept: int = 0  # bytes that the backward pass needs, without weights and their copies
    layers: tuple[tuple[int, int], ...] = ()  # per layer: bytes of its input, bytes kept inside it
    places: int = 0  # memory length: vectors that the encoder of a pair returns

    def by_address(self, causal: bool = False) -> dict[str, int]:
        """FLOPs by address; with `causal`, without attention to later tokens, which some kernels skip."""
        return {at: flops - causal * self.later.get(at, 0) for at, flops in self.products.items()}

    def needed_flops(self) -> int:
        """FLOPs without pairs that a mask hides: the future, and tokens outside a sliding window."""
        return sum(self.products.values()) - sum(self.hidden.values())

    def recompute_bytes(self) -> int:
        """Bytes kept if each layer keeps only its input and is recomputed in the backward pass."""
        inside = [kept for _, kept in self.layers]
        return self.kept - sum(inside) + sum(given for given, _ in self.layers) + max(inside, default=0)


def inputs_of(spec: Model, length: int, source_length: int | None = None) -> dict[str, Tensor]:
    """Return inputs of one row on the meta device: `length` tokens, audio samples or frames, or an image. An encoder
    reads `source_length` tokens (default: `length`)."""
    source = length if source_length is None else source_length
    choices = (1,) if isinstance(spec.head, MultipleChoiceHead) else ()
    shapes: dict[str, tuple[int, ...]] = {}
    declared = dict(COMMON)
    for part in spec.readers:
        embedding: Any = dict(part.items())["embedding"]
        shapes |= embedding.row(source if spec.pair else length, part.width)
        declared |= embedding.input_kinds
    kinds = {name: torch.long if declared.get(name) == "integers" else torch.float32 for name in shapes}
    with torch.device("meta"):
        inputs = {name: torch.zeros(1, *choices, *shape, dtype=kinds[name]) for name, shape in shapes.items()}
        for name, extra in extra_inputs(spec).items():
            inputs[name] = torch.zeros(1, *choices, *extra.shape(source if spec.pair else length), dtype=torch.long)
        if spec.pair:
            inputs["decoder_input_ids"] = torch.zeros(1, length, dtype=torch.long)
        elif any(part.reads_memory for _, part in walk(spec)):
            inputs["encoder_hidden_states"] = torch.zeros(1, source, memory_width(spec))
    return inputs


def fixed_input(spec: Model) -> tuple[str, tuple[int, ...]] | None:
    """Return the name and shape of an input whose shape does not depend on the length (an image), or None."""
    if spec.pair or len(spec.readers) > 1:
        return None
    embedding: Any = dict(spec.items())["embedding"]
    first, other = (embedding.row(length, spec.width) for length in (1, 2))
    return next(iter(first.items())) if first == other else None


def memory_width(spec: Model) -> int:
    """Return the width of the memory of a decoder that is used without an encoder."""
    widths = (part.memory_width for _, part in walk(spec))
    return next((width for width in widths if width is not None), spec.width)


def measure(
    model: TransformerModule, inputs: dict[str, Tensor], step: bool = False, half: torch.dtype | None = None
) -> Work:
    """Measure a forward pass of a model on the meta device, or with `step` a decoding step after the other tokens. With
    `half`, it is a pass in training mode under autocast; otherwise the model is in eval mode."""
    compute(model)
    if half is not None:
        fuse(model, training=True)
    device = CountingDevice(model.train(half is not None), half)
    ledger, state = Ledger(model, device), None
    device.ledger = ledger
    with torch.device("meta"), graph_capture():
        if step:
            name = "decoder_input_ids" if model.spec.pair else "input_ids"
            ids = inputs[name]
            state = model.new_state()
            model(Call({**inputs, name: ids[:, 1:]}, state))
            inputs = {name: ids[:, :1]}
        with ledger.watch(), ledger, device:
            outputs = model(Call(inputs, state))
    memory = outputs.get("encoder_last_hidden_state") if model.spec.pair else None
    return Work(*ledger.sums, ledger.kept, tuple(ledger.layers), 0 if memory is None else memory.shape[1])


# -- products ---------------------------------------------------------------------------------------------------------


def _matrices(a: Tensor, b: Tensor) -> int:
    """FLOPs of (..., T, K) times (..., K, S)."""
    return 2 * a.numel() * b.shape[-1]


def _convolution(x: Tensor, weight: Tensor, out: Tensor, transposed: bool) -> int:
    return 2 * (x if transposed else out).numel() * weight[0].numel()


COSTS: dict[str, Callable[..., int]] = {
    "aten::mm": lambda out, a, b, *rest: _matrices(a, b),
    "aten::addmm": lambda out, c, a, b, *rest: _matrices(a, b),
    "aten::bmm": lambda out, a, b, *rest: _matrices(a, b),
    "aten::baddbmm": lambda out, c, a, b, *rest: _matrices(a, b),
    "aten::convolution": lambda out, x, w, bias, stride, pad, dilation, back, *rest: _convolution(x, w, out, back),
    "anyformer::grouped_linear": lambda out, x, weight, *rest: _matrices(
        x, weight[0]
    ),  # each row uses one of the matrices
}


EXACT = 2**14  # up to this many tokens, the visible pairs of any mask are counted exactly


@functools.lru_cache(maxsize=256)
def visible_pairs(mask: Mask, length: int) -> int:
    """Return the number of (query, key) pairs that a mask allows in a text of `length` tokens. For masks without a
    formula here, all pairs are evaluated; above EXACT tokens, all keys of a sample of the queries."""
    T, parts = length, mask.masks if isinstance(mask, All) else (mask,)
    if any(isinstance(part, Causal) for part in parts) and all(isinstance(part, Causal | Window) for part in parts):
        size = min((T, *(part.size for part in parts if isinstance(part, Window))))
        return size * (size + 1) // 2 + (T - size) * size
    if all(isinstance(part, Full) for part in parts):
        return T * T
    with torch.device("cpu"):
        chosen = torch.arange(T) if T <= EXACT else torch.linspace(0, T - 1, max(EXACT**2 // T, 1)).long()
        row, keys = torch.zeros(1, 1, dtype=torch.long), torch.arange(T)[None]
        seen = 0
        for queries in chosen.split(max(2**22 // T, 1)):
            allowed = mask.allows(row, queries[:, None], keys, Rows())
            seen += int(allowed.expand(len(queries), T).sum())
    return seen * T // len(chosen)


Sums = tuple[Counter[str], Counter[str], Counter[str], Counter[str]]


def empty_sums() -> Sums:
    return Counter(), Counter(), Counter(), Counter()


@dataclasses.dataclass(frozen=True)
class LayerCost:
    """The work of a layer."""

    sums: Sums
    kept: int
    same: bool  # whether the output has the shape of the input
    keeps_output: bool


@dataclasses.dataclass
class Frame:
    """A module that is running."""

    address: str = ""
    past: bool = False  # whether attention is causal here
    mask: Mask | None = None  # the Part's mask, if it has one
    tokens: int = 0  # number of tokens in its input


class Ledger(TorchDispatchMode):
    """Adds up the products of each module, and the bytes kept for the backward pass."""

    def __init__(self, model: TransformerModule, device: Device) -> None:
        super().__init__()
        self.model, self.device, self.frames = model, device, [Frame()]
        self.sums = empty_sums()  # the first four fields of Work
        self.layers: list[tuple[int, int]] = []
        self.runs: dict[Any, list[LayerCost]] = {}  # by layer, input shape and dtype, and what its layers share
        self.shared: dict[int, dict[str, Any]] = {}  # `ctx.shared` of all layers; keeping them alive keeps ids unique
        # storages by address; keeping them alive keeps the addresses unique
        storages = (tensor.untyped_storage() for tensor in (*model.parameters(), *model.buffers()))
        self.held = {storage._cdata: storage for storage in storages}
        self.kept = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would make torch import its compiler, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out, name = func(*args, **(kwargs or {})), func._schema.name
        if name in COSTS:
            self.note(COSTS[name](out, *args), *((out.shape, args[0].shape) if "bmm" in name else ()))
        return out

    def note(self, flops: int, *shapes: torch.Size) -> None:
        """Add a product. `shapes`: for a product of activations, shapes that may be attention weights (..., T, T)."""
        frame, (products, pairs, later, hidden) = self.frames[-1], self.sums
        products[frame.address] += flops
        pairs[frame.address] += flops * bool(shapes)
        T = frame.tokens
        if not any(shape[-2:] == (T, T) for shape in shapes):
            return
        future = flops * (T - 1) // (2 * T) if frame.past else 0  # T (T - 1) / 2 of the T T pairs
        later[frame.address] += future
        masked = future if frame.mask is None else flops * (T * T - visible_pairs(frame.mask, T)) // (T * T)
        hidden[frame.address] += masked

    def holds(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self.held

    def keep(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.held and storage._cdata not in self.device.casts:
            self.held[storage._cdata] = storage
            self.kept += storage.nbytes()
        return tensor

    # -- modules ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Track which module runs and what autograd saves, inside the block."""
        handles, layers = [], []
        known = {module: address for address, module, _ in reversed([*walk_modules(self.model)])}
        for module, address in known.items():
            handles.append(module.register_forward_pre_hook(self.enter_hook(address)))
            handles.append(module.register_forward_hook(self.leave))
            for i, layer in enumerate(module.layers if isinstance(module, StackModule) else ()):
                names = known[original(layer)], f"{address}.layers.{i}"
                layer.forward = functools.partial(self.layer, original(layer), names)
                layers.append(layer)
        try:
            with torch.autograd.graph.saved_tensors_hooks(self.keep, lambda kept: kept):
                yield
        finally:
            for handle in handles:
                handle.remove()
            for layer in layers:
                del layer.forward

    def enter_hook(self, address: str) -> Callable[[nn.Module, Any], None]:
        part = _part(self.model.spec, address)

        def enter(module: nn.Module, args: Any) -> None:
            frame = dataclasses.replace(self.frames[-1], address=address)
            if isinstance(part, Op):
                frame.past, frame.tokens = part.sees == "past", args[0].shape[1]
                frame.mask = part.mask
            self.frames.append(frame)

        return enter

    def leave(self, module: nn.Module, args: Any, out: Any) -> None:
        self.frames.pop()

    def layer(self, layer: nn.Module, names: tuple[str, str], x: Tensor, ctx: Any) -> Tensor:
        """Run a layer, or reuse the cost of an equal layer on the same shape under this layer's address.

        The first two equal layers run (the first also computes the values of `ctx.shared`); later layers with the same
        context reuse the second's cost. `names`: the address of the module that runs, and of this layer."""
        self.shared[id(ctx.shared)] = ctx.shared
        runs = self.runs.setdefault((id(layer), x.shape, x.dtype, id(ctx.shared)), [])
        if len(runs) < 2 or not runs[1].same:
            outer, kept, self.sums = self.sums, self.kept, empty_sums()
            out = type(layer).forward(layer, x, ctx)
            runs.append(LayerCost(self.sums, self.kept - kept, out.shape == x.shape, self.holds(out)))
            self.sums, self.kept = outer, kept
        else:  # the cost includes the input, so what reads the states of all layers keeps no second copy of it
            out = x.clone()
            for tensor in (x, out) if runs[1].keeps_output else (x,):
                self.held[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        for mine, more in zip(self.sums, runs[-1].sums, strict=True):
            for address, flops in more.items():
                mine[names[1] + address.removeprefix(names[0])] += flops
        self.kept += runs[-1].kept
        self.layers.append((x.nbytes, runs[-1].kept))
        return out


def _part(spec: Model, address: str) -> Part | None:
    try:
        part = value_at(spec, address) if address else spec
    except ValueError:  # a submodule that is not a Part
        return None
    return part if isinstance(part, Part) else None


class CountingDevice(Device):
    """Counts the products of attention, which are inside one kernel."""

    ledger: Ledger

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        pairs = torch.Size((*q.shape[:-1], k.shape[-2]))
        self.ledger.note(2 * pairs.numel() * (q.shape[-1] + v.shape[-1]), pairs)
        return super().attend(q, k, v, mask)
