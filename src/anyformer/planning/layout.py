"""Memory and communication per device, for a layout of a training over many devices.

Assumes `anyformer train` with Adam: weights, gradients and two moments in fp32, matrix products in bf16.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from anyformer.counting import Count, rows
from anyformer.counting.shared_layers import Survey, walk_modules
from anyformer.models.construct import skeleton
from anyformer.parts.feedforward.moe import ExpertsModule
from anyformer.train import shard
from anyformer.train.device_specs import Accelerator
from anyformer.train.parallel import Mesh

USABLE = 0.9  # fraction of a device's memory; the rest is for kernels, buffers and fragmentation
MACHINE = 8  # devices per machine, the limit of tensor parallelism, which communicates in every layer
MOST = 2**16  # maximum number of devices
SIZES = ("replicate", "shard", "expert", "tensor", "pipeline")


@dataclasses.dataclass(frozen=True)
class DeviceLayout:
    """Devices = replicate x shard x expert x tensor x pipeline. `recompute` keeps only the inputs of layers. With
    `expert`, devices process different texts and send each other tokens; all parameters that are not experts are
    sharded over shard x expert devices."""

    replicate: int = 1
    shard: int = 1
    tensor: int = 1
    pipeline: int = 1
    recompute: bool = False
    expert: int = 1

    @property
    def devices(self) -> int:
        return self.texts * self.tensor * self.pipeline

    @property
    def texts(self) -> int:
        """The number of data-parallel groups of devices."""
        return self.replicate * self.shard * self.expert

    def __str__(self) -> str:
        named = [(name, getattr(self, name)) for name in SIZES]
        shown = " ".join(f"{name}={size}" for name, size in named if size > 1) or "one device"
        return f"{shown}, recomputed" if self.recompute else shown


@dataclasses.dataclass(frozen=True)
class Need:
    """Bytes on one device, and bytes it sends per step."""

    way: DeviceLayout  # `anyformer plan --json` writes this name
    weights: float  # including their copies in bf16
    gradients: float
    optimizer: float
    activations: float
    buffers: float  # gathered parameters of the running layers; without shards, gradient buckets of replicas
    sent: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer + self.activations + self.buffers

    def fits(self, device: Accelerator) -> bool:
        return self.total <= USABLE * device.memory


class TrainingJob:
    """A training of a model on texts of `length` tokens: `batch` texts per step, `micro` at once per device."""

    def __init__(self, counted: Count, length: int, batch: int, micro: int = 1) -> None:
        assert counted.spec is not None
        self.counted, self.spec, self.length, self.batch, self.micro = counted, counted.spec, length, batch, micro
        self.work = counted.work(length, half=torch.bfloat16)
        self.model: nn.Module = skeleton(self.spec, Survey)
        every = walk_modules(self.model)  # also layers that are only placeholders for an equal layer
        self.experts = {address: module for address, module, _ in every if isinstance(module, ExpertsModule)}
        kinds = self._kinds(self.experts)
        sizes: dict[str, list[int]] = {}  # layer -> [parameters of experts, other parameters]
        for address, size in counted.parts.items():
            names = address.split(".")
            if "layers" in names[:-1]:
                layer = ".".join(names[: names.index("layers") + 2])
                sizes.setdefault(layer, [0, 0])[not self._kinds([address.rpartition(".")[0]]) <= kinds] += size
        self.inside, self.layers = sum(map(sum, sizes.values())), [*sizes.values()]
        self.splits: dict[int, int] = {}
        self.outside, self.depth = counted.parameters - self.inside, len(sizes)

    # -- possible splits ----------------------------------------------------------------------------------------------

    def split(self, tensor: int) -> int:
        """Return the number of parameters split by tensor parallelism; ValueError if the model cannot be split."""
        if tensor not in self.splits:
            self.splits[tensor] = self._split(tensor)
        return self.splits[tensor]

    def _split(self, tensor: int) -> int:
        if tensor == 1:
            return 0
        kinds = self._kinds({*shard.plan(self.model, tensor), *self.experts})
        table = rows(((address.rpartition(".")[0], size) for address, size in self.counted.parts.items()), 99)
        return sum(size for row, size in table.items() if row in kinds)

    def _kinds(self, addresses: Iterable[str]) -> set[str]:
        """Return addresses without layer numbers, as in tables."""
        return {next(iter(rows([(address, 0)], 99))) for address in addresses}

    def check(self, layout: DeviceLayout) -> None:
        """Raise ValueError if the model or the batch cannot be divided in this way."""
        self.split(layout.tensor)
        if layout.expert > 1:
            Mesh(tensor=layout.tensor, expert=layout.expert)
            shard.check_experts(self.model, layout.expert)
        if self.depth % layout.pipeline:
            raise ValueError(f"{self.depth} layers cannot be split into pipeline={layout.pipeline} equal stages")
        if self.batch % (layout.texts * self.micro):
            groups = f"{layout.texts} groups of devices" if layout.texts > 1 else "one device"
            raise ValueError(f"a batch of {self.batch} texts is not a multiple of {self.micro} at once on {groups}")

    # -- memory, communication and time -------------------------------------------------------------------------------

    def need(self, layout: DeviceLayout) -> Need:
        self.check(layout)
        t, e, layers = layout.tensor, layout.expert, self.work.layers
        # P: parameters of one device without FSDP, of experts and others; stored: with FSDP
        own = sum(experts for experts, _ in self.layers) / layout.pipeline / e if e > 1 else 0.0
        rest = self.outside + (self.inside - self.split(t) * (1 - 1 / t)) / layout.pipeline - own * e
        P = own + rest
        stored = own / layout.shard + rest / (layout.shard * e)
        layer = max((experts / e + others for experts, others in self.layers), default=0) / t
        gathered = layer if layout.shard > 1 else max((others for _, others in self.layers), default=0) / t
        copies = 2 * (layer + self.outside if layout.recompute else P)  # bf16, kept by autograd for the backward pass
        sharded = layout.shard * e > 1
        buffers = 4.0 * (2 * gathered + self.outside) if sharded else 4.0 * P * (layout.replicate > 1)
        # the inputs of a layer and of its second norm are not split by tensor parallelism
        inside = [min(kept, 2 * given) + max(kept - 2 * given, 0) / t for given, kept in layers]
        once = self.work.kept - sum(kept for _, kept in layers)
        kept = sum(given for given, _ in layers) + max(inside, default=0) if layout.recompute else sum(inside)
        steps = self.batch // (layout.texts * self.micro)
        sent = _ring(layout.replicate) * 2 * 4 * stored
        sent += steps * 3 * 4 * (_ring(layout.shard) * own + _ring(layout.shard * e) * rest)
        # tokens in bf16 to and from each expert on another device, forward and backward
        sent += steps * self.micro * _ring(e) * self.routed / layout.pipeline * (6 if layout.recompute else 4)
        stream = self.micro * sum(given for given, _ in layers) / 2 / layout.pipeline  # bf16 products
        sent += steps * _ring(t) * 2 * stream * (6 if layout.recompute else 4)  # twice per layer, forward and backward
        sent += steps * 2 * self.micro * max((given for given, _ in layers), default=0) * (layout.pipeline > 1)
        # the first pipeline stage keeps activations of as many texts as there are stages
        return Need(layout, 4 * stored + copies, 4 * stored, 8 * stored, self.micro * (once + kept), buffers, sent)

    @property
    def routed(self) -> float:
        """Bytes in bf16 of the tokens of one text, times the experts per token."""
        return sum(2.0 * self.length * module.top_k * module.up.shape[1] for module in self.experts.values())

    def flops(self, layout: DeviceLayout) -> int:
        """Return the FLOPs of one step on all devices together."""
        return self.counted.training_flops(self.length, self.batch, causal=True, recompute=layout.recompute)

    def seconds(self, layout: DeviceLayout, device: Accelerator, utilisation: float) -> float:
        """Return the seconds per step at this utilisation, including the time that pipeline stages are idle."""
        busy = self.flops(layout) / (layout.devices * device.flops * utilisation)
        steps = self.batch // (layout.texts * self.micro)
        return busy * (steps + layout.pipeline - 1) / steps

    # -- layouts ------------------------------------------------------------------------------------------------------

    def usual(self, devices: int) -> Iterator[DeviceLayout]:
        """Yield common layouts: data parallel, FSDP, FSDP with tensor parallel, pipeline, and expert parallel."""
        yield DeviceLayout(replicate=devices)
        if devices > 1:
            yield DeviceLayout(shard=devices)
            inside = _largest(devices, MACHINE)
            yield DeviceLayout(shard=devices // inside, tensor=inside)
            yield DeviceLayout(replicate=devices // inside, pipeline=inside)
            if spread := self.spread(devices):
                yield DeviceLayout(shard=devices // spread[-1], expert=spread[-1])

    def layouts(self, devices: int) -> Iterator[DeviceLayout]:
        """Yield the layouts that `anyformer train` supports, simplest first."""
        inner = [(size, 1) for size in range(1, MACHINE + 1) if devices % size == 0]
        for tensor, expert in (*inner, *((1, size) for size in self.spread(devices))):
            data = devices // (tensor * expert)
            for recompute in (False, True):
                for shards in (size for size in range(1, data + 1) if data % size == 0):
                    yield DeviceLayout(data // shards, shards, tensor, 1, recompute, expert)

    def spread(self, devices: int) -> list[int]:
        """Return the sizes of expert parallelism above 1 that divide `devices` and every number of experts."""
        numbers = [module.num_experts for module in self.experts.values()]
        return [n for n in range(2, devices + 1) if numbers and devices % n == 0 and not any(e % n for e in numbers)]

    def smallest(self, devices: int, device: Accelerator) -> Need | None:
        """Return the simplest layout that fits on `devices` devices, or on 2, 4, ... times as many, or None."""
        while devices <= MOST:
            for layout in self.layouts(devices):
                try:
                    need = self.need(layout)
                except ValueError:
                    continue
                if need.fits(device):
                    return need
            devices *= 2
        return None


def _ring(size: int) -> float:
    """Return the fraction of a tensor that each of `size` devices sends in one ring pass."""
    return (size - 1) / size


def _largest(number: int, most: int) -> int:
    return max(size for size in range(1, most + 1) if number % size == 0)


def parse_layout(text: str, devices: int) -> DeviceLayout:
    """Parse "shard=4,tensor=2" as a layout. If `replicate` is not given, it is computed from `devices`."""
    sizes: dict[str, Any] = {}
    for piece in text.split(","):
        name, equals, value = piece.strip().partition("=")
        if name in sizes:
            raise ValueError(f"--layout {text!r}: {name} is given twice")
        if name == "recompute" and not equals:
            sizes[name] = True
        elif name in SIZES and value.isdecimal() and int(value) > 0:
            sizes[name] = int(value)
        else:
            fields = ", ".join(f"{name}=" for name in SIZES)
            raise ValueError(f"--layout {text!r}: cannot read {piece!r}; the fields are {fields} and recompute")
    layout = DeviceLayout(**sizes)
    if "replicate" not in sizes and devices % layout.devices == 0:
        layout = dataclasses.replace(layout, replicate=devices // layout.devices)
    if layout.devices != devices:
        raise ValueError(f"--layout {text!r} needs a multiple of {layout.devices} devices; there are {devices}")
    return layout
