"""Low rank: the attention of a trained encoder is nearly a matrix of low rank, which is Linformer's argument.

The singular values of attention maps on held-out text, by layer [Wang et al. 2020, figure 1], are compared with two
controls: the same maps with the entries of every row shuffled, which are as sharp but have no common structure, and the
maps of the untrained model. The rank of the untrained model is about as low, so a low rank is not a sign of learning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.training import training_run
from anyformer.lab.trials import Place, Row, TrialGrid, Values
from anyformer.look import figures
from anyformer.look.maps import attention
from anyformer.look.trace import trace
from anyformer.models import TransformerModule
from anyformer.models.construct import build
from anyformer.objectives.masked import Masked
from anyformer_course.lab.runs import READER, held_out, mean, reader, texts

CLAIM = (
    "in the mean over layers, the largest quarter of the singular values of attention has 90 % of their sum, and more "
    "than in shuffled maps"
)
FORMS = {
    "tiny": Form(0.1, 0.1, {"depth": 2, "width": 16, "steps": 2, "batch": 2, "length": 32, "text": "docs"}),
    "small": Form(2, 0.5, {"depth": 4, "width": 64, "steps": 300, "batch": 8, "length": 96, "text": "docs"}),
    "full": Form(60, 3, {"depth": 8, "width": 256, "steps": 2500, "batch": 32, "length": 512, "text": "library"}),
}
POINTS = 32  # points per spectrum
KINDS = ("attention", "shuffled", "untrained")
trials = TrialGrid("encoder", data=True)


def work(values: Values, place: Place) -> list[Row]:
    length = values["length"]
    described = reader("bert", "BertForMaskedLM", values["width"], values["depth"], 4, length, initializer_range=0.02)
    run = training_run(
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
    """Return the attention maps (B, H, T, T) of each layer."""
    return [each.weights.float() for each in attention(trace(model.eval(), input_ids=ids)).maps]


def shuffle_weights(weights: Tensor) -> Tensor:
    order = torch.rand(weights.shape, generator=torch.Generator().manual_seed(0)).argsort(-1).to(weights.device)
    return weights.gather(-1, order)


def spectrum(weights: Tensor) -> list[tuple[float, float]]:
    """Return points (p, share of the sum in the largest fraction p of the singular values) of maps (B, H, T, T),
    averaged over texts and heads."""
    values = torch.linalg.svdvals(weights)
    shares = (values.cumsum(-1) / values.sum(-1, keepdim=True)).flatten(0, -2).mean(0)
    T = len(shares)
    counts = [max(round(T * (i + 1) / POINTS), 1) for i in range(POINTS)]
    return [(count / T, float(shares[count - 1])) for count in counts]


def quarter(rows: Sequence[Row], kind: str) -> dict[int, float]:
    """Return layer -> share of the sum in the largest quarter."""
    group = [row for row in rows if row["kind"] == kind]
    return {
        layer: min((abs(row["share"] - 0.25), row["held"]) for row in group if row["layer"] == layer)[1]
        for layer in dict.fromkeys(row["layer"] for row in group)
    }


def claim(rows: Sequence[Row]) -> Verdict:
    shares = {kind: quarter(rows, kind) for kind in KINDS}
    means = {kind: mean(list(layers.values())) for kind, layers in shares.items()}
    results = {f"share of the largest quarter, layer {layer}": value for layer, value in shares["attention"].items()}
    results |= {f"mean, {kind}": value for kind, value in means.items()}
    return Verdict(means["attention"] >= 0.9 and means["attention"] > means["shuffled"], results)


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
