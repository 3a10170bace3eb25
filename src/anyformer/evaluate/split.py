"""Evaluate a saved model on a split of a run's data."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

from anyformer.data import Data, Loader, Oversample, Plan, Source
from anyformer.data.prepare import length_limit, prepare_split
from anyformer.evaluate import Evaluation, mean_losses
from anyformer.evaluate.by_position import PositionLoss, losses_by_position
from anyformer.inputs.tokenizer import Tokenizer, check_vocabulary_size
from anyformer.models import TransformerModule, position_limit
from anyformer.objectives.causal import NextToken
from anyformer.objectives.objective import Objective, Predictor
from anyformer.specs.messages import quote

SPLITS = ("test", "valid", "train")


def select_split(data: Data, split: str | None) -> tuple[str, Source]:
    """Return a split by name; by default the first of test, valid and train that exists."""
    splits = data.splits
    split = split or next(name for name in SPLITS if name in splits)
    if split not in splits:
        raise ValueError(f"the data has no split {quote(split)}; it has {', '.join(splits)}")
    source = splits[split]
    return split, source.source if isinstance(source, Oversample) else source  # every row counts once


def tokenizer_in(folder: Path, required: bool) -> Tokenizer | None:
    """Load the tokenizer of a model's folder; None if it has none and none is required."""
    try:
        return Tokenizer.load(folder)
    except FileNotFoundError:
        if required:
            raise
        return None


def check_label_order(model: TransformerModule, labels: tuple[str, ...]) -> None:
    """Raise ValueError if the model has these labels in a different order, since scores would be wrong."""
    theirs = model.spec.labels
    if set(theirs) == set(labels) and theirs != tuple(labels):
        raise ValueError(f"the model's labels are {', '.join(theirs)}, in another order than {', '.join(labels)}")


def loss_module(model: TransformerModule, task: Objective) -> nn.Module:
    """Return the objective's module around the model; ValueError if its trained weights are not in the folder."""
    trained = task.module(model).to(model.device).eval()
    own = {*model.parameters()}
    if any(parameter.requires_grad and parameter not in own for parameter in trained.parameters()):
        raise ValueError(
            f"{type(task).__name__}: its loss needs weights that are not in the model's folder; "
            "`anyformer train` reports it during training"
        )
    return trained


@contextlib.contextmanager
def split_batches(
    model: TransformerModule, split: str, evaluation: Evaluation, size: int, length: int | None, seed: int
) -> Iterator[Callable[[Objective], Loader]]:
    """Prepare a split and yield a function that loads an objective's batches of `size` examples, each example once.
    `length` is the number of tokens of a packed row."""
    check_vocabulary_size(model, evaluation.tokenizer)
    task = evaluation.task
    check_label_order(model, task.labels)
    pad = 0 if evaluation.tokenizer is None else evaluation.tokenizer.filler
    length = length_limit(model.spec, length, task) if task.packs else position_limit(model.spec)
    with tempfile.TemporaryDirectory(prefix="anyformer-eval-") as folder, torch.inference_mode():
        unfit = "skip" if evaluation.skip else "error"
        records = prepare_split(split, evaluation.source, unfit, task, evaluation.tokenizer, Path(folder), length, None)
        evaluation.split, evaluation.left_out = records, list(records.problems)
        row = task.reads(length) if task.packs and length is not None else length

        def batches(objective: Objective) -> Loader:
            plan = Plan(records, seed=seed, examples=size, length=row, packs=task.packs, once=True)
            return Loader(plan, objective, pad=pad)

        yield batches


def evaluate(
    model: TransformerModule,
    split: str,
    evaluation: Evaluation,
    *,
    size: int = 32,
    length: int | None = None,
    seed: int = 0,
    num_beams: int = 1,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> dict[str, float]:
    """Return the loss, without label smoothing, and the metrics of an evaluation, in batches of `size` examples.
    `length` is the number of tokens of a packed row; `seed` selects random masks."""
    trained = loss_module(model, evaluation.task)
    with split_batches(model, split, evaluation, size, length, seed) as loader_for:
        plain = evaluation.task.plain
        with loader_for(plain) as batches:
            terms = mean_losses(lambda batch, _: plain.losses(trained, batch), plain, batches, model.device)
        loss = sum(terms.values())
        scores = {"loss": loss, **(terms if len(terms) > 1 else {})}
        pad = 0 if evaluation.tokenizer is None else evaluation.tokenizer.filler
        job = Predictor(model, evaluation.tokenizer, pad, size=size, num_beams=num_beams, progress=progress)
        if not evaluation.names and evaluation.metrics is not None:  # predictions only, for scoring elsewhere
            evaluation.ask(job)
        return scores | evaluation(job, lambda objective: loss)


def evaluate_by_position(
    model: TransformerModule, split: str, evaluation: Evaluation, size: int, length: int | None, seed: int
) -> list[PositionLoss]:
    """Return the loss of a next-token objective by token index."""
    task = evaluation.task
    if not isinstance(task, NextToken):
        raise ValueError(f"--by position needs a model that learns the next token, not {type(task).__name__}")
    with split_batches(model, split, evaluation, size, length, seed) as loader_for, loader_for(task) as steps:
        each = (batch for step in steps for batch, real in zip(step.batches, step.real, strict=True) if real)
        return losses_by_position(model, each)
