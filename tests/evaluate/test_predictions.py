"""Saved predictions are read back unchanged from every kind of table; scores of labels against scikit-learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from anyformer.evaluate.class_report import class_scores
from anyformer.evaluate.predictions import mistakes_title, name_label, read_predictions, write_rows
from anyformer.objectives.classify import Classify
from anyformer.objectives.dialogue import Dialogue
from anyformer.objectives.multi_label import MultiLabel
from anyformer.objectives.objective import Predictions

NAMES = ('he said "no"', "karte, verloren", "日本", "10", "[x]")
CASES: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "labels": (Classify(labels=NAMES), [0, 1, 2, 3, 4], [4, 3, 2, 1, 0]),
    "numbers": (Classify(), [0.25, -1.0], [1.5, 2.0]),
    "sets": (MultiLabel(labels=NAMES), [["10", "[x]"], []], [[], ["日本"]]),
    "texts": (Dialogue(), ["[INST] hi", '["a"]', "", "5"], ["[INST] hi", '["a"]', "[", "5"]),
}  # fmt: skip


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl"])
@pytest.mark.parametrize("name", CASES)
def test_saved_predictions_are_read_back(name: str, suffix: str, tmp_path: Path) -> None:
    task, predicted, wanted = CASES[name]
    texts = ['a "quoted"\ttext', "two\nlines, and a comma", "plain", "", "x"]
    rows = [
        {"row": f"x.csv:{i}", "text": text, "wanted": name_label(task, right), "predicted": name_label(task, guess)}
        for i, (text, right, guess) in enumerate(zip(texts, wanted, predicted))
    ]
    write_rows(tmp_path / f"saved.{suffix}", rows)
    found = read_predictions(tmp_path / f"saved.{suffix}", task)
    assert found.predicted == predicted
    if task.metrics is not None and task.metrics.kind == "texts":  # a list with one reference means the same
        found = found._replace(wanted=[right[0] if isinstance(right, list) else right for right in found.wanted])
    assert found.wanted == wanted


def test_scores_of_several_labels_are_those_of_sklearn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    labels = ("a", "b", "c", "never")
    predicted, wanted = [["a"], ["a", "b"], [], ["c"]], [["a"], ["b"], ["a"], ["c", "a"]]
    chosen = [[[name in own for name in labels] for own in sets] for sets in (wanted, predicted)]
    right = metrics.precision_recall_fscore_support(*chosen, zero_division=0)
    found = class_scores(MultiLabel(labels=labels), Predictions(predicted, wanted), None)
    assert [each.name for each in found] == [*labels]
    for i, column in enumerate(right, start=1):
        assert [each[i] for each in found] == pytest.approx(list(column))


def test_the_heading_says_how_mistakes_are_ordered() -> None:
    assert mistakes_title([{"wanted": 1.5, "predicted": 2.0}]) == "the largest errors"
    assert mistakes_title([{"wanted": "a", "predicted": "b", "score": 0.5}]) == "1 mistakes, the worst first"
    assert mistakes_title([{"wanted": "a", "predicted": "b"}]) == "1 mistakes"
