"""The metrics of a task during training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anyformer.evaluate import Evaluation, mean_losses
from anyformer.objectives.objective import Objective, Predictor


def training_metrics(
    evaluation: Evaluation, pad: int, num_beams: int, limit: int | None
) -> Callable[[Any, dict[str, float]], dict[str, float]]:
    """Return the `metrics` argument of a Trainer. `limit` is the number of batches of an evaluation; None: all."""

    def score(trainer: Any, scores: dict[str, float]) -> dict[str, float]:
        def mean_loss(plain: Objective) -> float:
            if plain == trainer.objective:
                return scores["loss"]
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

        size, autocast = 32 if trainer.device.type == "cpu" else 256, trainer.autocast
        job = Predictor(trainer.model, evaluation.tokenizer, pad, size=size, num_beams=num_beams, autocast=autocast)
        return evaluation(job, mean_loss)

    return score
