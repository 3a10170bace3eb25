"""Induction heads: in-context learning improves suddenly when heads form that attend to what followed an earlier copy.

Models with only attention, of one to four layers with eight heads each, learn texts that repeat a cycle of letters.
Each text has its own cycle and sometimes jumps to another position in it. Every layer sees all earlier tokens; the
attention distinguishes only the distances 0, 1 and more. The in-context score is the loss of the second half of a
repeated text minus the loss of its first half. As in larger models [Olsson et al. 2022], with two or more layers it
falls suddenly, when heads appear that attend to the token after an earlier copy; one layer learns only which letters
occur.

After training, heads are removed: the heads that attend most to the token after an earlier copy, one after another, and
as a control as many of the other heads, drawn at random several times. Loss by token index shows the same on new texts:
how far the loss falls from the first tokens of a text to the last, and its derivative with respect to the logarithm of
the index.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyformer.data import Data
from anyformer.evaluate.by_position import losses_by_position
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.training import training_run
from anyformer.lab.trials import Place, Row, TrialGrid, Values
from anyformer.look import figures
from anyformer.look.scores import head_scores
from anyformer.look.trace import trace
from anyformer.models import Model, TransformerModule
from anyformer.parts.init import Normal
from anyformer.parts.position.bias import RelativeVectors
from anyformer.specs.codec import override
from anyformer.stacks.block import Block
from anyformer.train.trainer import Callback, StepResult, Trainer
from anyformer_course.lab.runs import checkpoints, each_loss, mean, writer

CLAIM = (
    "with every seed and every depth of two or more, the in-context score has a steep jump, at least three times that "
    "of one layer, and on new texts the loss falls at least twice as far from tokens 3 and 4 to the last tokens; in "
    "the mean over seeds, without the quarter of the heads that attend most to what followed, a model keeps at most "
    "half of its gain over one layer, and at least 25 points less than without as many random other heads"
)
FORMS = {
    "tiny": Form(0.1, 0.1, {
        "depths": [1, 2], "steps": 6, "width": 16, "points": 3, "batch": 4, "texts": 100, "seeds": 1
    }),
    "full": Form(120, 3, {
        "depths": [1, 2, 3, 4], "steps": 4000, "width": 128, "points": 100, "batch": 256, "texts": 20000, "seeds": 5
    }),
}  # fmt: skip
LETTERS = [chr(i) for i in range(65, 97)]
LENGTH, HALF, HEADS = 64, 20, 8
JUDGED, DRAWS = 0.25, 12  # share of the heads whose removal is judged; random removals of each number of heads
CIRCLE, ELSEWHERE = (6, 20), 0.05  # minimum and maximum letters of a cycle; how often the text jumps
MIXED = "decoder.layers.*.attention.op.mixed"


trials = TrialGrid("depth-{depth}-seed-{seed}", seed="seeds", depth="depths")


def work(values: Values, place: Place) -> list[Row]:
    steps = values["steps"]
    model = model_spec(values["depth"], values["width"])
    data = Data(train=place.texts("rounds", lambda: rounds(values["texts"])))
    run = training_run(
        "induction",
        model,
        data,
        place.device,
        steps=steps,
        batch=values["batch"],
        length=LENGTH,
        lr=0.2 / values["width"],
        seed=values["seed"],
    )
    watch = Watch(checkpoints(steps, values["points"]))
    trainer = place.train(run, watch)
    return [*watch.rows, *ablations(trainer), *position_losses(trainer)]


def model_spec(depth: int, width: int) -> Model:
    """Return a model with only attention. A head can find the previous token by its distance; the token after an
    earlier copy it must find by content."""
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
    return override(whole, {"decoder.layers": Block(attention=whole.decoder.layers.steps["attention"])})


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
    """Return the score without the heads that attend most to what followed an earlier copy, and without as many of the
    other heads, chosen at random, for several numbers of heads."""
    ids, model, random = repeat_letters(trainer), trainer.model, np.random.default_rng(0)
    with trainer.eval_mode():
        run = trace(model, input_ids=ids)
        scores = head_scores(run)
        every = [(layer, head) for layer, each in scores.kinds["induction"].items() for head in range(len(each))]
        ranked = [(layer, head) for layer, head, _ in scores.best("induction", len(every))]
        rows: list[Row] = [{"without": "nothing", "heads": 0, "of": len(every), "score": score(run.output.logits, ids)}]
        for number in removed_numbers(len(every)):
            chosen = [("induction", ranked[:number])]
            chosen += [("random", draw_others(ranked, number, random)) for _ in range(DRAWS)]
            rows += [
                {"without": name, "heads": number, "of": len(every), "score": score(remove(model, heads, ids), ids)}
                for name, heads in chosen
            ]
    return rows


def removed_numbers(every: int) -> list[int]:
    """Return the numbers of heads that are removed: 1, 2, 4, ... up to half of all, and the judged number."""
    return sorted({*(2**i for i in range(every.bit_length()) if 2**i <= every // 2), round(JUDGED * every)})


def draw_others(ranked: Sequence[tuple[str, int]], number: int, random: np.random.Generator) -> list[tuple[str, int]]:
    """Return `number` random heads that are not among the first `number`."""
    return [ranked[number + i] for i in random.permutation(len(ranked) - number)[:number]]


def position_losses(trainer: Trainer, number: int = 256) -> list[Row]:
    """Return the loss by token index on new texts."""
    ids = torch.tensor([trainer.tokenizer.encode(text) for text in rounds(number, LENGTH, seed=1)])
    with trainer.eval_mode():
        return [dataclasses.asdict(group) for group in losses_by_position(trainer.model, [{"input_ids": ids}])]


def remove(model: TransformerModule, heads: Sequence[tuple[str, int]], ids: Tensor) -> Tensor:
    """Return the logits with the outputs of these heads set to 0."""

    def silence(mixed: Tensor, address: str) -> Tensor:
        outputs = mixed.clone().unflatten(-1, (HEADS, -1))
        for layer, head in heads:
            if address.startswith(f"{layer}."):
                outputs[..., head, :] = 0
        return outputs.flatten(-2)

    return trace(model, change={MIXED: silence}, input_ids=ids).output.logits


# -- results ----------------------------------------------------------------------------------------------------------


def seeds_of(rows: Sequence[Row]) -> list[int]:
    return list(dict.fromkeys(row["seed"] for row in rows))


def depths_of(rows: Sequence[Row]) -> list[int]:
    return sorted({row["depth"] for row in rows})


def curve(rows: Sequence[Row], depth: int, seed: int) -> list[Row]:
    return [row for row in rows if (row["depth"], row["seed"]) == (depth, seed) and "step" in row]


def jump(points: Sequence[Row]) -> tuple[int, float]:
    """Return the step at which the score falls fastest, and its fall per doubling of the steps."""
    slopes = [
        (after["step"], (before["score"] - after["score"]) / math.log2(after["step"] / before["step"]))
        for before, after in zip(points, points[2:])
    ]
    return max(slopes, key=lambda slope: slope[1], default=(0, 0.0))


def by_index(rows: Sequence[Row], depth: int, seed: int) -> list[Row]:
    return [row for row in rows if (row["depth"], row["seed"]) == (depth, seed) and "slope" in row]


def fall(groups: Sequence[Row]) -> float:
    """Return the fall of the loss from tokens 3 and 4 to the last group."""
    return next(row["loss"] for row in groups if row["first"] == 3) - groups[-1]["loss"]


def remaining_gain(rows: Sequence[Row], depth: int, seed: int, without: str) -> dict[int, float]:
    """Return number of removed heads -> share of the gain over one layer that remains, mean over draws. It is NaN if
    there is no gain."""
    own = [row for row in rows if (row["depth"], row["seed"]) == (depth, seed) and "without" in row]
    (single,) = (row["score"] for row in rows
                 if (row["depth"], row["seed"], row.get("without")) == (1, seed, "nothing"))  # fmt: skip
    whole = next(row["score"] for row in own if row["without"] == "nothing")
    numbers = dict.fromkeys(row["heads"] for row in own if row["without"] == without)
    return {
        number: mean([(row["score"] - single) / (whole - single) for row in own
                      if (row["without"], row["heads"]) == (without, number)]) if whole < single else math.nan
        for number in numbers
    }  # fmt: skip


def judged_share(rows: Sequence[Row], depth: int, without: str) -> list[float]:
    """Return the share of the gain that remains without the judged number of heads, for every seed."""
    heads = round(JUDGED * next(row["of"] for row in rows if row["depth"] == depth and "of" in row))
    return [remaining_gain(rows, depth, seed, without)[heads] for seed in seeds_of(rows)]


def claim(rows: Sequence[Row]) -> Verdict:
    seeds, (one, *deeper) = seeds_of(rows), depths_of(rows)
    jumps = {(depth, seed): jump(curve(rows, depth, seed)) for depth in (one, *deeper) for seed in seeds}
    falls = {(depth, seed): fall(by_index(rows, depth, seed)) for depth in (one, *deeper) for seed in seeds}
    holds, results = True, dict[str, Any]()
    for depth in (one, *deeper):
        heights = [jumps[depth, seed][1] for seed in seeds]
        results[f"jump by seed, {depth} layers"] = ", ".join(f"{each:.2f}" for each in heights)
        results[f"at steps, {depth} layers"] = ", ".join(str(jumps[depth, seed][0]) for seed in seeds)
        results[f"fall of the loss along a text, {depth} layers"] = mean([falls[depth, seed] for seed in seeds])
    for depth in deeper:
        induction, random = (mean(judged_share(rows, depth, name)) for name in ("induction", "random"))
        results[f"kept without a quarter of the heads, the best induction heads, {depth} layers"] = induction
        results[f"kept without a quarter of the heads, random others, {depth} layers"] = random
        sudden = all(jumps[depth, seed][1] > max(0.5, 3 * jumps[one, seed][1]) for seed in seeds)
        deep = all(falls[depth, seed] >= 2 * falls[one, seed] and falls[depth, seed] > 0 for seed in seeds)
        results[f"seeds with a jump, {depth} layers"] = sum(
            jumps[depth, seed][1] > max(0.5, 3 * jumps[one, seed][1]) for seed in seeds
        )
        holds = holds and sudden and deep and induction <= 0.5 and random - induction >= 0.25
    return Verdict(holds, results)


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(5, 1, 20, 4)
    for depth, seed in dict.fromkeys((row["depth"], row["seed"]) for row in rows):
        points = curve(rows, depth, seed)
        steps = [row["step"] for row in points]
        style: dict[str, Any] = {"color": f"C{depth - 1}", "label": None if seed else f"{depth} layers"}
        axes[0, 0].plot(steps, [row["score"] for row in points], **style)
        axes[0, 1].plot(steps, [row["head"] for row in points], **style)
        groups = by_index(rows, depth, seed)
        middle = [math.sqrt(row["first"] * row["last"]) for row in groups]
        axes[0, 3].plot(middle, [row["loss"] for row in groups], marker="o", **style)
        axes[0, 4].plot(middle, [row["slope"] for row in groups], marker="o", **style)
    for depth in depths_of(rows)[1:]:
        for name, line in (("induction", "-"), ("random", ":")):
            each = [remaining_gain(rows, depth, seed, name) for seed in seeds_of(rows)]
            shares = [(number, mean([one[number] for one in each])) for number in each[0]]
            axes[0, 2].plot(*zip(*shares), line, marker="o", color=f"C{depth - 1}", label=f"{depth} layers, {name}")
    axes[0, 0].set(xscale="log", xlabel="step", title="in-context score (nats per token)")
    axes[0, 1].set(xscale="log", xlabel="step", title="attention of the best induction head")
    axes[0, 2].set(xscale="log", xlabel="removed heads", title="share of the gain over one layer that remains")
    axes[0, 3].set(xscale="log", xlabel="token index", title="loss on new texts")
    axes[0, 4].set(xscale="log", xlabel="token index", title="its derivative by log(index)")
    for axis in axes[0]:
        axis.legend(frameon=False, fontsize=8)
        axis.grid(alpha=0.3)
    return figure
