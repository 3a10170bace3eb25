"""What one device holds and says to others, for a way to lay out a training over many.

P parameters, in training as `anyformer train` keeps them: fp32 weights, gradients and two moments, products in bf16.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from anyformer.counting import Count, rows
from anyformer.counting.survey import Survey
from anyformer.models.construct import skeleton
from anyformer.parts.feedforward.moe import ExpertsModule
from anyformer.train import shard
from anyformer.train.accelerators import Accelerator

USABLE = 0.9  # of a device's memory: the rest is for kernels, buffers and gaps
MACHINE = 8  # devices that tensor parallelism may span: it talks in every layer
MOST = 2**16  # devices that a layout is looked for on


@dataclasses.dataclass(frozen=True)
class Way:
    """Devices = replicate x shard x tensor x pipeline; `recompute` keeps the inputs of layers alone."""

    replicate: int = 1
    shard: int = 1
    tensor: int = 1
    pipeline: int = 1
    recompute: bool = False

    @property
    def devices(self) -> int:
        return self.replicate * self.shard * self.tensor * self.pipeline

    @property
    def texts(self) -> int:
        """That are read at once, by as many groups of devices."""
        return self.replicate * self.shard

    def __str__(self) -> str:
        named = [(name, getattr(self, name)) for name in ("replicate", "shard", "tensor", "pipeline")]
        shown = " ".join(f"{name}={size}" for name, size in named if size > 1) or "one device"
        return f"{shown}, recomputed" if self.recompute else shown


@dataclasses.dataclass(frozen=True)
class Need:
    """Bytes on one device, and bytes that it sends in one step."""

    way: Way
    weights: float  # with their copies in half precision
    gradients: float
    optimizer: float
    activations: float
    buffers: float  # parameters that are put together for the layers that run; of copies, gradients on their way
    sent: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer + self.activations + self.buffers

    def fits(self, device: Accelerator) -> bool:
        return self.total <= USABLE * device.memory


class Job:
    """One training of a description: texts of `length` tokens, `batch` of them a step, `micro` on a device at once."""

    def __init__(self, counted: Count, length: int, batch: int, micro: int = 1) -> None:
        assert counted.spec is not None
        self.counted, self.spec, self.length, self.batch, self.micro = counted, counted.spec, length, batch, micro
        self.work = counted.work(length, half=torch.bfloat16)
        self.model: nn.Module = skeleton(self.spec, Survey)
        sizes: dict[str, int] = {}  # by layer
        for address, size in counted.parts.items():
            names = address.split(".")
            if "layers" in names[:-1]:
                layer = ".".join(names[: names.index("layers") + 2])
                sizes[layer] = sizes.get(layer, 0) + size
        self.inside, self.largest = sum(sizes.values()), max(sizes.values(), default=0)
        self.splits: dict[int, int] = {}
        self.outside, self.depth = counted.parameters - self.inside, len(sizes)

    # -- what can be divided ------------------------------------------------------------------------------------------

    def split(self, tensor: int) -> int:
        """Parameters that `tensor` processes deal out among them; ValueError where they cannot."""
        if tensor not in self.splits:
            self.splits[tensor] = self._split(tensor)
        return self.splits[tensor]

    def _split(self, tensor: int) -> int:
        if tensor == 1:
            return 0
        chosen = set(shard.plan(self.model, tensor))
        chosen |= {address for address, module in self.model.named_modules() if isinstance(module, ExpertsModule)}
        kinds = {next(iter(rows([(address, 0)], 99))) for address in chosen}
        table = rows(((address.rpartition(".")[0], size) for address, size in self.counted.parts.items()), 99)
        return sum(size for row, size in table.items() if row in kinds)

    def check(self, way: Way) -> None:
        """ValueError where the model or the batch does not divide so."""
        self.split(way.tensor)
        if self.depth % way.pipeline:
            raise ValueError(f"{self.depth} layers cannot be split into pipeline={way.pipeline} equal stages")
        if self.batch % (way.texts * self.micro):
            groups = f"{way.texts} groups of devices" if way.texts > 1 else "one device"
            raise ValueError(f"a batch of {self.batch} texts is no multiple of {self.micro} at once on {groups}")

    # -- what it takes ------------------------------------------------------------------------------------------------

    def need(self, way: Way) -> Need:
        self.check(way)
        t, layers = way.tensor, self.work.layers
        P = self.outside + (self.inside - self.split(t) * (1 - 1 / t)) / way.pipeline
        layer = self.largest / t
        copies = 2 * (layer + self.outside if way.recompute else P)  # autograd keeps them for the backward pass
        buffers = 4.0 * (2 * layer + self.outside) if way.shard > 1 else 4.0 * P * (way.replicate > 1)
        # a layer's input and that of its second norm are whole on each of them
        inside = [min(kept, 2 * given) + max(kept - 2 * given, 0) / t for given, kept in layers]
        once = self.work.kept - sum(kept for _, kept in layers)
        kept = sum(given for given, _ in layers) + max(inside, default=0) if way.recompute else sum(inside)
        steps = self.batch // (way.texts * self.micro)
        sent = _ring(way.replicate) * 2 * 4 * P / way.shard + steps * _ring(way.shard) * 3 * 4 * P
        stream = self.micro * sum(given for given, _ in layers) / 2 / way.pipeline  # products: the fp32 stream's half
        sent += steps * _ring(t) * 2 * stream * (6 if way.recompute else 4)  # twice a layer, forward and backward
        sent += steps * 2 * self.micro * max((given for given, _ in layers), default=0) * (way.pipeline > 1)
        # of a pipeline, the first stage has as many texts under way as there are stages
        return Need(
            way,
            4 * P / way.shard + copies,
            4 * P / way.shard,
            8 * P / way.shard,
            self.micro * (once + kept),
            buffers,
            sent,
        )

    def flops(self, way: Way) -> int:
        """Of one step, on all devices together."""
        return self.counted.training_flops(self.length, self.batch, causal=True, recompute=way.recompute)

    def seconds(self, way: Way, device: Accelerator, utilisation: float) -> float:
        """Of one step where devices do this share of what they could; stages of a pipeline also wait for the first and
        the last text."""
        busy = self.flops(way) / (way.devices * device.flops * utilisation)
        steps = self.batch // (way.texts * self.micro)
        return busy * (steps + way.pipeline - 1) / steps

    # -- ways ---------------------------------------------------------------------------------------------------------

    def usual(self, devices: int) -> Iterator[Way]:
        """The plain ones: copies, pieces, layers in pieces, stages."""
        yield Way(replicate=devices)
        if devices > 1:
            yield Way(shard=devices)
            inside = _largest(devices, MACHINE)
            yield Way(shard=devices // inside, tensor=inside)
            yield Way(replicate=devices // inside, pipeline=inside)

    def ways(self, devices: int) -> Iterator[Way]:
        """What `anyformer train` can do, from the simplest on: layers in pieces last, most pieces last."""
        for tensor in (size for size in range(1, MACHINE + 1) if devices % size == 0):
            for recompute in (False, True):
                for pieces in (size for size in range(1, devices // tensor + 1) if devices // tensor % size == 0):
                    yield Way(devices // tensor // pieces, pieces, tensor, 1, recompute)

    def smallest(self, devices: int, device: Accelerator) -> Need | None:
        """The simplest way that fits so many devices, or else twice, four times, ... as many."""
        while devices <= MOST:
            for way in self.ways(devices):
                try:
                    need = self.need(way)
                except ValueError:
                    continue
                if need.fits(device):
                    return need
            devices *= 2
        return None


def _ring(size: int) -> float:
    """The share of a tensor that each of `size` devices sends while it goes around once."""
    return (size - 1) / size


def _largest(number: int, most: int) -> int:
    return max(size for size in range(1, most + 1) if number % size == 0)


def way_of(text: str, devices: int) -> Way:
    """ "shard=4,tensor=2" as a Way over so many devices; copies are as many as there are devices for."""
    sizes: dict[str, Any] = {}
    for piece in text.split(","):
        name, equals, value = piece.strip().partition("=")
        if name in sizes:
            raise ValueError(f"--layout {text!r}: {name} is there twice")
        if name == "recompute" and not equals:
            sizes[name] = True
        elif name in ("replicate", "shard", "tensor", "pipeline") and value.isdecimal() and int(value) > 0:
            sizes[name] = int(value)
        else:
            raise ValueError(f"--layout {text!r}: it is made of replicate=, shard=, tensor=, pipeline= and recompute")
    found = Way(**sizes)
    if "replicate" not in sizes and devices % found.devices == 0:
        found = dataclasses.replace(found, replicate=devices // found.devices)
    if found.devices != devices:
        raise ValueError(f"--layout {text!r} is for a multiple of {found.devices} devices, and there are {devices}")
    return found
