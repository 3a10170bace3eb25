"""Switch scaling: more experts behind the Switch router mean a lower loss at equal FLOPs per token.

The router sends every token to one expert, weighted by its softmax. An expert accepts at most 1.25 times its fair share
of the tokens of a batch; the layer skips the other tokens. An extra loss balances the experts [Fedus et al. 2021]. The
experiment `experts` has no capacity and a sigmoid. More experts can only help if there is more to learn than the
weights of one expert can store, and if it has parts to specialise in. So the texts are in up to 64 made-up languages,
and in each the next letter depends on the last two tokens: a language has up to 289 rules.
"""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from torch import Tensor

from anyformer.counting import count
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.training import LEARNED, guessing_loss
from anyformer.lab.trials import Place, Row, TrialGrid, Values
from anyformer.look import figures
from anyformer.look.maps import routing
from anyformer.look.trace import trace
from anyformer.models import Model
from anyformer.parts.feedforward.balance import SwitchBalance
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.feedforward.moe import MoE
from anyformer.parts.feedforward.routers import Switch
from anyformer_course.experiments.experts import LENGTH, hold_out, train_experts
from anyformer_course.lab.runs import held_out, mean, writer

CLAIM = (
    "the mean loss falls with every larger number of experts, and with every seed from the smallest number to the "
    "largest; a token costs less than 5 % more FLOPs"
)
FORMS = {
    "tiny": Form(0.2, 0.1, {
        "depth": 1, "width": 16, "steps": 2, "batch": 2, "experts": [1, 2], "languages": 4, "texts": 100, "seeds": 2
    }),
    "small": Form(3, 1, {
        "depth": 1, "width": 32, "steps": 600, "batch": 32, "experts": [1, 4, 16], "languages": 16, "texts": 6000,
        "seeds": 3,
    }),
    "full": Form(240, 3, {
        "depth": 2, "width": 128, "steps": 2500, "batch": 128, "experts": [1, 4, 16, 64], "languages": 64,
        "texts": 40000, "seeds": 3,
    }),
}  # fmt: skip
LETTERS, FOLLOWERS, TEXT = 16, 2, 400  # letters per language; possible next letters of two tokens; tokens per text
MARKS = string.ascii_uppercase + string.digits + string.punctuation  # the mark of each language
MARKED = 1 / 6  # the frequency of the mark in a text
CAPACITY, BALANCE = 1.25, 0.01  # multiple of an expert's fair share; weight of the balance loss, as in the paper


def sizes(each: Values) -> Values:
    counted = count(switch_model(each["experts"], each["width"], each["depth"]))
    return {"parameters": counted.parameters, "flops": counted.flops(LENGTH, causal=True) // LENGTH}


trials = TrialGrid("experts-{experts}-{seed}", experts="experts", seed="seeds", derive=sizes)


def language_texts(number: int, languages: int, seed: int = 0) -> list[str]:
    """Return texts, each in one made-up language, with the mark of the language at random positions. Two tokens,
    letters or marks, are followed by the mark or by one of two letters, which depend only on the language."""
    draw = np.random.default_rng(seed)
    after = np.random.default_rng(0).integers(0, LETTERS, (languages, LETTERS + 1, LETTERS + 1, FOLLOWERS))
    language = draw.integers(0, languages, number)
    last = before = np.full(number, LETTERS)  # the mark
    columns = [last]
    for _ in range(TEXT - 1):
        letter = after[language, before, last, draw.integers(0, FOLLOWERS, number)]
        before, last = last, np.where(draw.random(number) < MARKED, LETTERS, letter)
        columns.append(last)
    symbols = np.array([[*string.ascii_lowercase[:LETTERS], mark] for mark in MARKS[:languages]])
    return ["".join(text) for text in symbols[language[:, None], np.stack(columns, 1)]]


def switch_model(experts: int, width: int, depth: int) -> Model:
    """Return a decoder with this number of experts in every layer; with one expert, an ordinary feed-forward layer."""
    if experts == 1:
        return writer(width, depth, 4, LENGTH, scaled=True)
    router = Switch(capacity=math.ceil(CAPACITY * LENGTH / experts), limit="batch", jitter=0.01)
    expert = MLP(width=4 * width, activation="gelu_tanh", bias=False)
    op = MoE(num_experts=experts, router=router, expert=expert)
    balance = SwitchBalance(weight=BALANCE, z_weight=0.0, encoder=False)
    return writer(width, depth, 4, LENGTH, {"decoder.layers.feedforward.op": op, "head.balance": balance}, scaled=True)


def work(values: Values, place: Place) -> list[Row]:
    spec = switch_model(values["experts"], values["width"], values["depth"])
    source = place.texts("languages", lambda: language_texts(values["texts"], values["languages"]))
    trainer, rows = train_experts("switch", spec, hold_out(source), values, place)
    rows.append({"guessing": guessing_loss(trainer)})
    if values["experts"] > 1:
        routed = routing(trace(trainer.model.train(), input_ids=held_out(trainer, 16, LENGTH)))  # train: with capacity
        rows += [{"layer": layer, **load(each.experts, values["experts"])} for layer, each in enumerate(routed)]
    return rows


def load(chosen: Tensor, experts: int) -> dict[str, float]:
    """Return the share of tokens of the busiest expert, and the share of dropped tokens (expert number `experts`)."""
    shares = chosen.flatten().bincount(minlength=experts + 1).float() / chosen.numel()
    return {"busiest": float(shares[:-1].max()), "dropped": float(shares[-1])}


def last_losses(rows: Sequence[Row]) -> dict[int, list[float]]:
    """Return number of experts -> last loss of every seed."""
    last = {(row["experts"], row["seed"]): row["loss"] for row in rows if "step" in row}
    by_experts: dict[int, list[float]] = {}
    for (number, _), loss in last.items():
        by_experts.setdefault(number, []).append(loss)
    return by_experts


def claim(rows: Sequence[Row]) -> Verdict:
    losses = last_losses(rows)
    means = [mean(each) for each in losses.values()]
    first, *_, last = losses.values()
    gains = [before - after for before, after in zip(first, last, strict=True)]
    costs = {row["experts"]: row["flops"] for row in rows}
    dearer = max(costs.values()) / min(costs.values()) - 1
    worst = max(first) / min(row["guessing"] for row in rows if "guessing" in row)
    falls = all(after < before for before, after in pairwise(means))
    return Verdict(
        falls and min(gains) > 0 and dearer < 0.05,
        {
            **{f"loss with {number} experts": value for number, value in zip(losses, means)},
            "smallest gain of a seed": min(gains),
            "extra cost of a token": dearer,
            **{
                f"{what}, {number} experts": max(row[what] for row in rows if what in row and row["experts"] == number)
                for what in ("busiest", "dropped")
                for number in [*losses][1:]
            },
            "largest loss / loss of guessing": worst,
        },
        worst <= LEARNED,
    )


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(2, 1, 11, 4)
    sizes = {row["experts"]: row["parameters"] for row in rows}
    for number, size in sizes.items():
        group = [row for row in rows if row["experts"] == number and "step" in row]
        steps = sorted({row["step"] for row in group})
        curve = [mean([row["loss"] for row in group if row["step"] == step]) for step in steps]
        axes[0, 0].plot(steps, curve, marker="o", markersize=3, label=f"{number}: {size:,}")
    axes[0, 0].legend(frameon=False, fontsize=8, title="experts: parameters")
    axes[0, 0].set(xlabel="step", title="loss at equal FLOPs per token")
    losses = last_losses(rows)
    axes[0, 1].plot([*losses], [mean(each) for each in losses.values()])
    axes[0, 1].plot(*zip(*((number, loss) for number, each in losses.items() for loss in each)), "o", color="C0")
    axes[0, 1].set(xscale="log", xlabel="experts", title="at the end: one point per seed, and the mean")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    return figure
