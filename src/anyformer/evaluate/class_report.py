"""Scores of each class, and which classes are confused with which."""

from __future__ import annotations

import io
import warnings
from typing import Any, NamedTuple

import numpy as np

from anyformer.objectives.metrics import entity_report
from anyformer.objectives.objective import Objective, Predictions

DRAWN = 40  # the largest number of classes in a picture


class ClassScores(NamedTuple):
    name: str
    precision: float  # how many of its predictions are right
    recall: float  # how many of its examples are found
    f1: float
    examples: int


class Confusion(NamedTuple):
    """How often an example of a class (row) is predicted to be of a class (column)."""

    labels: tuple[str, ...]
    counts: np.ndarray  # (C, C)

    def scores(self) -> list[ClassScores]:
        """Return the scores of each class; a score without examples or predictions is 0."""
        right, wanted, predicted = self.counts.diagonal(), self.counts.sum(1), self.counts.sum(0)
        precision, recall = right / np.maximum(predicted, 1), right / np.maximum(wanted, 1)
        f1 = 2 * right / np.maximum(wanted + predicted, 1)
        each = zip(self.labels, precision.tolist(), recall.tolist(), f1.tolist(), wanted.tolist())
        return [ClassScores(*scores) for scores in each]

    def commonest(self) -> list[tuple[str, str, int]]:
        """Return (class, predicted class, number of mistakes), the most common first."""
        wrong = self.counts - np.diag(self.counts.diagonal())
        order = np.argsort(-wrong, axis=None, kind="stable")
        places = (np.unravel_index(i, wrong.shape) for i in order[: np.count_nonzero(wrong)])
        return [(self.labels[row], self.labels[column], int(wrong[row, column])) for row, column in places]


def confusion(task: Objective, answered: Predictions) -> Confusion | None:
    """Count the predictions of each class, for labels and for tags; None for other tasks."""
    kind = task.metrics.kind if task.metrics else ""
    predicted, wanted = answered.predicted, answered.wanted
    if kind == "tags":
        index = {label: i for i, label in enumerate(task.labels)}
        predicted, wanted = ([index[tag] for row in rows for tag in row] for rows in (predicted, wanted))
    elif kind != "labels" or not task.labels:
        return None
    counts = np.zeros((len(task.labels),) * 2, np.int64)
    np.add.at(counts, (wanted, predicted), 1)
    return Confusion(task.labels, counts)


def class_scores(task: Objective, answered: Predictions, counted: Confusion | None) -> list[ClassScores]:
    """Return the scores of each class; for tags of entities ("B-place"), the scores of whole entities. Without classes
    there are none."""
    if task.metrics is not None and task.metrics.kind == "sets of labels":
        return [set_scores(label, answered) for label in task.labels]
    if counted is None:
        return []
    if not any(label.startswith("B-") for label in task.labels):
        return counted.scores()
    report = entity_report(answered.predicted, answered.wanted)
    return [
        ClassScores(name, each["precision"], each["recall"], each["f1-score"], int(each["support"]))
        for name, each in report.items()
        if not name.endswith(" avg")
    ]


def set_scores(label: str, answered: Predictions) -> ClassScores:
    """Return the scores of one label if an example has any number of labels."""
    found, wanted = (np.array([label in names for names in sets]) for sets in (answered.predicted, answered.wanted))
    counts = np.zeros((2, 2), np.int64)
    np.add.at(counts, (wanted.astype(int), found.astype(int)), 1)
    return Confusion(("", label), counts).scores()[1]


def picture(counted: Confusion) -> bytes | None:
    """Draw the confusions as a PNG, with rows divided by their sum; None without matplotlib or with too many
    classes."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    number = len(counted.labels)
    if number > DRAWN:
        return None
    size = 2.5 + 0.35 * number
    figure = Figure(figsize=(size + 1, size), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    shares = counted.counts / np.maximum(counted.counts.sum(1, keepdims=True), 1)
    drawn = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(drawn, label="share of the class's examples", shrink=0.8)
    names = [shorten(label) for label in counted.labels]
    axes.set_xticks(range(number), names, rotation=60, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(number), names)
    axes.set(xlabel="predicted", ylabel="right class")
    for row, column in np.argwhere(counted.counts) if number <= 20 else ():
        colour = "white" if shares[row, column] > 0.6 else "black"
        axes.text(column, row, str(counted.counts[row, column]), ha="center", va="center", color=colour, fontsize=8)
    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a letter that no font has becomes a box; the tables have the names
        figure.savefig(out, format="png")
    return out.getvalue()


def shorten(text: Any, most: int = 24) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def matrix_rows(counted: Confusion) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the header and the rows of a table of counts."""
    names = [shorten(label, 12) for label in counted.labels]
    rows = [(name, *(str(count) for count in counts)) for name, counts in zip(names, counted.counts.tolist())]
    return ("right \\ predicted", *names), rows
