"""Residuals and norms: with both, a Transformer of 64 layers trains as well as one of 2 layers; with none, it does not.

The same decoder has residual connections and pre-norms, only one of them, or none, at depths from 2 to 64. Without a
residual connection a layer passes on only its branch [He et al. 2016, Vaswani et al. 2017, Dong et al. 2021]. Measured
is the held-out loss after the same number of steps, at the better of two learning rates. A model trains if its loss is
at least MARGIN nats below the loss of a model that knows only how frequent each token is. Initial weights have a
standard deviation of width**-0.5, so that a layer neither shrinks nor enlarges its input much.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.training import training_run
from anyformer.lab.trials import Place, Row, Trial, Values
from anyformer.look import figures
from anyformer.models import Model
from anyformer.parts.norm import LayerNorm
from anyformer.parts.residual import Scaled
from anyformer_course.lab.runs import held_out, mean, texts, writer

MARGIN = 0.1  # nats
CLAIM = (
    f"with residual connections and norms every depth trains with every seed (loss at least {MARGIN} nats below the "
    "loss from token frequencies), and the mean loss of the deepest is at most 0.1 nats above the shallowest's; with "
    "none of them the deepest does not train with any seed; always at the better of two rates"
)
FORMS = {
    "tiny": Form(
        0.1, 0.1, {"depths": [1, 2], "width": 16, "steps": 2, "batch": 2, "rates": [1e-3], "text": "made-up"}
    ),
    "small": Form(
        2, 1,
        {"depths": [2, 12], "width": 32, "steps": 80, "batch": 8, "rates": [1e-3, 4e-3], "text": "made-up",
         "seeds": 2},
    ),
    "full": Form(
        600, 3.5,
        {"depths": [2, 8, 32, 64], "width": 128, "steps": 400, "batch": 64, "rates": [3e-4, 1e-3], "text": "docs",
         "seeds": 3},
    ),
}  # fmt: skip
DIVERGES = True  # divergence is a result of this experiment
LENGTH, HEADS = 64, 4
KINDS = ("both", "residuals only", "norms only", "none")
JUDGED = ("both", "none")  # kinds of the claim; the others are trained with one seed


def trials(
    depths: list[int],
    width: int,
    steps: int,
    batch: int,
    rates: list[float],
    text: str,
    seeds: int = 1,
    data: str | None = None,
) -> list[Trial]:
    same = {"width": width, "steps": steps, "batch": batch, "text": text, "data": data}
    return [
        Trial(
            f"{kind.replace(' ', '-')}-{depth}-{lr:g}-seed-{seed}",
            {"kind": kind, "depth": depth, "lr": lr, **same, "seed": seed},
        )
        for kind in KINDS
        for depth in depths
        for lr in rates
        for seed in range(seeds if kind in JUDGED else 1)
    ]


def model_spec(kind: str, width: int, depth: int) -> Model:
    """Return a decoder with or without residual connections and norms. The embedding is scaled to unit variance."""
    norm = LayerNorm() if kind in ("both", "norms only") else None
    changes: dict[str, Any] = {"decoder.norm": norm, "embedding.scale": width**0.5}
    for step in ("attention", "feedforward"):
        changes[f"decoder.layers.{step}.pre_norm"] = norm
        changes[f"decoder.layers.{step}.residual"] = Scaled(skip=float(kind in ("both", "residuals only")))
    return writer(width, depth, HEADS, LENGTH, changes, scaled=True)


def work(values: Values, place: Place) -> list[Row]:
    run = training_run(
        "residuals-and-norms",
        model_spec(values["kind"], values["width"], values["depth"]),
        texts(place, values["text"], values["data"]),
        place.device,
        steps=values["steps"],
        batch=values["batch"],
        length=LENGTH,
        lr=values["lr"],
        seed=values["seed"],
    )
    trainer = place.train(run)
    return [{"loss": trainer.scores["loss"], "frequencies": frequency_loss(held_out(trainer, 64, 256))}]


def frequency_loss(ids: Tensor) -> float:
    """Return the entropy of the tokens in nats: the loss of a model that knows only their frequencies."""
    shares = torch.bincount(ids.flatten()).double() / ids.numel()
    return float(-(shares * shares.clamp_min(1e-30).log()).sum())


# -- results ----------------------------------------------------------------------------------------------------------


def best_losses(rows: Sequence[Row], kind: str) -> dict[int, list[float]]:
    """Return depth -> loss of every seed at the seed's better rate. A training that diverged has the loss infinity."""
    by_seed: dict[tuple[int, int], float] = {}
    for row in rows:
        if row["kind"] == kind:
            key, loss = (row["depth"], row["seed"]), row.get("loss")
            by_seed[key] = min(by_seed.get(key, float("inf")), float("inf") if loss is None else loss)
    losses: dict[int, list[float]] = {}
    for (depth, _), loss in by_seed.items():
        losses.setdefault(depth, []).append(loss)
    return losses


def bound(rows: Sequence[Row]) -> float:
    """Return the loss below which a model counts as trained."""
    return next(row["frequencies"] for row in rows if row.get("frequencies") is not None) - MARGIN


def claim(rows: Sequence[Row]) -> Verdict:
    losses, limit = {kind: best_losses(rows, kind) for kind in KINDS}, bound(rows)
    both, none = losses["both"], losses["none"]
    deepest, shallowest = max(both), min(both)
    trains = all(loss <= limit for each in both.values() for loss in each)
    lost = mean(both[deepest]) - mean(both[shallowest])
    trained = {
        f"seeds that train, {kind}, {depth} layers": f"{sum(loss <= limit for loss in each)} of {len(each)}"
        for kind in KINDS for depth, each in losses[kind].items()
    }  # fmt: skip
    means = {f"loss, {kind}, {depth} layers": mean(each) for kind in KINDS for depth, each in losses[kind].items()}
    return Verdict(
        trains and lost <= 0.1 and min(none[deepest]) > limit,
        {**means, **trained, "loss from token frequencies": limit + MARGIN, "deepest minus shallowest, both": lost},
    )


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(1, 1, 8, 4.5)
    axis = axes[0, 0]
    for number, kind in enumerate(KINDS):
        losses = {depth: [x for x in each if x < 20] for depth, each in best_losses(rows, kind).items()}
        axis.plot([d for d, each in losses.items() if each], [mean(each) for each in losses.values() if each],
                  color=f"C{number}", label=kind)  # fmt: skip
        axis.plot(*zip(*[(depth, loss) for depth, each in losses.items() for loss in each]), "o", color=f"C{number}")
    axis.axhline(bound(rows) + MARGIN, color="#777777", linestyle=":", label="token frequencies")
    axis.set_xscale("log", base=2)
    axis.set(xlabel="layers", title="held-out loss at the better rate, one point per seed (diverged: no point)")
    axis.legend(frameon=False)
    axis.grid(alpha=0.3)
    return figure
