"""Induction heads: in-context learning jumps when heads form that look at what followed a token before.

Attention alone, one layer and two, learns texts that go round a circle of letters, another one in each text, and now
and then begin elsewhere on it; of distances it knows 0, 1 and more. How much better the second half of a text is
predicted that says the same twice is the score of in-context learning. As found in larger models [Olsson et al. 2022],
with two layers it falls at once, when a head that attends to the token after an earlier copy appears; one layer learns
which letters there are, and no head of it can find what followed. The first of the two layers sees a token and the one
before: where it sees everything it must become such a layer first, and when it does is chance (the full form tries it).
Loss by token index shows the same on texts that were not learnt: how far the loss falls from the first tokens to the
last ones of a text, and its derivative with respect to the logarithm of the index.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyformer.data import Data
from anyformer.evaluate.by_position import losses_by_position
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.runs import checkpoints, each_loss, training, writer
from anyformer.lab.trials import Place, Row, Trial, Values
from anyformer.look import figures
from anyformer.look.scores import head_scores
from anyformer.look.trace import trace
from anyformer.models import Model, TransformerModule
from anyformer.parts.init import Normal
from anyformer.parts.position.bias import RelativeVectors
from anyformer.runtime.mask import Causal, Window
from anyformer.specs.codec import override
from anyformer.stacks.block import Block
from anyformer.train.trainer import Callback, StepResult, Trainer

CLAIM = (
    "with every seed the in-context score of two layers has a steep jump, that of one layer has none (a third of it at "
    "most); without its induction heads the model loses three quarters of what it is better by than one layer, without "
    "the other heads of their layer it keeps half, where there are others; on new texts the loss of two layers falls "
    "at least twice as far from tokens 3 and 4 to the last ones as that of one layer"
)
FORMS = {
    "tiny": Form(0.1, 0.1, {"steps": 6, "width": 16, "points": 3, "batch": 4, "texts": 100, "seeds": 1}),
    "small": Form(3, 0.5, {"steps": 400, "width": 64, "points": 40, "batch": 32, "texts": 4000, "seeds": 3}),
    "full": Form(
        60, 2, {"steps": 3000, "width": 64, "points": 100, "batch": 128, "texts": 20000, "seeds": 5, "far": True}
    ),
}
LETTERS = [chr(i) for i in range(65, 97)]
LENGTH, HALF, HEADS = 64, 20, 4
INDUCTION = 0.25  # of its attention is on what followed: an induction head (evenly spread it would be 0.03)
EMPTY = "nothing to compare with, every head of the layer is an induction head"
CIRCLE, ELSEWHERE = (6, 20), 0.05  # letters of a circle; how often it goes on elsewhere
MIXED = "decoder.layers.*.attention.op.mixed"


def trials(steps: int, width: int, points: int, batch: int, texts: int, seeds: int, far: bool = False) -> list[Trial]:
    same = {"width": width, "steps": steps, "points": points, "batch": batch, "texts": texts, "lr": 0.2 / width}
    kinds = {"one": (1, False), "two": (2, True)} | ({"two-far": (2, False)} if far else {})
    return [
        Trial(f"{kind}-seed-{seed}", {"kind": kind, "depth": depth, "near": near, "seed": seed, **same})
        for seed in range(seeds)
        for kind, (depth, near) in kinds.items()
    ]


def work(values: Values, place: Place) -> list[Row]:
    steps = values["steps"]
    model = model_spec(values["depth"], values["width"], values["near"])
    data = Data(train=place.texts("rounds", lambda: rounds(values["texts"])))
    run = training(
        "induction",
        model,
        data,
        place.device,
        steps=steps,
        batch=values["batch"],
        length=LENGTH,
        lr=values["lr"],
        seed=values["seed"],
    )
    watch = Watch(checkpoints(steps, values["points"]))
    trainer = place.train(run, watch)
    return [*watch.rows, *ablations(trainer), *position_losses(trainer)]


def model_spec(depth: int, width: int, near: bool) -> Model:
    """Attention alone. A head finds the token before by its distance, and nothing farther: what follows an earlier copy
    must be found by what it says. `near`: the first layer sees nothing farther either."""
    distances = RelativeVectors(before=2, after=0, values=False)
    whole: Any = writer(
        width,
        depth,
        HEADS,
        LENGTH,
        {
            "embedding.position": None,
            "decoder.layers.attention.op.position": distances,
            "init": {"*": Normal(std=width**-0.5)},
        },
    )
    alone = override(whole, {"decoder.layers": Block(attention=whole.decoder.layers.steps["attention"])})
    return override(alone, {"decoder.layers.0.attention.op.mask": Causal() & Window(size=2)} if near else {})


# -- data -------------------------------------------------------------------------------------------------------------


def rounds(number: int, length: int = 8 * LENGTH, seed: int = 0) -> list[str]:
    """Texts, each with a circle of its own. Letters that it has are likelier than others, which one layer can learn;
    which of them is next, only what followed the same letter before tells."""
    draw = np.random.default_rng(seed)
    order = draw.permuted(np.tile(np.array(LETTERS), (number, 1)), axis=1)
    sizes = draw.integers(CIRCLE[0], CIRCLE[1] + 1, (number, 1))
    places = draw.integers(0, sizes, (number, length))
    leaps = draw.random((number, length)) < ELSEWHERE
    for t in range(1, length):
        places[:, t] = np.where(leaps[:, t], places[:, t], (places[:, t - 1] + 1) % sizes[:, 0])
    return ["".join(text) for text in np.take_along_axis(order, places, 1)]


def repeat_letters(trainer: Trainer, rows: int = 32) -> Tensor:
    """(rows, 2 * HALF) tokens: different letters in any order, and the same once more."""
    known = torch.tensor(trainer.tokenizer.encode("".join(LETTERS)))
    order = torch.rand(rows, len(known), generator=torch.Generator().manual_seed(1)).argsort(-1)
    half = known[order[:, :HALF]]
    return torch.cat((half, half), 1).to(trainer.device)


# -- what is measured -------------------------------------------------------------------------------------------------


def score(logits: Tensor, ids: Tensor) -> float:
    """How much less surprising the second half is than the first, in nats a token, below 0."""
    loss = each_loss(logits, ids)
    return float(loss[:, HALF:].mean() - loss[:, : HALF - 1].mean())


class Watch(Callback):
    """The score of in-context learning, and that of the best induction head, at some steps."""

    def __init__(self, steps: set[int]) -> None:
        self.steps, self.rows = steps, list[Row]()

    def on_step(self, trainer: Trainer, done: StepResult) -> None:
        if done.step in self.steps:
            ids = repeat_letters(trainer)
            with trainer.eval_mode():
                run = trace(trainer.model, input_ids=ids)
                best = head_scores(run).best("induction")[0][2]
            self.rows.append({"step": done.step, "score": score(run.output.logits, ids), "head": best})


def ablations(trainer: Trainer) -> list[Row]:
    """The score without the induction heads, and without the other heads of the same layer. (Those of the first layer
    are all needed: induction heads look for what they say.)"""
    ids, model = repeat_letters(trainer), trainer.model
    with trainer.eval_mode():
        run = trace(model, input_ids=ids)
        ranked = head_scores(run).best("induction", 2 * HEADS)
        last = {head for head in ranked if head[0] == ranked[0][0]}
        induction = {head for head in last if head[2] >= INDUCTION}
        rows: list[Row] = [{"without": "nothing", "heads": 0, "score": score(run.output.logits, ids)}]
        for name, heads in (("induction", induction), ("others", last - induction)):
            seen = sorted((share for *_, share in heads), reverse=True)
            left = score(ablate_heads(model, heads, ids), ids)
            rows.append({"without": name, "heads": len(heads), "attention": seen, "score": left})
    return rows


def position_losses(trainer: Trainer, number: int = 256) -> list[Row]:
    """The loss by token index, on new texts."""
    ids = torch.tensor([trainer.tokenizer.encode(text) for text in rounds(number, LENGTH, seed=1)])
    with trainer.eval_mode():
        return [dataclasses.asdict(group) for group in losses_by_position(trainer.model, [{"input_ids": ids}])]


def ablate_heads(model: TransformerModule, heads: Set[tuple[str, int, float]], ids: Tensor) -> Tensor:
    """The scores of the vocabulary where these heads say nothing."""

    def silence(mixed: Tensor, address: str) -> Tensor:
        kept = mixed.clone().unflatten(-1, (HEADS, -1))
        for layer, head, _ in heads:
            if address.startswith(f"{layer}."):
                kept[..., head, :] = 0
        return kept.flatten(-2)

    return trace(model, change={MIXED: silence}, input_ids=ids).output.logits


# -- what it shows ----------------------------------------------------------------------------------------------------


def curve(rows: Sequence[Row], kind: str, seed: int = 0) -> list[Row]:
    return [row for row in rows if (row["kind"], row["seed"]) == (kind, seed) and "step" in row]


def jump(points: Sequence[Row]) -> tuple[int, float]:
    """Where the score falls fastest, and by how much a doubling of the steps: the derivative by log2(step)."""
    slopes = [
        (after["step"], (before["score"] - after["score"]) / math.log2(after["step"] / before["step"]))
        for before, after in zip(points, points[2:])
    ]
    return max(slopes, key=lambda slope: slope[1], default=(0, 0.0))


def by_index(rows: Sequence[Row], kind: str, seed: int = 0) -> list[Row]:
    return [row for row in rows if (row["kind"], row["seed"]) == (kind, seed) and "slope" in row]


def fall(groups: Sequence[Row]) -> float:
    """From tokens 3 and 4 to the last group."""
    return next(row["loss"] for row in groups if row["first"] == 3) - groups[-1]["loss"]


def of_seed(rows: Sequence[Row], seed: int) -> Verdict:
    (_, one), (step, two) = (jump(curve(rows, kind, seed)) for kind in ("one", "two"))
    left = {(row["kind"], row["without"]): row for row in rows if row["seed"] == seed and "without" in row}
    single, whole = left["one", "nothing"]["score"], left["two", "nothing"]["score"]
    heads = {name: left["two", name]["heads"] for name in ("induction", "others")}
    kept: dict[str, Any] = {name: math.nan for name in heads}
    if whole < single:
        kept = {name: (left["two", name]["score"] - single) / (whole - single) for name in heads}
    holds = two > 0.5 and one <= two / 3 and kept["induction"] < 0.25 and (kept["others"] > 0.5 or not heads["others"])
    falls = {kind: fall(by_index(rows, kind, seed)) for kind in ("one", "two")}
    steepest = {kind: min(by_index(rows, kind, seed), key=lambda row: row["slope"]) for kind in falls}
    holds = holds and falls["two"] >= 2 * falls["one"] and falls["two"] > 0
    if not heads["others"]:  # where nothing is silenced all is kept, which shows nothing
        kept["others"] = EMPTY
    far = jump(curve(rows, "two-far", seed))
    return Verdict(
        holds,
        {
            "jump of one layer": one,
            "jump of two layers": two,
            "at step": step,
            "score of one layer": single,
            "score of two layers": whole,
            "induction heads": heads["induction"],
            "kept without induction heads": kept["induction"],
            "others": heads["others"],
            "kept without others": kept["others"],
            **{f"loss falls along a text by, {kind}": value for kind, value in falls.items()},
            **{f"steepest derivative by log(index), {kind}": row["slope"] for kind, row in steepest.items()},
            **{f"at tokens, {kind}": f"{row['first']} to {row['last']}" for kind, row in steepest.items()},
            "best head": curve(rows, "two", seed)[-1]["head"],
            **({"jump where both see all": far[1], "at that step": far[0]} if far[0] else {}),
        },
    )


def claim(rows: Sequence[Row]) -> Verdict:
    found = {seed: of_seed(rows, seed) for seed in dict.fromkeys(row["seed"] for row in rows)}
    figures = {f"{name}, seed {seed}": value for seed, each in found.items() for name, value in each.figures.items()}
    compared = [seed for seed, each in found.items() if each.figures["kept without others"] != EMPTY]
    figures = {"seeds with a control": len(compared) or f"none, so that its half is not shown: {EMPTY}", **figures}
    return Verdict(all(each.holds for each in found.values()), figures)


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(5, 1, 20, 4)
    colours = {"one": "C0", "two": "C1", "two-far": "C2"}
    for kind, seed in dict.fromkeys((row["kind"], row["seed"]) for row in rows):
        points = curve(rows, kind, seed)
        steps, look = [row["step"] for row in points], {"color": colours[kind], "label": None if seed else kind}
        axes[0, 0].plot(steps, [row["score"] for row in points], **look)
        axes[0, 1].plot(steps, [row["head"] for row in points], **look)
        groups = by_index(rows, kind, seed)
        middle = [math.sqrt(row["first"] * row["last"]) for row in groups]
        axes[0, 3].plot(middle, [row["loss"] for row in groups], marker="o", **look)
        axes[0, 4].plot(middle, [row["slope"] for row in groups], marker="o", **look)
    axes[0, 0].axvline(jump(curve(rows, "two"))[0], color="#777777", linestyle=":")
    axes[0, 0].set(xscale="log", xlabel="step", title="in-context score (nats a token)")
    axes[0, 1].set(xscale="log", xlabel="step", title="attention of the best induction head")
    bars = [(row["kind"], row["without"], row["score"]) for row in rows if "without" in row and not row["seed"]]
    axes[0, 2].bar([f"{kind}: {name}" for kind, name, _ in bars], [value for *_, value in bars])
    axes[0, 2].set(title="score without heads (layers: which)")
    axes[0, 2].tick_params(axis="x", labelrotation=30, labelsize=8)
    axes[0, 3].set(xscale="log", xlabel="token index", title="loss on new texts")
    axes[0, 4].set(xscale="log", xlabel="token index", title="its derivative by log(index)")
    for axis in (*axes[0, :2], *axes[0, 3:]):
        axis.legend(frameon=False)
        axis.grid(alpha=0.3)
    return figure
