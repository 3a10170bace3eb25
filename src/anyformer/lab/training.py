"""Training runs from scratch that are compared with each other."""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch

from anyformer.data import Bytes, Data
from anyformer.kernels.loss import IGNORED
from anyformer.models import Model
from anyformer.objectives.causal import NextToken, next_tokens
from anyformer.train.optim import AdamW, Cosine
from anyformer.train.run import Batch, Evaluate, Keep, Run
from anyformer.train.trainer import Trainer

LEARNED = 0.9  # a model has learned if its loss is at most this share of the loss of guessing


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


def guessing_loss(trainer: Trainer, batches: int = 16) -> float:
    """Return the loss of guessing every answer by its frequency: the entropy of the labels of held-out batches."""
    assert trainer.valid is not None
    with trainer.valid() as loader:
        read = [batch for ready in islice(loader, batches) for batch in ready.batches]
    labels = torch.cat([batch.get("labels", next_tokens(batch)).flatten() for batch in read])
    shares = labels[labels != IGNORED].bincount().double()
    shares /= shares.sum()
    return float(torch.special.entr(shares).sum())
