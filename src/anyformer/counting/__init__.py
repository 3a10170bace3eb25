"""Parameters, FLOPs and memory of a model, computed from its description without allocating anything."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from anyformer.counting.flops import Work, inputs_of, measure
from anyformer.counting.shared_layers import Survey, walk_modules
from anyformer.counting.step_memory import StepMemory, run_step
from anyformer.models import Model, position_limit
from anyformer.models.construct import skeleton
from anyformer.parts.computed import ComputesTensors
from anyformer.parts.embedding.text import TextEmbedding
from anyformer.parts.embedding.trajectory import TrajectoryEmbedding
from anyformer.parts.unused import PartlyUsed
from anyformer.runtime.state import declarations
from anyformer.runtime.stores import StateSpec
from anyformer.specs.messages import quote
from anyformer.specs.part import parts_in


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of memory by purpose."""

    weights: int
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0  # kept for the backward pass
    state: int = 0  # kept between decoding steps
    peak: int = 0  # maximum at any time; gradients replace activations during the backward pass

    @property
    def total(self) -> int:
        """The sum of all, as if they existed at the same time."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.state


@dataclasses.dataclass(frozen=True)
class Traffic:
    """FLOPs of a pass, and the bytes that any implementation must read and write: weights and state."""

    flops: int
    bytes: int

    @property
    def intensity(self) -> float:
        """FLOPs per byte. Above the device's own FLOPs per byte, a pass is limited by compute, below it by memory."""
        return self.flops / max(self.bytes, 1)


def checked_dtype(dtype: Any) -> torch.dtype:
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"dtype must be a torch.dtype such as torch.bfloat16, got {quote(dtype)}")
    return dtype


@dataclasses.dataclass(frozen=True)
class Count:
    """The cost of a description. Tied weights count once, at the address that owns them.

    A multiply-add is two FLOPs. Both attention products count for all T x T pairs, unless `causal` excludes the
    pairs that a causal mask hides. Only products count, not norms, activations or scans. Stored tables that a formula
    computes (sinusoids) are `fixed` and do not count as parameters."""

    parts: dict[str, int]  # address of a parameter -> its size
    remembered: tuple[StateSpec, ...] = ()  # decoding state of each mixer
    experts: int = 0  # parameters of all experts
    idle: int = 0  # parameters of experts that a token does not use
    tables: int = 0  # parameters of embedding tables; a token reads one row of each
    fixed: int = 0  # size of stored tensors that a formula computes (sinusoids)
    spec: Model | None = dataclasses.field(default=None, repr=False)

    def __repr__(self) -> str:
        return f"Count(parameters={self.parameters:_}, active={self.active:_}, parts={{{len(self.parts)} addresses}})"

    @property
    def parameters(self) -> int:
        return sum(self.parts.values())

    @property
    def active(self) -> int:
        """Parameters that one token uses."""
        return self.parameters - self.idle

    def state(self, batch: int, tokens: int, dtype: torch.dtype = torch.float32, source_length: int = 0) -> int:
        """Bytes of the decoding state of `batch` texts of `tokens` tokens; an encoder reads `source_length` tokens."""
        memory_length = source_length
        dtype = checked_dtype(dtype)
        if memory_length and self.spec is not None and self.spec.pair:  # an audio encoder shortens its input
            memory_length = self.work(1, source_length).places
        return sum(each.nbytes(batch, tokens, dtype, memory_length) for each in self.remembered)

    def flops(self, length: int, batch: int = 1, causal: bool = False, source_length: int | None = None) -> int:
        """FLOPs of a forward pass over `batch` texts of `length` tokens; an encoder reads `source_length` tokens."""
        return batch * sum(self.work(length, source_length).by_address(causal).values())

    def needed_flops(self, length: int, batch: int = 1, source_length: int | None = None) -> int:
        """FLOPs of a forward pass without pairs that a mask hides, such as the future or tokens outside a sliding
        window. A kernel that skips masked pairs computes this many; other kernels compute `flops`."""
        return batch * self.work(length, source_length).needed_flops()

    def positions(self, length: int) -> int:
        """Return the number of vectors that the stack reads: tokens of a text, frames of a recording, or patches of an
        image (whose number does not depend on `length`)."""
        assert self.spec is not None
        if self.spec.pair or len(self.spec.readers) > 1:
            return length
        embedding: Any = dict(self.spec.items())["embedding"]
        return embedding.vectors(length)

    def training_flops(
        self,
        length: int,
        batch: int = 1,
        causal: bool = False,
        recompute: bool = False,
        source_length: int | None = None,
    ) -> int:
        """FLOPs of a training step. Backward takes twice as many as forward; `recompute` adds another forward pass."""
        return (4 if recompute else 3) * self.flops(length, batch, causal, source_length)

    def memory(
        self,
        dtype: torch.dtype = torch.float32,
        batch: int = 1,
        length: int = 0,
        source_length: int | None = None,
        training: bool = False,
        recompute: bool = False,
        moments: int = 2,
    ) -> Memory:
        """Memory to generate texts of `length` tokens (weights and state in `dtype`), or to train on them.

        In training, weights, gradients and the optimizer's `moments` (two for AdamW) are fp32; a half-precision `dtype`
        adds a copy of the weights. Activations are those that `anyformer train` keeps on a CUDA device; with
        `recompute`, only the inputs of layers."""
        P, stored, dtype = self.parameters, self.parameters + self.fixed, checked_dtype(dtype)
        if not training:
            source = length if source_length is None else source_length
            writes = self.spec is not None and bool(self.spec.left_to_right)
            state_dtype = dtype if dtype.is_floating_point else torch.bfloat16
            state = self.state(batch, length, state_dtype, source) if writes and length else 0
            return Memory(stored * dtype.itemsize, state=state, peak=stored * dtype.itemsize + state)
        half = dtype if dtype.itemsize < 4 else None
        step = StepMemory(P * dtype.itemsize if half else 0, P * dtype.itemsize if half else 0, 0)
        if length:
            assert self.spec is not None
            step = _step(self.spec, batch, length, source_length, half, recompute)
        peak = 4 * stored + 4 * P * moments + max(step.most, 4 * P)
        return Memory(4 * stored + step.copies, 4 * P, 4 * P * moments, step.kept - step.copies, peak=peak)

    def prefill(
        self, length: int, batch: int = 1, dtype: torch.dtype = torch.float32, source_length: int | None = None
    ) -> Traffic:
        """Traffic of reading a prompt of `length` tokens in one pass."""
        state = self.memory(dtype, batch, length, source_length).state
        return Traffic(self.flops(length, batch, True, source_length), self._read(batch * length, dtype) + state)

    def decode(
        self, length: int, batch: int = 1, dtype: torch.dtype = torch.float32, source_length: int | None = None
    ) -> Traffic:
        """Traffic of the decoding step for the last of `length` tokens, with a state of the tokens before it."""
        step = sum(self.work(length, source_length, step=True).products.values())
        state = self.memory(dtype, batch, length, source_length).state
        return Traffic(batch * step, self._read(batch, dtype) + state)

    def _read(self, tokens: int, dtype: torch.dtype) -> int:
        """Bytes of the weights that this many tokens read, assuming that they use as many experts as possible."""
        experts = min(self.experts, tokens * (self.experts - self.idle))
        return (self.parameters - self.tables - self.experts + experts) * dtype.itemsize

    def work(
        self, length: int, source_length: int | None = None, half: torch.dtype | None = None, step: bool = False
    ) -> Work:
        """Work of one text of `length` tokens, or with `step` of its last token only; with `half`, in training with
        autocast to that dtype."""
        assert self.spec is not None
        return _work(self.spec, length, source_length, half, step)

    def table(self, depth: int = 2) -> dict[str, int]:
        """Parameters by the first `depth` names of the address, summed over the layers of a stack."""
        return rows(((address.rpartition(".")[0], size) for address, size in self.parts.items()), depth)

    def flops_table(
        self, length: int, depth: int = 2, causal: bool = False, source_length: int | None = None
    ) -> dict[str, int]:
        """FLOPs of a text, with the same rows as `table`."""
        return rows(self.work(length, source_length).by_address(causal).items(), depth)


def rows(sizes: Iterable[tuple[str, int]], depth: int) -> dict[str, int]:
    """Sum sizes by the first `depth` names of their addresses, without layer numbers."""
    sums: dict[str, int] = {}
    for address, size in sizes:
        row = ".".join([name for name in address.split(".") if not name.isdecimal()][:depth])
        sums[row] = sums.get(row, 0) + size
    return sums


@functools.lru_cache(maxsize=64)
def _work(spec: Model, length: int, source_length: int | None, half: torch.dtype | None, step: bool) -> Work:
    check_lengths(spec, length, source_length)
    if step and not spec.writes:
        raise ValueError("this model does not generate from left to right and has no decoding step")
    # a state needs every layer, so equal layers are not shared
    model = skeleton(spec) if step else skeleton(spec, Survey)
    return measure(model, inputs_of(spec, length, source_length), step, half)


@functools.lru_cache(maxsize=64)
def _step(
    spec: Model, batch: int, length: int, source_length: int | None, half: torch.dtype | None, recompute: bool
) -> StepMemory:
    check_lengths(spec, length, source_length)
    if batch > MOST:
        raise ValueError(f"batch must be at most {MOST:,}, got {batch:,}")
    row = inputs_of(spec, length, source_length)
    return run_step(skeleton(spec), {n: v.expand(batch, *v.shape[1:]) for n, v in row.items()}, half, recompute)


MOST = 2**26  # tokens and texts; the bytes of a larger square matrix do not fit into torch's integers


def check_lengths(spec: Model, length: int, source_length: int | None) -> None:
    for name, size in (("length", length), ("source_length", source_length)):
        if size is not None and size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
        if size is not None and size > MOST:
            raise ValueError(f"{name} must be at most {MOST:,}, got {size:,}")
    limit = position_limit(spec)
    if (
        limit is not None
        and length > limit
        and any(isinstance(part, (TextEmbedding, TrajectoryEmbedding)) for _, part in parts_in(spec))
    ):
        raise ValueError(f"length is {length:,} tokens, but this model takes at most {limit:,}")


def count(spec: Model) -> Count:
    """Count the cost of a description from shapes on the meta device. Of several equal layers, only one is built."""
    model = skeleton(spec, Survey)
    parts: dict[str, int] = {}
    modules: list[tuple[str, nn.Module]] = []
    owners = {owner for _, owner in spec.ties}
    seen: set[Any] = set()
    idle, experts, tables, fixed = 0, 0, 0, 0
    for address, module, copy in walk_modules(model):
        computed = module.computed_tensors() if isinstance(module, ComputesTensors) else ()
        formulas = {f"{address}.{name}" for name in computed}
        for name, parameter in module.named_parameters(address, recurse=False, remove_duplicate=False):
            key = (copy, id(module), name.rpartition(".")[2])  # equal layers are one module: its id is not unique
            if key not in seen and not spec.owner_of(name):
                seen.add(key)
                if name in formulas:
                    fixed += parameter.numel()
                    continue
                parts[name] = parameter.numel()
                tables += parameter.numel() * (isinstance(module, nn.Embedding) and name not in owners)
        if (copy, id(module)) not in seen:
            seen.add((copy, id(module)))
            modules.append((address, module))
            if isinstance(module, PartlyUsed):
                named = module.named_parameters(address)
                sizes = [parameter.numel() for name, parameter in named if not spec.owner_of(name)]
                experts += sum(sizes)
                idle += round(sum(sizes) * module.unused)
    remembered = tuple(each for _, each in declarations(model, modules))
    return Count(parts, remembered, experts, idle, tables, fixed, spec)
