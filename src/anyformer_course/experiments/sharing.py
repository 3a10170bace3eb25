"""Sharing: one layer that runs many times has fewer parameters, a higher loss, steadier outputs, and needs no dropout.

A small encoder has separate layers or one shared layer (ALBERT); the shared layer is also trained with dropout.
Measured are the loss of masked words, and ALBERT's own statistics: the L2 distance and the angle between the input and
the output of each layer. In ALBERT these oscillate less from layer to layer than in BERT, and do not converge to 0 [Lan
et al. 2020, figure 1]. The seeds are new: an earlier design was judged with the seeds 0 to 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from anyformer.counting import count
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.training import LEARNED, guessing_loss, training_run
from anyformer.lab.trials import Place, Row, TrialGrid, Values
from anyformer.look import figures
from anyformer.models import Model, TransformerModule
from anyformer.objectives.masked import Masked
from anyformer.specs.codec import override
from anyformer_course.lab.runs import WORDS, Language, held_out, mean, reader, texts

CLAIM = (
    "with every seed, the shared layer has fewer than half of the parameters, a higher loss, L2 distances of output "
    "from input that change less from layer to layer and do not vanish, and a higher loss with dropout"
)
FORMS = {
    "tiny": Form(0.2, 0.1, {"depth": 3, "width": 16, "steps": 2, "batch": 2, "texts": 100, "seeds": [3, 4]}),
    "full": Form(
        120, 3, {"depth": 12, "width": 128, "steps": 2000, "batch": 64, "texts": 20_000, "seeds": [3, 4, 5, 6]}
    ),
}
LANGUAGE, LENGTH, DROPOUT = Language(words=2), 32, 0.1
HIDDEN = 0.3  # share of masked words: with 0.15 a short training learns too little
KINDS = ("own", "shared")
SETTINGS = (("own", 0.0), ("shared", 0.0), ("shared", DROPOUT))


def sizes(each: Values) -> Values:
    counted = count(layers_model(each["kind"], each["dropout"], each["width"], each["depth"]))
    return {"parameters": counted.parameters, "flops": counted.flops(LENGTH) // LENGTH}


trials = TrialGrid(
    "{kind}-{dropout:g}-{seed}",
    data=True,
    kind=KINDS,
    dropout=(0.0, DROPOUT),
    seed="seeds",
    where=lambda each: (each["kind"], each["dropout"]) in SETTINGS,
    derive=sizes,
)


def layers_model(kind: str, dropout: float, width: int, depth: int) -> Model:
    """Return BERT with `depth` layers, or with one layer that runs `depth` times."""
    size = LANGUAGE.size + len(WORDS.special)
    described = reader("bert", "BertForMaskedLM", width, depth, 4, LENGTH, vocab_size=size,
                       hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)  # fmt: skip
    changes = {"encoder.depth": 1, "encoder.order": (0,) * depth}
    return override(described, changes) if kind == "shared" else described


def work(values: Values, place: Place) -> list[Row]:
    run = training_run(
        "sharing",
        layers_model(values["kind"], values["dropout"], values["width"], values["depth"]),
        texts(place, "made-up", values["data"], LANGUAGE, values["texts"]),
        place.device,
        steps=values["steps"],
        batch=values["batch"],
        length=LENGTH,
        lr=2e-3 if values["width"] < 100 else 5e-4,
        objective=Masked(rate=HIDDEN),
        vocabulary=WORDS,
        seed=values["seed"],
        batches=32,
    )
    trainer = place.train(run)
    with trainer.eval_mode():
        scores = {"loss": trainer.scores["loss"], "guessing": guessing_loss(trainer)}
        return [scores, *steps_between(trainer.model, held_out(trainer, 16, LENGTH))]


def steps_between(model: TransformerModule, ids: torch.Tensor) -> list[Row]:
    """Return for every layer the L2 distance of its output from its input, and their angle in degrees, both averaged
    over tokens."""
    states = model(input_ids=ids, output_hidden_states=True).hidden_states
    rows: list[Row] = []
    for layer, (x, y) in enumerate(pairwise(states)):
        cosine = torch.nn.functional.cosine_similarity(x.float(), y.float(), dim=-1).clamp(-1, 1)
        distance = (y - x).float().norm(dim=-1)
        rows.append(
            {"layer": layer, "distance": float(distance.mean()), "angle": float(cosine.acos().rad2deg().mean())}
        )
    return rows


def by_layer(rows: Sequence[Row], kind: str, what: str, dropout: float = 0.0) -> list[list[float]]:
    """Return one value per layer, for every seed."""
    by_seed: dict[int, list[float]] = {}
    for row in rows:
        if what in row and (row["kind"], row["dropout"]) == (kind, dropout):
            by_seed.setdefault(row["seed"], []).append(row[what])
    return [*by_seed.values()]


def roughness(values: Sequence[float]) -> float:
    """Return the mean change from layer to layer: 0 if all values are equal."""
    return mean([abs(after - before) for before, after in pairwise(values)])


def claim(rows: Sequence[Row]) -> Verdict:
    losses = {
        (kind, dropout): [
            row["loss"] for row in rows if "loss" in row and (row["kind"], row["dropout"]) == (kind, dropout)
        ]
        for kind, dropout in SETTINGS
    }
    rough = {kind: [roughness(each) for each in by_layer(rows, kind, "distance")] for kind in KINDS}
    least = min(each[-1] / max(each) for each in by_layer(rows, "shared", "distance"))
    sizes = {row["kind"]: row["parameters"] for row in rows}
    worst = max(losses["own", 0.0]) / min(row["guessing"] for row in rows if "guessing" in row)
    results: dict[str, Any] = {f"parameters, {kind}": size for kind, size in sizes.items()}
    results |= {f"loss, {kind}, dropout {dropout:g}": mean(each) for (kind, dropout), each in losses.items()}
    results |= {f"change of distances from layer to layer, {kind}": mean(each) for kind, each in rough.items()}
    results["shared: last distance / largest distance, lowest seed"] = least
    results["own: largest loss / loss of guessing"] = worst
    parts = {
        "fewer than half of the parameters": sizes["shared"] < sizes["own"] / 2,
        "higher loss": all(a < b for a, b in zip(losses["own", 0.0], losses["shared", 0.0], strict=True)),
        "distances change less": all(a > b for a, b in zip(rough["own"], rough["shared"], strict=True)),
        "distances do not vanish": least > 0.05,
        "dropout costs": all(a < b for a, b in zip(losses["shared", 0.0], losses["shared", DROPOUT], strict=True)),
    }
    judged = {f"holds: {name}": value for name, value in parts.items()}
    return Verdict(all(parts.values()), {**results, **judged}, worst <= LEARNED)


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(3, 1, 14, 4)
    for axis, (what, title) in zip(axes[0], (("distance", "L2 distance of output from input"), ("angle", "angle"))):
        for number, kind in enumerate(KINDS):
            for i, each in enumerate(by_layer(rows, kind, what)):
                axis.plot(each, color=f"C{number}", marker="o", markersize=3, label=None if i else f"{kind} layers")
        axis.set(xlabel="layer", title=title, ylim=(0, None))
        axis.legend(frameon=False, fontsize=8)
    for number, (kind, dropout) in enumerate(SETTINGS):
        group = [row for row in rows if "loss" in row and (row["kind"], row["dropout"]) == (kind, dropout)]
        axes[0, 2].plot([number] * len(group), [row["loss"] for row in group], "o", label=f"{group[0]['parameters']:,}")
    axes[0, 2].set_xticks(range(len(SETTINGS)), [f"{kind}\ndropout {dropout:g}" for kind, dropout in SETTINGS])
    axes[0, 2].set_title("loss: one point per seed")
    axes[0, 2].legend(frameon=False, fontsize=8, title="parameters")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    return figure
