"""Pieces of a training step: the module that computes losses, the copy of numbers to the host, and the seeds."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.data import StepBatches
from anyformer.objectives.batches import Batch
from anyformer.objectives.objective import Objective


class LossStep(nn.Module):
    """Computes the loss terms of one micro-batch, as a module that compile, data parallel and sharding can wrap."""

    def __init__(self, objective: Objective, module: nn.Module) -> None:
        super().__init__()
        self.objective, self.module = objective, module

    def forward(self, batch: Batch, divisors: dict[str, Tensor]) -> dict[str, Tensor]:
        sums = self.objective.losses(self.module, batch)
        return {name: total / divisors[name] for name, total in sums.items()}


@dataclasses.dataclass
class PendingStep:
    """A step that was launched; its numbers may still be on the device."""

    step: int
    ready: StepBatches
    divisors: dict[str, Tensor]
    names: list[str]
    numbers: Tensor  # loss terms, number of processes that want to stop, gradient norm
    lr: float
    arrived: torch.cuda.Event | None  # the numbers are on the host after this event
    captured: bool  # whether the pass was the replay of a CUDA graph

    def read(self) -> list[float]:
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.numbers.tolist()


def copy_to_host(numbers: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """Start copying numbers to the host; return the copy and the event after which it is complete. If the copy started
    only when the numbers are read, it would queue behind the next step."""
    if numbers.device.type != "cuda":
        return numbers, None
    host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True).copy_(numbers, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record()
    return host, arrived


def seed_all(seed: int, step: int, rank: int) -> None:
    """Seed every generator from (seed, step, rank), so that checkpoints need no random state."""
    number = int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0])
    # without an accelerator, every call of torch.manual_seed records a stack trace
    (torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed)(number % 2**63)
    random.seed(number)
    np.random.seed(number % 2**32)
