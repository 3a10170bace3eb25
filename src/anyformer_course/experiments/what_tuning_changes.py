"""What tuning changes: whether a pretrained encoder needs little more than a trained classifier.

Lecture 3, page 51, says that mainly the classifier is trained and the pretrained model changes minimally. MiniLM learns
SST-2 (is a film review positive?) with a frozen encoder, with its last layer trained, or with all weights trained as in
BERT [Devlin et al. 2019]. The classifier (BERT's pooler and the output layer) is always trained. Measured are the
accuracy on the test reviews and how far the weights of every part move, relative to their norm. Each kind of training
has two learning rates; the validation reviews choose one.

Full form: `--data FOLDER` with glue_sst2 and MiniLM (minilm or demo/minilm, see `anyformer fetch demo`)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.trials import Place, Row, TrialGrid, Values
from anyformer.look import figures
from anyformer.train.run import Pretrained
from anyformer.train.start import load_pretrained
from anyformer_course.lab.runs import mean
from anyformer_course.lab.tuning import best_rates, check_folders, data_home, published_encoder, tune, tuning_run

CLAIM = (
    "on SST-2, with every seed, training only the classifier gets at least 90 % of full fine-tuning's gain over chance "
    "(50 %), and full fine-tuning moves neither the embedding nor a layer by more than 5 % of its norm"
)
FORMS = {
    "tiny": Form(0.3, 0.1, {"steps": 2, "seeds": 2, "made up": True}),
    "full": Form(120, 3, {"steps": 1000, "seeds": 3}),
}
FROZEN = {
    "classifier": ("embedding", "encoder"),
    "last layer": ("embedding", "encoder.layers.[0-4]"),
    "all": (),
}
RATES = {"classifier": (1e-3, 1e-2), "last layer": (1e-4, 1e-3), "all": (5e-5, 2e-4)}
CHANCE, KEPT, MOST = 0.5, 0.9, 0.05
HEAD = ("pooler", "classifier")
trials = TrialGrid(
    "{kind}-{which}-{seed}",
    data=True,
    kind=FROZEN,
    which=(0, 1),
    seed="seeds",
    derive=lambda each: {"lr": RATES[each["kind"]][each["which"]]},
)


def check_data(path: str) -> None:
    check_folders(path, "glue_sst2")


def work(values: Values, place: Place) -> list[Row]:
    frozen = FROZEN[values["kind"]]
    if values.get("made up"):  # its encoder has two layers
        frozen = tuple(address.replace("[0-4]", "0") for address in frozen)
    run = tuning_run(
        "sst2",
        data_home(values, place),
        Pretrained(path=published_encoder(values, place), architecture="Bert"),
        place.device,
        steps=values["steps"],
        lr=values["lr"],
        seed=values["seed"],
        freeze=frozen,
    )
    assert isinstance(run.model, Pretrained)
    before = load_pretrained(run.model, run.seed)
    trainer, scores = tune(run, place, "tuned")
    moved = distances(dict(before.named_parameters()), trainer.model)
    return [scores, *({"part": part, "moved": distance} for part, distance in moved.items())]


def part_of(name: str) -> str:
    """Return the part that a parameter belongs to: "embedding", "layer 0", ..., "pooler" or "classifier"."""
    if name.startswith("encoder.layers."):
        return f"layer {name.split('.')[2]}"
    if name.startswith("head."):
        return "classifier" if name.startswith("head.out.") else "pooler"
    return "embedding"


def distances(before: Mapping[str, Tensor], model: torch.nn.Module) -> dict[str, float]:
    """Return part -> distance of its weights from `before` relative to their norm, with all weights as one vector."""
    moved, length = defaultdict[str, float](float), defaultdict[str, float](float)
    for name, value in model.named_parameters():
        old = before[name].detach().double()
        moved[part_of(name)] += float((value.detach().cpu().double() - old).square().sum())
        length[part_of(name)] += float(old.square().sum())
    return {part: math.sqrt(moved[part] / length[part]) for part in moved}


def accuracies(rows: Sequence[Row]) -> dict[str, list[float]]:
    """Return kind -> test accuracies at its best rate, one per seed."""
    best = best_rates([row for row in rows if "test" in row], "kind")
    return {kind: [row["test"] for row in each] for (kind,), each in best.items()}


def moved_parts(rows: Sequence[Row], kind: str) -> dict[str, list[float]]:
    """Return part -> distances at the best rate of this kind of training, one per seed."""
    best = best_rates([row for row in rows if "test" in row], "kind")
    rate = best[kind,][0]["lr"]
    by_part: dict[str, list[float]] = {}
    for row in rows:
        if "moved" in row and (row["kind"], row["lr"]) == (kind, rate):
            by_part.setdefault(row["part"], []).append(row["moved"])
    return by_part


def claim(rows: Sequence[Row]) -> Verdict:
    right, parts = accuracies(rows), moved_parts(rows, "all")
    gains = {kind: [each - CHANCE for each in right[kind]] for kind in ("classifier", "all")}
    shares = [few / max(every, 1e-3) for few, every in zip(*gains.values(), strict=True)]
    farthest = max(max(each) for part, each in parts.items() if part not in HEAD)
    results: dict[str, float] = {f"accuracy, {kind} trained": mean(each) for kind, each in right.items()}
    results["share of the gain by the classifier, lowest seed"] = min(shares)
    results |= {f"moved, {part}": mean(each) for part, each in parts.items()}
    results["moved, farthest layer of a seed"] = farthest
    return Verdict(min(gains["all"]) > 0 and min(shares) >= KEPT and farthest <= MOST, results)


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(2, 1, 12, 4)
    for number, (kind, each) in enumerate(accuracies(rows).items()):
        axes[0, 0].plot([number] * len(each), each, "o", color=f"C{number}")
        axes[0, 0].plot([number], [mean(each)], "_", color=f"C{number}", markersize=18)
        parts = {part: max(mean(values), 1e-6) for part, values in moved_parts(rows, kind).items()}  # frozen: 0
        axes[0, 1].plot([*parts], [*parts.values()], "o-", color=f"C{number}", label=f"{kind} trained")
    axes[0, 0].set_xticks(range(len(FROZEN)), [f"{kind} trained" for kind in FROZEN])
    axes[0, 0].set_title("test accuracy on SST-2: one point per seed, and the mean")
    axes[0, 1].set(yscale="log", title="distance moved / norm of the weights")
    axes[0, 1].axhline(MOST, color="#777777", linestyle=":")
    axes[0, 1].tick_params(axis="x", labelrotation=30)
    axes[0, 1].legend(frameon=False, fontsize=8)
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    return figure
