"""Objectives: pretraining by span corruption is the best start for a new task, as T5 found.

The same encoder-decoder is pretrained on the same text for the same number of steps by one of five objectives, or not
at all. Then it is fine-tuned on the task of `lab/function_task.py`: read the name and the body of a Python function,
write its parameters. The objectives are from [Raffel et al. 2020, tables 4 and 5]: span corruption; masked tokens
(BERT-style), where the decoder writes the whole text; language modelling, where the encoder reads nothing; prefix
language modelling, where the encoder reads the first part of a text; and deshuffling. As in the paper, steps and texts
are equal, so objectives with short targets are cheaper. Measured is the loss of the answers of held-out functions. The
share of exact answers is reported.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from anyformer.data import Data, Held, PythonDocs, Source, TextFiles
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.training import training_run
from anyformer.lab.trials import Place, Row, TrialGrid, Values
from anyformer.look import figures
from anyformer.objectives.batches import Record
from anyformer.objectives.denoise import Denoise, Noise, TokenDeletion, TokenMasking
from anyformer.objectives.examples import add_ends
from anyformer.objectives.objective import Objective
from anyformer.objectives.span_corruption import SpanCorruption
from anyformer.objectives.translate import Translate
from anyformer.objectives.vocabulary_info import VocabularyInfo
from anyformer.specs.field_types import Fraction
from anyformer.train.run import Pretrained
from anyformer_course.lab.function_task import ANSWER, functions, share_right, vocabulary
from anyformer_course.lab.narang_changes import TableSize, vanilla
from anyformer_course.lab.runs import mean

CLAIM = (
    "in the mean over seeds, the task's loss after span corruption is lower than after language modelling, prefix "
    "language modelling, deshuffling and no pretraining, and not above the loss after masked tokens by more than the "
    "larger standard deviation over seeds of the two"
)
FORMS = {
    "tiny": Form(
        0.2, 0.1,
        {"width": 24, "depth": 1, "tokens": 320, "steps": 2, "tuning": 2, "batch": 2, "length": 32, "library": False},
    ),
    "small": Form(
        3, 1,
        {"width": 48, "depth": 2, "tokens": 1024, "steps": 150, "tuning": 75, "batch": 8, "length": 64,
         "library": False, "seeds": 2},
    ),
    "full": Form(
        240, 3,
        {"width": 192, "depth": 4, "tokens": 4096, "steps": 1500, "tuning": 800, "batch": 64, "length": 128,
         "library": True, "seeds": 3},
    ),
}  # fmt: skip


SOLVED = 0.1  # after the best objective, a trained model has at least this share of exact answers


class ShuffledTokens(Noise):
    """Permute a share `rate` of the tokens [Liu et al. 2019a, as in Raffel et al. 2020]."""

    rate: Fraction = 1.0

    def damage(self, ids: np.ndarray, random: np.random.Generator, known: VocabularyInfo) -> np.ndarray:
        moved = np.sort(self.some(len(ids), random))
        ids = ids.copy()
        ids[moved] = ids[random.permutation(moved)]
        return ids


class PrefixText(Denoise):
    """Read the first part of a text and write the rest; the cut is drawn evenly."""

    noises: tuple[Noise, ...] = (ShuffledTokens(rate=0.0),)  # not used

    def vary(self, record: Record, random: np.random.Generator, *partners: Record) -> Record:
        ids, end = record["input_ids"], self.words.end
        cut = int(random.integers(1, max(len(ids), 2)))
        return {"input_ids": add_ends(None, ids[:cut], end), "labels": add_ends(None, ids[cut:], end)}


OBJECTIVES: dict[str, Objective | None] = {
    "span corruption": SpanCorruption(),
    "masked tokens": Denoise(noises=(TokenMasking(),)),
    "language modelling": Denoise(noises=(TokenDeletion(rate=1.0),)),
    "prefix language modelling": PrefixText(),
    "deshuffling": Denoise(noises=(ShuffledTokens(),)),
    "no pretraining": None,
}
WORSE = [name for name in OBJECTIVES if name not in ("span corruption", "masked tokens")]
trials = TrialGrid("{objective}-{seed}", objective=OBJECTIVES, seed="seeds", data=True)


def work(values: Values, place: Place) -> list[Row]:
    """Pretrain and fine-tune one model."""
    width, objective = values["width"], OBJECTIVES[values["objective"]]
    size = TableSize(
        width=width, inner=4 * width, heads=6, head_width=width // 6, depth=values["depth"],
        vocabulary=values["tokens"], length=values["length"],
    )  # fmt: skip
    source = texts(values["data"], values["library"])
    data = Data(train=Held(source=source), valid=Held(source=source, out=True))
    same: dict[str, Any] = {"batch": values["batch"], "length": values["length"], "seed": values["seed"]}
    stored = vocabulary(data, values["tokens"], place)
    run = training_run(
        "pretraining", vanilla(size), data, place.device, steps=values["steps"], lr=2e-3, vocabulary=stored,
        objective=objective or SpanCorruption(), **same,
    )  # fmt: skip
    start: Any = run.model
    row: Row = {}
    if objective is not None:
        trainer = place.train(run, name="pretrained")
        start, row = Pretrained(path=str(trainer.folder)), {"pretraining loss": trainer.scores["loss"]}
    questions = functions(texts(values["data"], True), values["tuning"] * values["batch"], 8 * values["batch"], place)
    tuning = training_run(
        "task", start, questions, place.device, steps=values["tuning"], lr=1e-3,
        objective=Translate(smoothing=0.0, length=values["length"], target_length=ANSWER), **same,
    ).replace(vocabulary=None if objective is not None else stored)  # fmt: skip
    trainer = place.train(tuning, name="task")
    return [{**row, "loss": trainer.scores["loss"], "right": share_right(trainer)}]


def texts(path: str | None, library: bool) -> Source:
    """Return text files, the source of Python's library, or its documentation if not `library`."""
    if path is not None:
        return TextFiles(path=path, unit="paragraph")
    return PythonDocs(documentation=not library, library=library)


# -- results ----------------------------------------------------------------------------------------------------------


def by_objective(rows: Sequence[Row], field: str) -> dict[str, list[float]]:
    """Return objective -> value of every seed."""
    return {name: [row[field] for row in rows if row["objective"] == name] for name in OBJECTIVES}


def spread(values: Sequence[float]) -> float:
    """Return the standard deviation over seeds, 0 for one seed."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def claim(rows: Sequence[Row]) -> Verdict:
    losses, right = by_objective(rows, "loss"), by_objective(rows, "right")
    span, masked = losses["span corruption"], losses["masked tokens"]
    best = all(mean(span) < mean(losses[name]) for name in WORSE)
    close = mean(span) <= mean(masked) + max(spread(span), spread(masked))
    return Verdict(
        best and close,
        {
            **{f"task loss, {name}": mean(each) for name, each in losses.items()},
            **{f"deviation over seeds, {name}": spread(each) for name, each in losses.items()},
            **{f"exact answers, {name}": mean(each) for name, each in right.items()},
        },
        max(mean(each) for each in right.values()) >= SOLVED,
    )


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(2, 1, 12, 4)
    for axis, field, title in zip(axes[0], ("loss", "right"), ("loss of the task (nats)", "exact answers")):
        for number, (name, values) in enumerate(by_objective(rows, field).items()):
            axis.plot([mean(values)], [name], "|", markersize=20, color=f"C{number}")
            axis.plot(values, [name] * len(values), "o", color=f"C{number}")
        axis.set_title(f"{title}, one point per seed")
        axis.invert_yaxis()
        axis.grid(alpha=0.3)
    return figure
