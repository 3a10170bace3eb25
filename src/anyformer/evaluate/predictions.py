"""Predictions as a table with one row per example: where it is in the data, its inputs, the right answer, the
prediction and its score. Mistakes are listed with the most certain first."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anyformer.data.table import CSV, JSONLines
from anyformer.evaluate import Evaluation
from anyformer.objectives.objective import Objective, Predictions

TABLES = {".csv": ",", ".tsv": "\t"}  # suffix -> delimiter


def prediction_rows(evaluation: Evaluation) -> list[dict[str, Any]]:
    """Return the predictions of the last evaluation, one row per example. "right" is missing for numbers, "score" (the
    probability) if the predictions are not labels."""
    answered, task = evaluation.answered, evaluation.task
    if answered is None:
        raise ValueError("there are no predictions to save: only the loss was computed; name a metric")
    examples, _ = evaluation.examples
    rows = []
    for i, (example, predicted, wanted) in enumerate(zip(examples, answered.predicted, answered.wanted, strict=True)):
        row = {"row": evaluation.places[i], **task.inputs_of(example)}
        row |= {"wanted": name_label(task, wanted), "predicted": name_label(task, predicted)}
        if task.metrics is not None and task.metrics.right is not None:
            row["right"] = bool(task.metrics.right(predicted, wanted))
        if answered.scores is not None:
            row["score"] = round(answered.scores[i], 4)
        rows.append(row)
    return rows


def name_label(task: Objective, value: Any) -> Any:
    """Return the name of a label's index; other values unchanged."""
    return task.labels[value] if isinstance(value, int) and task.labels else value


def mistakes_title(wrong: Sequence[dict[str, Any]]) -> str:
    """Return the heading of `worst_mistakes`, with their order."""
    if wrong and isinstance(wrong[0]["wanted"], float):
        return "the largest errors"
    return f"{len(wrong):,} mistakes" + (", the worst first" if wrong and "score" in wrong[0] else "")


def worst_mistakes(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with wrong predictions, the most certain first. Numbers are ordered by their error."""
    if rows and "right" not in rows[0]:
        return sorted(rows, key=lambda row: -abs(row["predicted"] - row["wanted"]))
    wrong = ({name: value for name, value in row.items() if name != "right"} for row in rows if not row["right"])
    return sorted(wrong, key=lambda row: -row.get("score", 0.0))


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write a table: .csv, .tsv, or JSON lines for any other suffix."""
    with path.open("w", encoding="utf-8", newline="") as file:
        if (delimiter := TABLES.get(path.suffix.lower())) is None:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            return
        writer = csv.DictWriter(file, list(rows[0]) if rows else (), delimiter=delimiter, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: as_cell(name, value) for name, value in row.items()} for row in rows)


def as_cell(name: str, value: Any) -> Any:
    """Return a value as a cell: lists as JSON. A right text that looks like a list becomes a list of one reference."""
    value = [value] if name == "wanted" and str(value).startswith("[") and isinstance(value, str) else value
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | tuple) else value


def read_predictions(path: Path, task: Objective) -> Predictions:
    """Read the predictions in a file that `write_rows` wrote."""
    answered, delimiter = Predictions([], []), TABLES.get(path.suffix.lower())
    source = JSONLines(path=str(path)) if delimiter is None else CSV(path=str(path), delimiter=delimiter)
    for row in source.raw():
        try:
            for name, values in (("predicted", answered.predicted), ("wanted", answered.wanted)):
                value = (row.example or {})[name]
                values.append(stored_value(task, value if delimiter is None else cell_value(task, name, value)))
        except (ValueError, KeyError):
            raise ValueError(f"{row.place}: not a prediction as written by --save") from None
    if not answered.predicted:
        raise ValueError(f"{path}: no predictions")
    return answered


def stored_value(task: Objective, value: Any) -> Any:
    """Return a value of a file as the task predicts it: a label's name becomes its index."""
    if task.metrics is None or task.metrics.kind != "labels" or not isinstance(value, str):
        return value
    return task.labels.index(value) if value in task.labels else json.loads(value)


def cell_value(task: Objective, name: str, cell: str) -> Any:
    """Return the value that `as_cell` wrote. A generated text is never a list, even if it looks like one."""
    kind = task.metrics.kind if task.metrics else ""
    if kind == "labels":
        return json.loads(cell)[0] if cell.startswith('["') and cell not in task.labels else cell
    is_text = kind in ("texts", "transcripts", "answers") and name == "predicted"
    is_value = kind in ("numbers", "tags", "sets of labels") or cell.startswith("[")
    return json.loads(cell) if is_value and not is_text else cell
