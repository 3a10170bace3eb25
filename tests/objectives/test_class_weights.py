"""Weights of rare classes and several labels, against scikit-learn and torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import anyformer as af
from anyformer import families
from anyformer.data import CSV, Oversample
from anyformer.objectives.class_weights import balanced_weights
from anyformer.objectives.classify import Classify
from anyformer.objectives.images import ClassifyImage
from anyformer.objectives.metrics import LABEL_SETS
from anyformer.objectives.multi_label import MultiLabel, split_labels

LABELS = ("a", "b", "c")
CONFIG = {
    "architectures": ["BertForSequenceClassification"], "num_hidden_layers": 1, "hidden_size": 16, "vocab_size": 30,
    "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 8, "num_labels": 3,
}  # fmt: skip


def model_and_batch(objective: Classify, labels: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    model = af.build(families.find("bert").read(CONFIG), seed=0).eval()
    name = "labels" if isinstance(objective, MultiLabel) else "label"
    records = [{"input_ids": np.array([i, 5, 7]), name: np.asarray(label)} for i, label in enumerate(labels)]
    return model, objective.collate(records, 0)


def test_balanced_weights_are_those_of_sklearn() -> None:
    utils = pytest.importorskip("sklearn.utils.class_weight")
    labels = ["a"] * 50 + ["b"] * 7 + ["c"] * 3
    theirs = utils.compute_class_weight("balanced", classes=np.array(LABELS), y=labels)
    ours = balanced_weights({label: labels.count(label) for label in LABELS})
    assert [*ours.values()] == pytest.approx(theirs)
    assert balanced_weights({"a": 3, "b": 0})["b"] == 1.0


def test_the_weighted_loss_is_that_of_torch() -> None:
    objective = Classify(labels=LABELS, class_weights={"b": 3.0, "c": 0.5})
    model, batch = model_and_batch(objective, [0, 1, 1, 2])
    with torch.no_grad():
        loss = objective.losses(objective.module(model), batch)["loss"] / objective.weights(batch)["loss"]
        logits = model(input_ids=batch["input_ids"]).logits
    right = F.cross_entropy(logits, batch["labels"], weight=torch.tensor([1.0, 3.0, 0.5]))
    torch.testing.assert_close(loss, right)
    assert "class_weight" not in objective.plain.collate([{"input_ids": np.array([1]), "label": np.asarray(1)}], 0)


def test_balanced_follows_from_the_counts() -> None:
    counts = {"a": 6, "b": 2, "c": 1}
    for objective in (
        Classify(labels=LABELS, balanced=True),
        ClassifyImage(labels=LABELS, image_size=(4, 4), balanced=True),
    ):
        assert dict(objective.with_class_counts(counts).class_weights) == {"a": 0.5, "b": 1.5, "c": 3.0}


@pytest.mark.parametrize("make, why", [
    (lambda: Classify(labels=LABELS, class_weights={"d": 1.0}), "no label 'd'"),
    (lambda: Classify(labels=LABELS, class_weights={"a": -1.0}), "class_weights.a is -1.0; it must be at least 0"),
    (lambda: Classify(labels=LABELS, class_weights={"a": 1.0}, balanced=True), "class_weights or balanced, not both"),
    (lambda: Classify(balanced=True), "numbers have no classes"),
    (lambda: MultiLabel(labels=LABELS, balanced=True), "class weights apply to a single label"),
    (lambda: ClassifyImage(labels=LABELS, image_size=(4, 4), balanced=True, cut=0.5), "mixes two labels"),
], ids=range(6))  # fmt: skip
def test_weights_that_cannot_be(make: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        make()


def test_several_labels() -> None:
    objective = MultiLabel(labels=LABELS, separator="|")
    model, batch = model_and_batch(objective, [np.float32([1, 0, 1]), np.float32([0, 0, 0])])
    model.head.problem = "multi_label_classification"
    with torch.no_grad():
        loss = objective.losses(objective.module(model), batch)["loss"] / objective.weights(batch)["loss"]
        logits = model(input_ids=batch["input_ids"]).logits
    torch.testing.assert_close(loss, F.binary_cross_entropy_with_logits(logits, batch["labels"]))
    assert split_labels(" a | c|", "|") == ["a", "c"] == split_labels(["a", "c"], "|") and split_labels(None, "|") == []
    assert objective.chosen_names(np.array([True, False, True])) == ["a", "c"]


def test_scores_of_sets_of_labels() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    predicted, wanted = [["a"], ["a", "b"], [], ["c"]], [["a"], ["b"], ["a"], ["c", "a"]]
    chosen = [[[name in own for name in LABELS] for own in sets] for sets in (wanted, predicted)]
    for average in ("micro", "macro"):
        right = metrics.f1_score(*chosen, average=average)
        assert LABEL_SETS.functions[f"{average}_f1"](predicted, wanted) == pytest.approx(right)
    assert LABEL_SETS.functions["exact_match"](predicted, wanted) == 0.25
    assert LABEL_SETS.functions["micro_f1"]([[]], [[]]) == 1.0


def test_rare_classes_are_repeated(tmp_path: Any) -> None:
    (tmp_path / "x.csv").write_text("text,label\n" + "one,a\n" * 6 + "two,b\n" * 2 + "three,c\n,a\n")
    source = CSV(path=str(tmp_path / "x.csv"), required=("text", "label"))
    rows = [row.example["label"] if row.example else "problem" for row in Oversample(source=source).rows(("text",))]
    assert {label: rows.count(label) for label in (*LABELS, "problem")} == {"a": 6, "b": 6, "c": 6, "problem": 1}
    assert [row.example and row.example["label"] for row in Oversample(source=source, most=2).rows(("text",))].count(
        "c"
    ) == 2
