"""Counting from the description alone: nothing is allocated."""

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
from anyformer.runtime.state import StateSpec, declarations
from anyformer.specs.messages import quote
from anyformer.specs.part import parts_in


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes, by what they hold."""

    weights: int
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0  # kept for the backward pass
    state: int = 0  # kept between decoding steps
    peak: int = 0  # the most at any time: gradients come as activations go, and both need room to be made

    @property
    def total(self) -> int:
        """All that is held, as if at once."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.state


@dataclasses.dataclass(frozen=True)
class Traffic:
    """What a pass computes, and what it at least has to read from memory and write there: weights and state."""

    flops: int
    bytes: int

    @property
    def intensity(self) -> float:
        """FLOPs a byte. A device is busy computing where this is above its own FLOPs a byte, and waiting below."""
        return self.flops / max(self.bytes, 1)


def checked_dtype(dtype: Any) -> torch.dtype:
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"dtype is a type of torch such as torch.bfloat16, got {quote(dtype)}")
    return dtype


@dataclasses.dataclass(frozen=True)
class Count:
    """What a description costs. Parameters by address: tied weights count once, at the address that owns them.

    A multiply-add is two FLOPs. Both products of attention are counted, over the whole square unless `causal` leaves
    out what a mask of the past throws away. Work that is no product (norms, activations, scans) is not counted.
    Parameters are what training changes: a stored table that a formula gives (sinusoids) is `fixed` instead."""

    parts: dict[str, int]  # address of a parameter -> its size
    remembered: tuple[StateSpec, ...] = ()  # what each mixer keeps between decoding steps
    experts: int = 0  # parameters of all experts
    idle: int = 0  # of these, those that a token does not go to
    tables: int = 0  # parameters of which a token reads its own row alone
    fixed: int = 0  # numbers that are stored with the weights and that a formula gives (sinusoids): no parameters
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
        """Bytes of the decoding state of `batch` texts of `tokens` (after so many read by an encoder)."""
        places = source_length
        dtype = checked_dtype(dtype)
        if places and self.spec is not None and self.spec.pair:  # an encoder of sound gives fewer than it reads
            places = self.work(1, source_length).places
        return sum(each.nbytes(batch, tokens, dtype, places) for each in self.remembered)

    def flops(self, length: int, batch: int = 1, causal: bool = False, source_length: int | None = None) -> int:
        """Of a forward pass over `batch` texts of `length` tokens; an encoder before them reads `source_length`."""
        return batch * sum(self.work(length, source_length).by_address(causal).values())

    def needed_flops(self, length: int, batch: int = 1, source_length: int | None = None) -> int:
        """Of `flops`, those that the masks let through: a sliding window's own tokens, and nothing of the future where
        a token sees its past. A kernel that skips all that is masked computes this; the others compute `flops`."""
        return batch * self.work(length, source_length).needed_flops()

    def positions(self, length: int) -> int:
        """How many vectors the stack reads of an input of `length`: the tokens of a text, the frames of a recording, or
        the patches of an image, of which there are as many whatever the length."""
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
        """Forward, and backward, which takes two products for each; with `recompute`, forward once more."""
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
        """To write texts of `length` tokens: weights and state, in `dtype`. In training, weights, gradients and the
        optimiser's `moments` (AdamW's two) are fp32, and in half precision the weights have a copy in it; activations
        are what `anyformer train` keeps of a batch on a CUDA device, with `recompute` the inputs of layers alone."""
        P, stored, dtype = self.parameters, self.parameters + self.fixed, checked_dtype(dtype)
        if not training:
            source = length if source_length is None else source_length
            writes = self.spec is not None and bool(self.spec.left_to_right)
            held = dtype if dtype.is_floating_point else torch.bfloat16
            state = self.state(batch, length, held, source) if writes and length else 0
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
        """Reading `length` tokens at once."""
        state = self.memory(dtype, batch, length, source_length).state
        return Traffic(self.flops(length, batch, True, source_length), self._read(batch * length, dtype) + state)

    def decode(
        self, length: int, batch: int = 1, dtype: torch.dtype = torch.float32, source_length: int | None = None
    ) -> Traffic:
        """Writing the last of `length` tokens, the others remembered."""
        step = sum(self.work(length, source_length, step=True).products.values())
        state = self.memory(dtype, batch, length, source_length).state
        return Traffic(batch * step, self._read(batch, dtype) + state)

    def _read(self, tokens: int, dtype: torch.dtype) -> int:
        """Bytes of the weights that so many tokens need, each going to experts of its own while there are more."""
        experts = min(self.experts, tokens * (self.experts - self.idle))
        return (self.parameters - self.tables - self.experts + experts) * dtype.itemsize

    def work(
        self, length: int, source_length: int | None = None, half: torch.dtype | None = None, step: bool = False
    ) -> Work:
        """One text of `length` tokens through the model, or with `step` its last one alone; with `half`, as it is
        trained in that precision."""
        assert self.spec is not None
        return _work(self.spec, length, source_length, half, step)

    def table(self, depth: int = 2) -> dict[str, int]:
        """Parameters by the first `depth` names of the address; the layers of a stack are added up."""
        return rows(((address.rpartition(".")[0], size) for address, size in self.parts.items()), depth)

    def flops_table(
        self, length: int, depth: int = 2, causal: bool = False, source_length: int | None = None
    ) -> dict[str, int]:
        """FLOPs of a text, in the same rows."""
        return rows(self.work(length, source_length).by_address(causal).items(), depth)


def rows(sizes: Iterable[tuple[str, int]], depth: int) -> dict[str, int]:
    """(address, size) added up by the first `depth` names of the address, without the numbers of layers."""
    found: dict[str, int] = {}
    for address, size in sizes:
        row = ".".join([name for name in address.split(".") if not name.isdecimal()][:depth])
        found[row] = found.get(row, 0) + size
    return found


@functools.lru_cache(maxsize=64)
def _work(spec: Model, length: int, source_length: int | None, half: torch.dtype | None, step: bool) -> Work:
    check_lengths(spec, length, source_length)
    if step and not spec.writes:
        raise ValueError("this model does not write from left to right: it has no decoding step")
    # a state is of every layer, so that all of them are there to remember
    model = skeleton(spec) if step else skeleton(spec, Survey)
    return measure(model, inputs_of(spec, length, source_length), step, half)


@functools.lru_cache(maxsize=64)
def _step(
    spec: Model, batch: int, length: int, source_length: int | None, half: torch.dtype | None, recompute: bool
) -> StepMemory:
    check_lengths(spec, length, source_length)
    if batch > MOST:
        raise ValueError(f"batch is at most {MOST:,}, got {batch:,}")
    row = inputs_of(spec, length, source_length)
    return run_step(skeleton(spec), {n: v.expand(batch, *v.shape[1:]) for n, v in row.items()}, half, recompute)


MOST = 2**26  # tokens of a text, and texts: beyond, the bytes of a square of them are no number of torch's


def check_lengths(spec: Model, length: int, source_length: int | None) -> None:
    for name, size in (("length", length), ("source_length", source_length)):
        if size is not None and size < 1:
            raise ValueError(f"{name} is at least 1, got {size}")
        if size is not None and size > MOST:
            raise ValueError(f"{name} is at most {MOST:,}, got {size:,}")
    limit = position_limit(spec)
    if (
        limit is not None
        and length > limit
        and any(isinstance(part, (TextEmbedding, TrajectoryEmbedding)) for _, part in parts_in(spec))
    ):
        raise ValueError(f"{length:,} tokens, and this model takes at most {limit:,}")


def count(spec: Model) -> Count:
    """What a description costs, from its shapes on the meta device; of layers that are alike one is built."""
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
            place = (copy, id(module), name.rpartition(".")[2])  # one module stands for all layers alike, tied or not
            if place not in seen and not spec.owner_of(name):
                seen.add(place)
                if name in formulas:
                    fixed += parameter.numel()
                    continue
                parts[name] = parameter.numel()
                tables += parameter.numel() * (isinstance(module, nn.Embedding) and name not in owners)
        if (copy, id(module)) not in seen:
            seen.add((copy, id(module)))
            modules.append((address, module))
            if isinstance(module, PartlyUsed):
                own = module.named_parameters(address)
                sizes = [parameter.numel() for name, parameter in own if not spec.owner_of(name)]
                experts += sum(sizes)
                idle += round(sum(sizes) * module.unused)
    remembered = tuple(each for _, each in declarations(model, modules))
    return Count(parts, remembered, experts, idle, tables, fixed, spec)
