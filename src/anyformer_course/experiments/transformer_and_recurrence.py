"""Transformer and recurrence: a Transformer reads a text at once and recalls at any distance; an LSTM and a GRU do not.

Two-layer decoders of the same width differ only in the mixer. Sequential depth is the longest chain of operations in
which each needs the result of the one before (counted by `lab/forward_cost.py`): with unlimited processors, a pass
takes that many steps. Recall is learned from palindromes (abcd|dcba), whose answers are 2, 4, 6, ... tokens after their
letters: the accuracy of each answer after the same number of steps [the path between two tokens grows with their
distance in a recurrent network: Vaswani et al. 2017, table 1]. The comparison is about distance only if the LSTM and
the GRU are trained at all, so it is judged only if they solve the shortest distances, and the step at which each model
does is reported. Operations are counted. The processor time of a pass is measured on one thread but not judged: without
parallel execution an LSTM is as fast.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.trials import Place, Row, Trial, Values
from anyformer.look import figures
from anyformer.models import Model
from anyformer.models.construct import build
from anyformer.parts.recurrent.lstm import GRU, LSTM
from anyformer.train.trainer import Callback, StepResult, Trainer
from anyformer_course.lab.forward_cost import forward_cost
from anyformer_course.lab.recall import answer_accuracy, palindromes, row_length, train_on
from anyformer_course.lab.runs import mean, processor_seconds, writer

CLAIM = (
    "the sequential depth of the Transformer does not grow with the text; for the LSTM and the GRU it grows with an "
    "exponent of at least 0.9; with every seed the Transformer recalls at least 95 % at the farthest quarter of "
    "distances, and the LSTM and the GRU at least 40 points less; judged if all three recall at least 95 % at the two "
    "shortest distances"
)
FORMS = {
    "tiny": Form(0.2, 0.1, {"width": 16, "steps": 2, "batch": 4, "size": 4, "letters": 4, "lengths": [8, 16]}),
    "full": Form(240, 3, {
        "width": 256, "steps": 2500, "batch": 256, "size": 32, "letters": 8, "lengths": [2**n for n in range(6, 12)],
        "seeds": 3,
    }),
}  # fmt: skip
KINDS: dict[str, Any] = {"transformer": None, "lstm": LSTM(), "gru": GRU()}
DEPTH, HEADS, ASKED = 2, 4, 256
NEAR, SOLVED = 2, 0.95  # number of shortest distances, and the accuracy at which they are solved
MOST_TEXTS = 200_000  # different texts for training; far more than a model could memorize
LOOKS = 30  # evaluations of the shortest distances during training


def trials(
    width: int, steps: int, batch: int, size: int, letters: int, lengths: list[int], seeds: int = 1
) -> list[Trial]:
    same = {"width": width, "steps": steps, "batch": batch, "size": size, "letters": letters}
    costs = [Trial(f"{kind}-cost", {"kind": kind, "width": width, "lengths": lengths}) for kind in KINDS]
    slowest_first = reversed(KINDS)  # so that processes finish at about the same time
    return [
        *(Trial(f"{kind}-seed-{i}", {"kind": kind, **same, "seed": i}) for kind in slowest_first for i in range(seeds)),
        *costs,
    ]


def model_spec(kind: str, width: int, length: int) -> Model:
    op = KINDS[kind]
    changes = {} if op is None else {"embedding.position": None, "decoder.layers.attention.op": op}
    return writer(width, DEPTH, HEADS, length, changes, scaled=True)


def work(values: Values, place: Place) -> list[Row]:
    if "lengths" in values:
        return [cost(values["kind"], values["width"], length, place.device) for length in values["lengths"]]
    shape = values["size"], values["letters"]
    number = min(values["steps"] * values["batch"], MOST_TEXTS)
    texts, length = partial(palindromes, number, *shape, seed=0), 2 * values["size"] + 1
    spec = model_spec(values["kind"], values["width"], row_length(length))
    asked = palindromes(ASKED, *shape, seed=1)
    watch = Watch(asked, max(values["steps"] // LOOKS, 1))
    lr, captured = min(0.3 / values["width"], 3e-3), values["kind"] == "transformer"  # cuDNN is faster than a capture
    trainer = train_on(place, "palindromes", texts, length, spec, values, lr, watch, captured=captured)
    right = answer_accuracy(trainer, asked)
    rows: list[Row] = [{"distance": 2 * i + 2, "accuracy": share} for i, share in enumerate(right)]
    return [*rows, {"solved at": watch.step}]


class Watch(Callback):
    """Stores the first of the evaluated steps at which the shortest distances are solved; None if they are not."""

    def __init__(self, asked: list[str], every: int) -> None:
        self.asked, self.every = asked, every
        self.step: int | None = None

    def on_step(self, trainer: Trainer, done: StepResult) -> None:
        if self.step is None and done.step % self.every == 0:
            if mean(answer_accuracy(trainer, self.asked)[:NEAR]) >= SOLVED:
                self.step = done.step


def cost(kind: str, width: int, length: int, device: str) -> Row:
    """Return the cost of a forward pass over one text."""
    spec = model_spec(kind, width, length)
    counted, model = forward_cost(spec, length), build(spec, seed=0).to(device).eval()
    ids = torch.ones(1, length, dtype=torch.long, device=device)
    with torch.no_grad():
        seconds = processor_seconds(lambda: model(input_ids=ids, use_cache=False), device)
    return {"tokens": length, "depth": counted.depth, "flops": counted.flops, "seconds": seconds}


# -- results ----------------------------------------------------------------------------------------------------------


def exponent(rows: Sequence[Row], kind: str, field: str) -> float:
    points = [(math.log(row["tokens"]), math.log(row[field])) for row in rows if row["kind"] == kind and field in row]
    return statistics.linear_regression(*zip(*points)).slope


def recall(rows: Sequence[Row], kind: str, far: bool = True) -> list[float]:
    """Return the mean accuracy per seed over the farthest quarter of distances, or the shortest two if not `far`."""
    accuracies = []
    for seed in dict.fromkeys(row["seed"] for row in rows if "distance" in row):
        group = [row for row in rows if row["kind"] == kind and row.get("seed") == seed and "distance" in row]
        group.sort(key=lambda row: row["distance"], reverse=far)
        number = max(len(group) // 4, 1) if far else NEAR
        accuracies.append(mean([row["accuracy"] for row in group[:number]]))
    return accuracies


def reach(rows: Sequence[Row], kind: str) -> int:
    """Return the farthest distance up to which at least half of the answers are right, in the mean over seeds."""
    distances = sorted({row["distance"] for row in rows if "distance" in row})
    means = [mean([row["accuracy"] for row in rows if row["kind"] == kind and row.get("distance") == distance])
             for distance in distances]  # fmt: skip
    return max((distance for i, distance in enumerate(distances) if min(means[: i + 1]) >= 0.5), default=0)


def steps_to_solve(rows: Sequence[Row], kind: str) -> str:
    steps = [row["solved at"] for row in rows if row["kind"] == kind and "solved at" in row]
    return ", ".join("never" if step is None else str(step) for step in steps)


def claim(rows: Sequence[Row]) -> Verdict:
    depths = {kind: [row["depth"] for row in rows if row["kind"] == kind and "depth" in row] for kind in KINDS}
    slopes = {kind: exponent(rows, kind, "depth") for kind in KINDS}
    near, far = ({kind: recall(rows, kind, each) for kind in KINDS} for each in (False, True))
    solved = all(min(each) >= SOLVED for each in near.values())
    recurrent = [kind for kind in KINDS if kind != "transformer"]
    parallel = len(set(depths["transformer"])) == 1 and all(slopes[kind] >= 0.9 for kind in recurrent)
    gap = min(best - other for kind in recurrent for best, other in zip(far["transformer"], far[kind], strict=True))
    return Verdict(
        parallel and min(far["transformer"]) >= 0.95 and gap >= 0.4,
        {
            **{f"depth of the longest text, {kind}": each[-1] for kind, each in depths.items()},
            **{f"exponent of depth, {kind}": value for kind, value in slopes.items()},
            **{f"exponent of operations, {kind}": exponent(rows, kind, "flops") for kind in KINDS},
            **{f"exponent of processor time, {kind}": exponent(rows, kind, "seconds") for kind in KINDS},
            **{f"recall near, {kind}": ", ".join(f"{value:.3f}" for value in each) for kind, each in near.items()},
            **{f"farthest distance recalled at least half of the time, {kind}": reach(rows, kind) for kind in KINDS},
            **{f"shortest distances solved at step, {kind}": steps_to_solve(rows, kind) for kind in KINDS},
            **{f"recall far, {kind}": ", ".join(f"{value:.3f}" for value in each) for kind, each in far.items()},
            "smallest gap with a seed": gap,
        },
        solved,
    )


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(3, 1, 15, 4)
    for number, kind in enumerate(KINDS):
        group = [row for row in rows if row["kind"] == kind]
        for axis, field in zip(axes[0], ("depth", "seconds")):
            axis.loglog(
                *zip(*[(row["tokens"], row[field]) for row in group if field in row]), marker="o", label=kind, base=2
            )
            axis.set_yscale("log", base=10)
        for seed in dict.fromkeys(row["seed"] for row in group if "distance" in row):
            points = [(row["distance"], row["accuracy"]) for row in group
                      if row.get("seed") == seed and "distance" in row]  # fmt: skip
            axes[0, 2].plot(*zip(*points), color=f"C{number}", marker=".", label=None if seed else kind)
    axes[0, 0].set(xlabel="tokens", title="sequential depth of a pass (operations)")
    axes[0, 1].set(xlabel="tokens", title="processor time of a pass, one thread (s)")
    axes[0, 2].set(xlabel="tokens between a letter and its answer", title="accuracy")
    for axis in axes.flat:
        axis.legend(frameon=False)
        axis.grid(alpha=0.3)
    return figure
