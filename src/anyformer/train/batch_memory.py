"""Refuse a batch that does not fit into memory, before the first step.

A few examples are run through the model. The bytes that autograd keeps for them, scaled to the size of the batch, are
a lower bound of the memory of a step: a batch that exceeds it cannot fit.
"""

from __future__ import annotations

import numpy as np
import torch

from anyformer.data import Loader
from anyformer.kernels import hardware
from anyformer.objectives.batches import Batch
from anyformer.train.trainer import Trainer

MAX_VECTORS = 1000  # no model keeps more fp32 vectors per token for the backward pass


def check_batch(trainer: Trainer, loader: Loader) -> None:
    """Raise ValueError if a forward pass, or the batches that are prepared ahead, need more memory than is free. The
    estimate is measured on the few examples in step 0 of `loader`."""
    batch, device = trainer.run.batch, trainer.device
    host = hardware.free_memory()
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else host
    chosen = loader.plan.step(0)
    measured, longest = len(chosen.items), int(chosen.sizes.max())
    unit = 1 if batch.examples else longest  # batch size of one example
    whole = "examples" if batch.examples else "tokens"
    part = "micro" if batch.micro else whole
    step_rows, rows = (getattr(batch, name) // unit for name in (whole, part))
    tokens = longest * loader.rate  # per example, as the model reads it
    if rows > 2 * measured and rows * tokens * trainer.model.spec.width * 4 * MAX_VECTORS > free > 0:
        once = kept_bytes(trainer, loader.batch_of(chosen))
        twice = kept_bytes(trainer, loader.batch_of(chosen.part(np.tile(np.arange(measured), 2))))
        each = max(twice - once, 1) / measured
        gradients = sum(p.numel() * p.element_size() for p in trainer.module.parameters() if p.requires_grad)
        refuse_above(free, part, rows, unit, each, max(once - each * measured, 0) + gradients)
    if step_rows > 2 * measured and step_rows * longest * 8 * MAX_VECTORS > host > 0:
        each = sum(tensor.nbytes for tensor in loader.batch_of(chosen).values()) / measured
        refuse_above(host, whole, step_rows, unit, each * min(loader.ahead + 2, trainer.run.steps))


def refuse_above(free: float, name: str, rows: int, unit: int, each: float, fixed: float = 0.0) -> None:
    """Raise ValueError if `rows` examples of `each` bytes plus `fixed` bytes are more than `free`."""
    if (needed := fixed + rows * each) > free:
        most = max(int((free - fixed) // each), 0) * unit
        fits = f"at most {most:,} fit" if most else "not even one example fits"
        hint = "" if name == "micro" else "; batch.micro splits it and accumulates gradients"
        raise ValueError(
            f"batch.{name} is {rows * unit:,}: a step needs more than {needed / 1e9:,.0f} GB of memory, and"
            f" {free / 1e9:,.1f} GB are free; {fits}{hint}"
        )


def kept_bytes(trainer: Trainer, batch: Batch) -> int:
    """Return the bytes that autograd keeps for the backward pass of a batch, without the model's own tensors."""
    module, objective = trainer.module, trainer.objective
    model_storages = {tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), *module.buffers())}
    kept: dict[int, torch.UntypedStorage] = {}  # by address; keeping the storage alive prevents reuse of its address

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in model_storages:
            kept[storage.data_ptr()] = storage
        return tensor

    statistics = [(buffer, buffer.clone()) for buffer in module.buffers()]  # of batch norm; restored below
    trainer.seed_step(0)
    objective.before_step(module, 0)
    module.train()
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        trainer.autocast(),
        torch.compiler.set_stance("force_eager"),
    ):
        losses = objective.losses(module, trainer.to_device(batch))
    for buffer, before in statistics:
        buffer.detach().copy_(before)
    del losses
    return sum(storage.nbytes() for storage in kept.values())
