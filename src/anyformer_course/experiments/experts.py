"""Experts: at equal compute per token, more experts mean a lower loss.

The feed-forward layers of a small decoder become mixtures with one active expert per token: parameters grow with the
number of experts, and the cost of a token does not change [Fedus et al. 2021]. This helps if there is more to learn
than the weights can store: the small form learns 32 artificial languages at once, with different rules for which letter
follows which. An expert's weight is a sigmoid: a softmax would start at 1 / experts, too small for a short training.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import numpy as np

from anyformer.counting import count
from anyformer.data import Data, Held, Source
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.training import training_run
from anyformer.lab.trials import Place, Row, TrialGrid, Values
from anyformer.look import figures
from anyformer.look.maps import routing
from anyformer.look.trace import trace
from anyformer.models import Model
from anyformer.parts.feedforward.balance import PooledBalance
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.feedforward.moe import MoE
from anyformer.parts.feedforward.routers import TopK
from anyformer.train.progress import read_metrics
from anyformer.train.trainer import Trainer
from anyformer_course.lab.runs import held_out, mean, texts, writer

CLAIM = (
    "with more experts the loss is lower at the same number of steps, with every seed, and the cost of a token grows "
    "by less than 5 %"
)
FORMS = {
    "tiny": Form(0.2, 0.1, {"depth": 1, "width": 16, "steps": 2, "batch": 2, "experts": [1, 2], "text": "tongues"}),
    "small": Form(
        2,
        0.5,
        {"depth": 1, "width": 32, "steps": 600, "batch": 32, "experts": [1, 4, 16], "text": "tongues", "seeds": 3},
    ),
    "full": Form(
        90,
        3.5,
        {"depth": 4, "width": 128, "steps": 2000, "batch": 64, "experts": [1, 2, 4, 8, 16, 32], "text": "library"},
    ),
}
LENGTH = 64
LETTERS, FOLLOWERS = 16, 2  # letters per language; possible next letters per letter
MARKS, MARKED = string.ascii_uppercase + "012345", 1 / 6  # the mark of each language, and its frequency in a text


def sizes(each: Values) -> Values:
    counted = count(experts_model(each["experts"], each["width"], each["depth"]))
    cost = counted.flops(LENGTH, causal=True) // LENGTH
    return {"parameters": counted.parameters, "active": counted.active, "flops": cost}


trials = TrialGrid("experts-{experts}-{seed}", experts="experts", seed="seeds", data=True, derive=sizes)


def experts_model(experts: int, width: int, depth: int) -> Model:
    """Return a decoder with this number of experts; with one expert, an ordinary feed-forward layer."""
    if experts == 1:
        return writer(width, depth, 4, LENGTH, scaled=True)
    expert = MLP(width=4 * width, activation="gelu_tanh", bias=False)
    op = MoE(num_experts=experts, router=TopK(top_k=1, score="sigmoid", normalize=False, scale=2.0), expert=expert)
    changes = {"decoder.layers.feedforward.op": op, "head.balance": PooledBalance(weight=0.01, top_k=1)}
    return writer(width, depth, 4, LENGTH, changes, scaled=True)


def tongues(number: int, length: int = 400) -> list[str]:
    """Return texts, each in one artificial language. Each letter has two possible next letters, which depend only on
    the language. The language's mark appears between letters at random and does not change the next letter."""
    draw = np.random.default_rng(0)
    after = draw.integers(0, LETTERS, (len(MARKS), LETTERS, FOLLOWERS))
    tongue, letter = draw.integers(0, len(MARKS), number), draw.integers(0, LETTERS, number)
    mark = np.array(list(MARKS))[tongue]
    letters, columns = np.array(list(string.ascii_lowercase[:LETTERS])), [mark]
    for _ in range(length - 1):
        marked = draw.random(number) < MARKED
        letter = np.where(marked, letter, after[tongue, letter, draw.integers(0, FOLLOWERS, number)])
        columns.append(np.where(marked, mark, letters[letter]))
    return ["".join(text) for text in np.stack(columns, 1)]


def work(values: Values, place: Place) -> list[Row]:
    spec = experts_model(values["experts"], values["width"], values["depth"])
    if values["text"] == "tongues" and values["data"] is None:
        data = hold_out(place.texts("tongues", lambda: tongues(3000)))
    else:
        data = texts(place, values["text"], values["data"])
    trainer, rows = train_experts("experts", spec, data, values, place)
    if values["experts"] > 1:
        with trainer.eval_mode():
            for layer, routed in enumerate(routing(trace(trainer.model, input_ids=held_out(trainer, 16, LENGTH)))):
                shares = routed.experts.flatten().bincount(minlength=values["experts"]).float()
                rows.append({"layer": layer, "busiest": float(shares.max() / shares.sum())})
    return rows


def hold_out(source: Source) -> Data:
    """Return the texts as training and held-out data."""
    return Data(train=Held(source=source), valid=Held(source=source, out=True))


def train_experts(name: str, spec: Model, data: Data, values: Values, place: Place) -> tuple[Trainer, list[Row]]:
    """Train a model; return the trainer and the held-out losses by step."""
    run = training_run(
        name,
        spec,
        data,
        place.device,
        steps=values["steps"],
        batch=values["batch"],
        length=LENGTH,
        lr=3e-3 if values["width"] < 100 else 1e-3,
        every=max(values["steps"] // 8, 1),
        seed=values["seed"],
    )
    trainer = place.train(run)
    seen = [line for line in read_metrics(trainer.folder) if "valid/loss" in line]
    return trainer, [{"step": line["step"], "loss": line["valid/loss"]} for line in seen]


def claim(rows: Sequence[Row]) -> Verdict:
    last = {(row["experts"], row["seed"]): row for row in rows if "step" in row}
    numbers, seeds = (list(dict.fromkeys(keys)) for keys in zip(*last))
    gains = [last[numbers[0], seed]["loss"] - last[numbers[-1], seed]["loss"] for seed in seeds]
    costs = [last[number, seeds[0]]["flops"] for number in numbers]
    dearer = max(costs) / costs[0] - 1
    results = {
        f"loss with {number} experts": mean([last[number, seed]["loss"] for seed in seeds]) for number in numbers
    }
    return Verdict(
        min(gains) > 0 and dearer < 0.05,
        {
            **results,
            "smallest gain of a seed": min(gains),
            "extra cost of a token": dearer,
            "busiest expert's share": max(row["busiest"] for row in rows if "busiest" in row),
        },
    )


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(2, 1, 11, 4)
    measured: dict[int, dict[int, list[float]]] = {}  # experts -> step -> the loss of every seed
    for row in rows:
        if "step" in row:
            measured.setdefault(row["experts"], {}).setdefault(row["step"], []).append(row["loss"])
    sizes = {row["experts"]: row["parameters"] for row in rows}
    for number, losses in measured.items():
        axes[0, 0].plot(
            list(losses),
            [mean(each) for each in losses.values()],
            marker="o",
            markersize=3,
            label=f"{number}: {sizes[number]:,}",
        )
    axes[0, 0].legend(frameon=False, fontsize=8, title="experts: parameters")
    axes[0, 0].set(xlabel="step", title="loss at equal compute")
    ends = {number: list(losses.values())[-1] for number, losses in measured.items()}
    axes[0, 1].plot(list(ends), [mean(each) for each in ends.values()])
    axes[0, 1].plot(*zip(*((number, loss) for number, each in ends.items() for loss in each)), "o", color="C0")
    axes[0, 1].set(xscale="log", xlabel="experts", title="at the end: one point per seed, and the mean")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    return figure
