"""Experts: at equal compute a token, more experts mean a lower loss.

The feed-forward layers of a small decoder become a mixture in which every token goes to one expert: parameters grow
with the number of experts, and what a token costs stays as it was [Fedus et al. 2021]. An expert's weight is a sigmoid:
a softmax would begin with 1 / experts, from which a short training does not recover.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anyformer.counting import count
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.experiments._language import Language
from anyformer.lab.experiments._runs import held_out, texts, training, writer
from anyformer.lab.trials import Place, Row, Trial, Values
from anyformer.look import figures
from anyformer.look.maps import routing
from anyformer.look.trace import trace
from anyformer.model import Model
from anyformer.parts.balance import PooledBalance
from anyformer.parts.feedforward import MLP
from anyformer.parts.moe import MoE, TopK
from anyformer.train.progress import read_metrics

CLAIM = "with more experts the loss is lower at the same steps, and what a token costs grows by less than 5 %"
FORMS = {
    "tiny": Form(0.2, 0.1, {"depth": 1, "width": 16, "steps": 2, "batch": 2, "experts": [1, 2], "text": "made-up"}),
    "small": Form(2, 0.5, {
        "depth": 2, "width": 16, "steps": 500, "batch": 16, "experts": [1, 4, 16], "text": "made-up"
    }),
    "full": Form(90, 3.5, {
        "depth": 4, "width": 128, "steps": 2000, "batch": 64, "experts": [1, 2, 4, 8, 16, 32], "text": "library"
    }),
}  # fmt: skip
LENGTH = 64
LANGUAGES = Language(topics=8, words=6)  # a text is of one


def trials(
    depth: int, width: int, steps: int, batch: int, experts: list[int], text: str, data: str | None = None,
    seed: int = 0,
) -> list[Trial]:
    same = {"depth": depth, "width": width, "steps": steps, "batch": batch, "text": text, "data": data,
            "seed": seed}  # fmt: skip
    found = []
    for number in experts:
        counted = count(mixed(number, width, depth))
        cost = counted.flops(LENGTH, causal=True) // LENGTH
        sizes = {"parameters": counted.parameters, "active": counted.active, "flops": cost}
        found.append(Trial(f"experts-{number}", {"experts": number, **sizes, **same}))
    return found


def mixed(experts: int, width: int, depth: int) -> Model:
    """A decoder with so many experts; one of them is an ordinary feed-forward."""
    if experts == 1:
        return writer(width, depth, 4, LENGTH, scaled=True)
    expert = MLP(width=4 * width, activation="gelu_tanh", bias=False)
    op = MoE(num_experts=experts, router=TopK(top_k=1, score="sigmoid", normalize=False, scale=2.0), expert=expert)
    changes = {"decoder.layers.feedforward.op": op, "head.balance": PooledBalance(weight=0.01, top_k=1)}
    return writer(width, depth, 4, LENGTH, changes, scaled=True)


def work(values: Values, place: Place) -> list[Row]:
    run = training(
        "experts", mixed(values["experts"], values["width"], values["depth"]),
        texts(place, values["text"], values["data"], LANGUAGES), place.device, steps=values["steps"],
        batch=values["batch"], length=LENGTH, lr=3e-3 if values["width"] < 100 else 1e-3,
        every=max(values["steps"] // 8, 1), seed=values["seed"],
    )  # fmt: skip
    trainer = place.train(run)
    rows: list[Row] = [
        {"step": line["step"], "loss": line["valid/loss"]} for line in read_metrics(trainer.folder)
        if "valid/loss" in line
    ]  # fmt: skip
    if values["experts"] > 1:
        with trainer.evaluating():
            for layer, routed in enumerate(routing(trace(trainer.model, input_ids=held_out(trainer, 16, LENGTH)))):
                shares = routed.experts.flatten().bincount(minlength=values["experts"]).float()
                rows.append({"layer": layer, "busiest": float(shares.max() / shares.sum())})
    return rows


def claim(rows: Sequence[Row]) -> Verdict:
    last = {row["experts"]: row for row in rows if "step" in row}
    losses = [row["loss"] for row in last.values()]
    costs = [row["flops"] for row in last.values()]
    found = {f"loss with {number} experts": row["loss"] for number, row in last.items()}
    dearer = max(costs) / costs[0] - 1
    return Verdict(losses[-1] < losses[0] and min(losses[1:]) < losses[0] and dearer < 0.05, {
        **found, "a token costs more by": dearer,
        "busiest expert's share": max(row["busiest"] for row in rows if "busiest" in row),
    })  # fmt: skip


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(2, 1, 11, 4)
    last = {row["experts"]: row for row in rows if "step" in row}
    for number in last:
        points = [(row["step"], row["loss"]) for row in rows if row["experts"] == number and "step" in row]
        axes[0, 0].plot(*zip(*points), marker="o", markersize=3, label=f"{number}: {last[number]['parameters']:,}")
    axes[0, 0].legend(frameon=False, fontsize=8, title="experts: parameters")
    axes[0, 0].set(xlabel="step", title="loss at equal compute")
    axes[0, 1].plot(list(last), [row["loss"] for row in last.values()], marker="o")
    axes[0, 1].set(xscale="log", xlabel="experts", title="at the end")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    return figure
