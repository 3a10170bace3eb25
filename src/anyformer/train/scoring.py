"""The metrics of a task during training."""

from __future__ import annotations

from typing import Any

from anyformer.data import DataSplit
from anyformer.evaluate import Evaluation, mean_losses
from anyformer.evaluate.predict import Predictor
from anyformer.objectives.objective import Objective
from anyformer.train.run import Run
from anyformer.train.trainer import Trainer


def training_metrics(run: Run, objective: Objective, tokenizer: Any, split: DataSplit | None, pad: int) -> Any:
    """Return the `metrics` argument of a Trainer that computes `evaluate.metrics`; None if there are none."""
    valid = run.data.splits.get("valid")
    if not run.evaluate.metrics or valid is None:
        return None
    limit = run.evaluate.batches
    most = limit * run.batch.examples if limit is not None and run.batch.examples is not None else None
    evaluation = Evaluation(
        valid,
        objective,
        tokenizer,
        run.evaluate.metrics,
        split=split,
        most=most,
        skip=run.data.unfit == "skip",
    )

    def score(trainer: Trainer, scores: dict[str, float]) -> dict[str, float]:
        def mean_loss(plain: Objective) -> float:
            if plain == trainer.objective:
                return scores["loss"]
            assert trainer.valid is not None
            with trainer.valid() as batches, trainer.autocast():
                means = mean_losses(
                    lambda batch, _: plain.losses(trainer.model, batch),
                    plain,
                    batches,
                    trainer.device,
                    limit,
                    trainer.layout.sum_over_processes,
                )
            return sum(means.values())

        size = 32 if trainer.device.type == "cpu" else 256
        beams, autocast = run.evaluate.num_beams, trainer.autocast
        job = Predictor(trainer.model, tokenizer, pad, size=size, num_beams=beams, autocast=autocast)
        return evaluation(job, mean_loss)

    return score
