"""Training runs from scratch that are compared with each other."""

from __future__ import annotations

from typing import Any

from anyformer.data import Bytes, Data
from anyformer.models import Model
from anyformer.objectives.causal import NextToken
from anyformer.train.optim import AdamW, Cosine
from anyformer.train.run import Batch, Evaluate, Keep, Run


def training_run(
    name: str,
    model: Model,
    data: Data,
    device: str,
    *,
    steps: int,
    batch: int,
    length: int,
    lr: float,
    warmup: int | None = None,
    every: int | None = None,
    batches: int = 8,
    **fields: Any,
) -> Run:
    """Return a run from scratch that keeps only its last checkpoint. A stopped run starts from the beginning, so that
    measurements during training are complete. `fields` are other fields of the run: seed, objective, vocabulary."""
    usual = {"vocabulary": Bytes(), "objective": NextToken()}
    return Run(
        name=name,
        model=model,
        data=data,
        optimizer=AdamW(lr=lr, betas=(0.9, 0.98)),
        schedule=Cosine(warmup=max(steps // 20, 1) if warmup is None else warmup, floor=0.1),
        batch=Batch(examples=batch, length=length),
        steps=steps,
        precision="bf16" if device.startswith("cuda") else "fp32",
        record=device.startswith("cuda"),
        evaluate=Evaluate(every=every or steps, batches=batches, patience=None),
        keep=Keep(every=steps, last=1, best=False),
        **{**usual, **{name: value for name, value in fields.items() if value is not None}},
    )
