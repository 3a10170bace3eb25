"""A model that is not being trained, on a split of a run's data."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from anyformer.data import Data, Loader, Plan, Source
from anyformer.data.prepare import prepare_split
from anyformer.data.source import lines
from anyformer.evaluate import Evaluation, mean_losses
from anyformer.evaluate.predict import Predictions, Predictor
from anyformer.inputs.text import Tokenizer, check_vocabulary_size
from anyformer.models import TransformerModule, position_limit
from anyformer.objectives.objective import Objective
from anyformer.specs.messages import quote
from anyformer.train.run import Run
from anyformer.train.start import longest

SPLITS = ("test", "valid", "train")


def chosen(data: Data, split: str | None) -> tuple[str, Source]:
    """A split by name, or the first that there is of test, valid and train."""
    there = {name: getattr(data, name) for name in SPLITS if getattr(data, name) is not None}
    split = split or next(iter(there))
    if split not in there:
        raise ValueError(f"the data has no split {quote(split)}; it has {', '.join(there)}")
    return split, there[split]


def tokenizer_in(folder: Path, run: Run) -> Tokenizer | None:
    """The tokenizer of a model's folder. There is none where a run reads no text: pictures, sound or numbers."""
    try:
        return Tokenizer.load(folder)
    except FileNotFoundError:
        if run.vocabulary is not None:
            raise
        return None


def same_labels(model: TransformerModule, labels: tuple[str, ...]) -> None:
    """A model that has these labels in another order would be scored as if it were wrong."""
    theirs = model.spec.labels
    if set(theirs) == set(labels) and theirs != tuple(labels):
        raise ValueError(f"the model's labels are {', '.join(theirs)}, in another order than {', '.join(labels)}")


def beside(model: TransformerModule, task: Objective) -> nn.Module:
    """The model with what its objective puts beside it; a head that cannot be asked this is told here."""
    trained = task.module(model).to(model.device).eval()
    own = {*model.parameters()}
    if any(parameter.requires_grad and parameter not in own for parameter in trained.parameters()):
        what = "what was trained beside the model, and is not in its folder"
        raise ValueError(f"{type(task).__name__}: its loss needs {what}; `anyformer train` tells it as it goes")
    return trained


def evaluate(
    model: TransformerModule,
    run: Run,
    split: str,
    evaluation: Evaluation,
    *,
    size: int = 32,
    num_beams: int = 1,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> dict[str, float]:
    """The loss, and the metrics of an evaluation; `size` examples at once."""
    check_vocabulary_size(model, evaluation.tokenizer)
    task = evaluation.task
    trained = beside(model, task)
    same_labels(model, getattr(task, "labels", ()))
    pad = 0 if evaluation.tokenizer is None else evaluation.tokenizer.filler
    length = longest(run, model.spec) if task.packs else position_limit(model.spec)
    with tempfile.TemporaryDirectory(prefix="anyformer-eval-") as folder, torch.inference_mode():
        unfit = "skip" if evaluation.skip else "error"
        records = prepare_split(split, evaluation.source, unfit, task, evaluation.tokenizer, Path(folder), length, None)
        evaluation.split, evaluation.left_out = records, list(records.problems)
        row = task.reads(length) if task.packs and length is not None else length

        def means(objective: Objective) -> dict[str, float]:
            plan = Plan(records, seed=run.seed, examples=size, length=row, packs=task.packs, once=True)
            with Loader(plan, objective, pad=pad) as batches:
                return mean_losses(lambda batch, _: objective.losses(trained, batch), objective, batches, model.device)

        found = means(task)
        loss = sum(found.values())
        scores = {"loss": loss, **(found if len(found) > 1 else {})}
        job = Predictor(model, evaluation.tokenizer, pad, size=size, num_beams=num_beams, progress=progress)
        if not evaluation.names and evaluation.kind is not None:  # predictions alone, which may be scored elsewhere
            evaluation.ask(job)
        return scores | evaluation(job, lambda plain: loss if plain == task else sum(means(plain).values()))


def read_predictions(path: Path) -> Predictions:
    """What `write_predictions` wrote."""
    found = Predictions([], [])
    for number, line, _ in lines(path):
        try:
            one = json.loads(line or "")
            found.predicted.append(one["predicted"])
            found.wanted.append(one["wanted"])
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{path}:{number}: not a prediction as --save writes them") from None
    if not found.predicted:
        raise ValueError(f"{path}: no predictions")
    return found


def write_predictions(path: Path, evaluation: Evaluation) -> None:
    """An object a line: what was predicted, and what is right."""
    if evaluation.answered is None:
        raise ValueError("there are no predictions to save: nothing but the loss was asked for")
    with path.open("w", encoding="utf-8") as file:
        for predicted, wanted in zip(*evaluation.answered):
            file.write(json.dumps({"predicted": predicted, "wanted": wanted}, ensure_ascii=False) + "\n")
