"""One training step: the module that computes its losses, its numbers on their way to the host, and its seeds."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.data import StepBatches
from anyformer.objectives.objective import Batch, Objective


class LossStep(nn.Module):
    """Loss terms of one micro-batch, as one module that compile, data parallel and sharding can wrap."""

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
    numbers: Tensor  # the terms, how many processes asked to stop, the gradient norm
    lr: float
    arrived: torch.cuda.Event | None = None  # when the numbers are on the host
    recorded: bool = False  # its gradients come from a captured pass

    def read(self) -> list[float]:
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.numbers.tolist()


def copy_to_host(numbers: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """Start copying numbers to the host; returns them and the event of their arrival. A copy that starts only when they
    are read would queue behind the next step and leave the device idle."""
    if numbers.device.type != "cuda":
        return numbers, None
    host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True).copy_(numbers, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record()
    return host, arrived


def seed_all(seed: int, step: int, rank: int) -> None:
    """Seed every generator from (seed, step, rank), so that checkpoints need no random state."""
    number = int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0])
    # without an accelerator torch.manual_seed records a stack trace in every call
    (torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed)(number % 2**63)
    random.seed(number)
    np.random.seed(number % 2**32)
