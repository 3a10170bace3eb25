"""Speech from few labels: after pretraining on recordings without labels, wav2vec 2.0 needs few labels.

A small wav2vec 2.0 is pretrained on strings of spoken digits without text, then fine-tuned with CTC on a few labelled
recordings; the same model is trained from scratch on these labels for the same number of steps [Baevski et al. 2020,
table 1]. The digits are synthesized. The result is the share of new recordings transcribed correctly; chance is one in
ten.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from anyformer import families
from anyformer.data import Data, Held
from anyformer.evaluate import Evaluation
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.trials import Place, Row, TrialGrid, Values
from anyformer.look import figures
from anyformer.objectives.objective import Predictor
from anyformer.recipes.digits_wav2vec import CONFIG
from anyformer.recipes.digits_wav2vec import run as digits
from anyformer.recipes.shared.spoken_digits import HELD, recordings, strings
from anyformer.specs.codec import override
from anyformer.train.run import Pretrained, Run
from anyformer.train.trainer import Trainer
from anyformer_course.data.speech import write_digits
from anyformer_course.lab.runs import mean

CLAIM = (
    "with every seed and the fewest labels, more new recordings are transcribed correctly after pretraining without "
    "labels than from scratch"
)
FORMS = {
    "tiny": Form(0.3, 0.1, {"width": 16, "depth": 1, "steps": 2, "tuning": 2, "takes": 10, "one_in": [3]}),
    "full": Form(
        300, 20, {"width": 192, "depth": 6, "steps": 5000, "tuning": 1500, "takes": 50, "one_in": [40, 10], "seeds": 3}
    ),
}
CHANCE = 0.1  # ten digits
KINDS = ("pretrained", "scratch")
trials = TrialGrid("seed-{seed}", seed="seeds")  # one recording in `one_in` has a label


def model_spec(architecture: str, width: int, depth: int) -> Any:
    half = max(width // 2, 16)
    shape = {"hidden_size": width, "num_hidden_layers": depth, "intermediate_size": 4 * width, "conv_dim": [half] * 5}
    codes = {"codevector_dim": half, "proj_codevector_dim": half, "num_negatives": 20}
    return families.find("wav2vec2").read({**CONFIG, **shape, **codes, "architectures": [architecture]})


def shorten(run: Run, steps: int, seed: int, **changes: Any) -> Run:
    """Return a recipe with this number of steps that keeps only its last checkpoint."""
    same = {"steps": steps, "seed": seed, "schedule.warmup": max(steps // 10, 1), "batch.examples": 32}
    kept = {"evaluate.every": steps, "evaluate.metrics": (), "evaluate.batches": 2, "keep.every": steps}
    return override(run, {**same, **kept, "keep.last": 1, **changes})


def work(values: Values, place: Place) -> list[Row]:
    write = partial(write_digits, seed=0, progress=lambda done, total: None, takes=values["takes"])
    data, seed = place.data("spoken_digits", write), values["seed"]
    known, watched, new = recordings(data, least=HELD), recordings(data, 5, HELD - 1), recordings(data, most=4)
    spec = partial(model_spec, width=values["width"], depth=values["depth"])
    joined = strings(known, 2000).replace(least=2, most=3)
    sound = Data(train=joined, valid=joined.replace(source=watched, count=64))
    changes = {"model": spec("Wav2Vec2ForPreTraining"), "objective.negatives": 20, "objective.span": 5, "data": sound}
    place.train(shorten(digits(data), values["steps"], seed, **changes), name="pretrained")
    rows: list[Row] = []
    for one_in in values["one_in"]:
        labelled = Held(source=known, one_in=one_in, out=True, stratify="label")
        for kind in KINDS:
            first = Pretrained(path=str(place.folder / "pretrained"), architecture="Wav2Vec2ForCTC")
            run = shorten(
                digits(data, "digits-wav2vec-tenth" if kind == "pretrained" else "digits-scratch-tenth"),
                values["tuning"],
                seed,
                model=first if kind == "pretrained" else spec("Wav2Vec2ForCTC"),
                data=Data(train=labelled, valid=watched),
            )
            trainer = place.train(run, name=f"{kind}-{one_in}")
            labels = sum(row.example is not None for row in labelled.rows(("text",)))
            rows.append({"kind": kind, "labels": labels, "right": share_right(trainer, new)})
    return rows


def share_right(trainer: Trainer, source: Any) -> float:
    """Return the share of recordings that are transcribed correctly."""
    evaluation = Evaluation(source, trainer.objective, trainer.tokenizer, ())
    with trainer.eval_mode():
        answers = evaluation.ask(Predictor(trainer.model, trainer.tokenizer, trainer.tokenizer.filler, size=64))
    return mean([float(text == label) for text, label in zip(answers.predicted, answers.wanted, strict=True)])


# -- results ----------------------------------------------------------------------------------------------------------


def shares(rows: Sequence[Row], kind: str, labels: int) -> list[float]:
    """Return the share per seed."""
    return [row["right"] for row in rows if (row["kind"], row["labels"]) == (kind, labels)]


def numbers(rows: Sequence[Row]) -> list[int]:
    return sorted({row["labels"] for row in rows})


def claim(rows: Sequence[Row]) -> Verdict:
    right = {(kind, labels): shares(rows, kind, labels) for labels in numbers(rows) for kind in KINDS}
    few = numbers(rows)[0]
    gains = [after - before for after, before in zip(right["pretrained", few], right["scratch", few], strict=True)]
    return Verdict(
        min(gains) > 0,
        {
            **{
                f"correct, {kind}, {n} labels": ", ".join(f"{v:.3f}" for v in each) for (kind, n), each in right.items()
            },
            "smallest gain of a seed": min(gains),
        },
        max(mean(each) for each in right.values()) >= 2 * CHANCE,
    )


def plot(rows: Sequence[Row]) -> Any:
    few, most = numbers(rows)[0], numbers(rows)[-1]
    figure, axes = figures.new(2, 1, 9, 4, sharey=True)
    for axis, labels in zip(axes[0], (few, most), strict=True):
        for x, kind in enumerate(KINDS):
            right = shares(rows, kind, labels)
            axis.bar(x, mean(right), color="#cccccc")
            axis.plot([x] * len(right), right, "o", color="C0")
        axis.axhline(CHANCE, color="#777777", linestyle=":")
        axis.set_xticks(range(len(KINDS)), KINDS)
        axis.set(title=f"new recordings transcribed, {labels} labels", ylim=(0, 1.05))
        axis.grid(alpha=0.3)
    return figure
