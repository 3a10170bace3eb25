"""Low rank: the attention of a trained encoder is nearly a matrix of low rank, which is Linformer's argument.

The singular values of attention maps over held-out text, by layer [Wang et al. 2020, figure 1], beside those of the
same maps with the entries of every row in another order (as sharp, and without a common shape) and those of the model
before it learnt anything, whose rank is about as low: that alone is no sign of learning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.runs import READER, held_out, mean, reader, texts, training
from anyformer.lab.trials import Place, Row, Trial, Values
from anyformer.look import figures
from anyformer.look.maps import attention
from anyformer.look.trace import trace
from anyformer.models import TransformerModule
from anyformer.models.construct import build
from anyformer.objectives.masked import Masked

CLAIM = (
    "a quarter of the singular values of attention holds 90 % of their sum, the mean over layers, and more than in "
    "shuffled maps"
)
FORMS = {
    "tiny": Form(0.1, 0.1, {"depth": 2, "width": 16, "steps": 2, "batch": 2, "length": 32, "text": "docs"}),
    "small": Form(2, 0.5, {"depth": 4, "width": 64, "steps": 300, "batch": 8, "length": 96, "text": "docs"}),
    "full": Form(60, 3, {"depth": 8, "width": 256, "steps": 2500, "batch": 32, "length": 512, "text": "library"}),
}
POINTS = 32  # of a spectrum that are kept
KINDS = ("attention", "shuffled", "untrained")


def trials(
    depth: int, width: int, steps: int, batch: int, length: int, text: str, data: str | None = None
) -> list[Trial]:
    return [Trial("encoder", {"depth": depth, "width": width, "steps": steps, "batch": batch, "length": length,
                              "text": text, "data": data})]  # fmt: skip


def work(values: Values, place: Place) -> list[Row]:
    length = values["length"]
    described = reader("bert", "BertForMaskedLM", values["width"], values["depth"], 4, length, initializer_range=0.02)
    run = training(
        "low-rank",
        described,
        texts(place, values["text"], values["data"]),
        place.device,
        steps=values["steps"],
        batch=values["batch"],
        length=length,
        lr=1e-3,
        objective=Masked(),
        vocabulary=READER,
    )
    trainer = place.train(run)
    ids = held_out(trainer, 4, length)
    with trainer.eval_mode():
        learnt = maps(trainer.model, ids)
        kinds = dict(
            zip(KINDS, (learnt, [*map(shuffle_weights, learnt)], maps(build(described, seed=0).to(ids.device), ids)))
        )
        return [
            {"layer": layer, "kind": kind, "share": share, "held": value}
            for kind, layers in kinds.items()
            for layer, weights in enumerate(layers)
            for share, value in spectrum(weights)
        ]


def maps(model: TransformerModule, ids: Tensor) -> list[Tensor]:
    """A layer each, (B, H, T, T)."""
    return [each.weights.float() for each in attention(trace(model.eval(), input_ids=ids)).maps]


def shuffle_weights(weights: Tensor) -> Tensor:
    order = torch.rand(weights.shape, generator=torch.Generator().manual_seed(0)).argsort(-1).to(weights.device)
    return weights.gather(-1, order)


def spectrum(weights: Tensor) -> list[tuple[float, float]]:
    """(B, H, T, T) -> (share of the singular values, share of their sum that the largest of them hold), the mean over
    texts and heads."""
    values = torch.linalg.svdvals(weights)
    held = (values.cumsum(-1) / values.sum(-1, keepdim=True)).flatten(0, -2).mean(0)
    T = len(held)
    places = [max(round(T * (i + 1) / POINTS), 1) for i in range(POINTS)]
    return [(place / T, float(held[place - 1])) for place in places]


def quarter(rows: Sequence[Row], kind: str) -> dict[int, float]:
    """layer -> what the largest quarter holds."""
    own = [row for row in rows if row["kind"] == kind]
    return {
        layer: min((abs(row["share"] - 0.25), row["held"]) for row in own if row["layer"] == layer)[1]
        for layer in dict.fromkeys(row["layer"] for row in own)
    }


def claim(rows: Sequence[Row]) -> Verdict:
    held = {kind: quarter(rows, kind) for kind in KINDS}
    means = {kind: mean(list(layers.values())) for kind, layers in held.items()}
    found = {f"a quarter holds, layer {layer}": value for layer, value in held["attention"].items()}
    found |= {f"mean, {kind}": value for kind, value in means.items()}
    return Verdict(means["attention"] >= 0.9 and means["attention"] > means["shuffled"], found)


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(3, 1, 15, 4)
    for axis, kind in zip(axes.flat, KINDS):
        for layer in dict.fromkeys(row["layer"] for row in rows):
            points = [(row["share"], row["held"]) for row in rows if (row["layer"], row["kind"]) == (layer, kind)]
            axis.plot(*zip(*points), label=f"layer {layer}")
        axis.axvline(0.25, color="#777777", linestyle=":")
        axis.set(xlabel="share of the singular values, the largest first", title=f"share of their sum, {kind}")
        axis.set_ylim(0, 1.02)
        axis.legend(frameon=False, fontsize=7)
        axis.grid(alpha=0.3)
    return figure
