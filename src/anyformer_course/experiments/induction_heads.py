"""Induction heads: in-context learning improves suddenly when heads form that attend to what followed an earlier copy.

Models with only attention, of one or two layers, learn texts that repeat a cycle of letters; each text has its own
cycle and sometimes jumps to another position in it. The attention distinguishes only the distances 0, 1 and more. The
in-context score is the loss of the second half of a repeated text minus the loss of its first half. As in larger models
[Olsson et al. 2022], with two layers it falls suddenly, when a head appears that attends to the token after an earlier
copy; one layer learns only which letters occur. The first of the two layers sees only a token and the token before it:
if it sees everything, it must learn this first, and when that happens is chance (the full form tries it). Loss by token
index shows the same on new texts: how far the loss falls from the first tokens of a text to the last, and its
derivative with respect to the logarithm of the index."""

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
from anyformer.lab.training import training_run
from anyformer.lab.trials import Place, Row, Trial, Values
from anyformer.look import figures
from anyformer.look.scores import head_scores
from anyformer.look.trace import trace
from anyformer.models import Model, TransformerModule
from anyformer.parts.init import Normal
from anyformer.parts.mask import Causal, Window
from anyformer.parts.position.bias import RelativeVectors
from anyformer.specs.codec import override
from anyformer.stacks.block import Block
from anyformer.train.trainer import Callback, StepResult, Trainer
from anyformer_course.lab.runs import checkpoints, each_loss, writer

CLAIM = (
    "with every seed the in-context score of two layers has a steep jump and the score of one layer has none (at most "
    "a third of it); without its induction heads the model loses three quarters of its gain over one layer, without "
    "the other heads of that layer (if any) it keeps half; on new texts the loss of two layers falls at least twice as "
    "far from tokens 3 and 4 to the last tokens as the loss of one layer"
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
INDUCTION = 0.25  # least share of an induction head's attention on what followed (uniform attention has 0.03)
EMPTY = "nothing to compare with, every head of the layer is an induction head"
CIRCLE, ELSEWHERE = (6, 20), 0.05  # minimum and maximum letters of a cycle; how often the text jumps
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
    run = training_run(
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
    """Return a model with only attention. A head can find the previous token by its distance; the token after an
    earlier copy it must find by content. If `near`, the first layer sees only a token and the token before it."""
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
    attention = override(whole, {"decoder.layers": Block(attention=whole.decoder.layers.steps["attention"])})
    return override(attention, {"decoder.layers.0.attention.op.mask": Causal() & Window(size=2)} if near else {})


# -- data -------------------------------------------------------------------------------------------------------------


def rounds(number: int, length: int = 8 * LENGTH, seed: int = 0) -> list[str]:
    """Return texts, each with its own cycle of letters. One layer can learn which letters are in the cycle; which
    letter is next follows only from what followed the same letter before."""
    draw = np.random.default_rng(seed)
    order = draw.permuted(np.tile(np.array(LETTERS), (number, 1)), axis=1)
    sizes = draw.integers(CIRCLE[0], CIRCLE[1] + 1, (number, 1))
    index = draw.integers(0, sizes, (number, length))
    leaps = draw.random((number, length)) < ELSEWHERE
    for t in range(1, length):
        index[:, t] = np.where(leaps[:, t], index[:, t], (index[:, t - 1] + 1) % sizes[:, 0])
    return ["".join(text) for text in np.take_along_axis(order, index, 1)]


def repeat_letters(trainer: Trainer, rows: int = 32) -> Tensor:
    """Return (rows, 2 * HALF) tokens: different letters in random order, then the same letters again."""
    known = torch.tensor(trainer.tokenizer.encode("".join(LETTERS)))
    order = torch.rand(rows, len(known), generator=torch.Generator().manual_seed(1)).argsort(-1)
    half = known[order[:, :HALF]]
    return torch.cat((half, half), 1).to(trainer.device)


# -- measurements -----------------------------------------------------------------------------------------------------


def score(logits: Tensor, ids: Tensor) -> float:
    """Return the loss of the second half minus the loss of the first, in nats per token; negative if context helps."""
    loss = each_loss(logits, ids)
    return float(loss[:, HALF:].mean() - loss[:, : HALF - 1].mean())


class Watch(Callback):
    """Measures the in-context score and the score of the best induction head at some steps."""

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
    """Return the score without the induction heads, and without the other heads of the same layer. (All heads of the
    first layer are needed: induction heads use their outputs.)"""
    ids, model = repeat_letters(trainer), trainer.model
    with trainer.eval_mode():
        run = trace(model, input_ids=ids)
        ranked = head_scores(run).best("induction", 2 * HEADS)
        last = {head for head in ranked if head[0] == ranked[0][0]}
        induction = {head for head in last if head[2] >= INDUCTION}
        rows: list[Row] = [{"without": "nothing", "heads": 0, "score": score(run.output.logits, ids)}]
        for name, heads in (("induction", induction), ("others", last - induction)):
            seen = sorted((share for *_, share in heads), reverse=True)
            remaining = score(ablate_heads(model, heads, ids), ids)
            rows.append({"without": name, "heads": len(heads), "attention": seen, "score": remaining})
    return rows


def position_losses(trainer: Trainer, number: int = 256) -> list[Row]:
    """Return the loss by token index on new texts."""
    ids = torch.tensor([trainer.tokenizer.encode(text) for text in rounds(number, LENGTH, seed=1)])
    with trainer.eval_mode():
        return [dataclasses.asdict(group) for group in losses_by_position(trainer.model, [{"input_ids": ids}])]


def ablate_heads(model: TransformerModule, heads: Set[tuple[str, int, float]], ids: Tensor) -> Tensor:
    """Return the logits with the outputs of these heads set to 0."""

    def silence(mixed: Tensor, address: str) -> Tensor:
        outputs = mixed.clone().unflatten(-1, (HEADS, -1))
        for layer, head, _ in heads:
            if address.startswith(f"{layer}."):
                outputs[..., head, :] = 0
        return outputs.flatten(-2)

    return trace(model, change={MIXED: silence}, input_ids=ids).output.logits


# -- results ----------------------------------------------------------------------------------------------------------


def curve(rows: Sequence[Row], kind: str, seed: int = 0) -> list[Row]:
    return [row for row in rows if (row["kind"], row["seed"]) == (kind, seed) and "step" in row]


def jump(points: Sequence[Row]) -> tuple[int, float]:
    """Return the step at which the score falls fastest, and its fall per doubling of the steps."""
    slopes = [
        (after["step"], (before["score"] - after["score"]) / math.log2(after["step"] / before["step"]))
        for before, after in zip(points, points[2:])
    ]
    return max(slopes, key=lambda slope: slope[1], default=(0, 0.0))


def by_index(rows: Sequence[Row], kind: str, seed: int = 0) -> list[Row]:
    return [row for row in rows if (row["kind"], row["seed"]) == (kind, seed) and "slope" in row]


def fall(groups: Sequence[Row]) -> float:
    """Return the fall of the loss from tokens 3 and 4 to the last group."""
    return next(row["loss"] for row in groups if row["first"] == 3) - groups[-1]["loss"]


def of_seed(rows: Sequence[Row], seed: int) -> Verdict:
    (_, one), (step, two) = (jump(curve(rows, kind, seed)) for kind in ("one", "two"))
    ablated = {(row["kind"], row["without"]): row for row in rows if row["seed"] == seed and "without" in row}
    single, whole = ablated["one", "nothing"]["score"], ablated["two", "nothing"]["score"]
    heads = {name: ablated["two", name]["heads"] for name in ("induction", "others")}
    share: dict[str, Any] = {name: math.nan for name in heads}
    if whole < single:
        share = {name: (ablated["two", name]["score"] - single) / (whole - single) for name in heads}
    holds = (
        two > 0.5 and one <= two / 3 and share["induction"] < 0.25 and (share["others"] > 0.5 or not heads["others"])
    )
    falls = {kind: fall(by_index(rows, kind, seed)) for kind in ("one", "two")}
    steepest = {kind: min(by_index(rows, kind, seed), key=lambda row: row["slope"]) for kind in falls}
    holds = holds and falls["two"] >= 2 * falls["one"] and falls["two"] > 0
    if not heads["others"]:  # without other heads there is nothing to ablate
        share["others"] = EMPTY
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
            "kept without induction heads": share["induction"],
            "others": heads["others"],
            "kept without others": share["others"],
            **{f"fall of the loss along a text, {kind}": value for kind, value in falls.items()},
            **{f"steepest derivative by log(index), {kind}": row["slope"] for kind, row in steepest.items()},
            **{f"at tokens, {kind}": f"{row['first']} to {row['last']}" for kind, row in steepest.items()},
            "best head": curve(rows, "two", seed)[-1]["head"],
            **({"jump if both layers see everything": far[1], "at that step": far[0]} if far[0] else {}),
        },
    )


def claim(rows: Sequence[Row]) -> Verdict:
    verdicts = {seed: of_seed(rows, seed) for seed in dict.fromkeys(row["seed"] for row in rows)}
    figures = {f"{name}, seed {seed}": value for seed, each in verdicts.items() for name, value in each.figures.items()}
    compared = [seed for seed, each in verdicts.items() if each.figures["kept without others"] != EMPTY]
    figures = {"seeds with a control": len(compared) or f"none, so this part is not checked: {EMPTY}", **figures}
    return Verdict(all(each.holds for each in verdicts.values()), figures)


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(5, 1, 20, 4)
    colors = {"one": "C0", "two": "C1", "two-far": "C2"}
    for kind, seed in dict.fromkeys((row["kind"], row["seed"]) for row in rows):
        points = curve(rows, kind, seed)
        steps, style = [row["step"] for row in points], {"color": colors[kind], "label": None if seed else kind}
        axes[0, 0].plot(steps, [row["score"] for row in points], **style)
        axes[0, 1].plot(steps, [row["head"] for row in points], **style)
        groups = by_index(rows, kind, seed)
        middle = [math.sqrt(row["first"] * row["last"]) for row in groups]
        axes[0, 3].plot(middle, [row["loss"] for row in groups], marker="o", **style)
        axes[0, 4].plot(middle, [row["slope"] for row in groups], marker="o", **style)
    axes[0, 0].axvline(jump(curve(rows, "two"))[0], color="#777777", linestyle=":")
    axes[0, 0].set(xscale="log", xlabel="step", title="in-context score (nats per token)")
    axes[0, 1].set(xscale="log", xlabel="step", title="attention of the best induction head")
    bars = [(row["kind"], row["without"], row["score"]) for row in rows if "without" in row and not row["seed"]]
    axes[0, 2].bar([f"{kind}: {name}" for kind, name, _ in bars], [value for *_, value in bars])
    axes[0, 2].set(title="score without heads (layers: heads)")
    axes[0, 2].tick_params(axis="x", labelrotation=30, labelsize=8)
    axes[0, 3].set(xscale="log", xlabel="token index", title="loss on new texts")
    axes[0, 4].set(xscale="log", xlabel="token index", title="its derivative by log(index)")
    for axis in (*axes[0, :2], *axes[0, 3:]):
        axis.legend(frameon=False)
        axis.grid(alpha=0.3)
    return figure
