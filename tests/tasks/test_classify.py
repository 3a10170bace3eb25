"""Labels for texts and pairs, compared with transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import anyformer as af

Folders = Callable[..., Path]
NAMES = {"id2label": {0: "bad", 1: "so so", 2: "good"}, "label2id": {"bad": 0, "so so": 1, "good": 2}}
TEXTS = ["The quick brown fox", "It's a naïve café, isn't it? 42 dogs", "a"]
PAIRS = [{"text": "The fox", "pair": "jumps over the lazy dog."}, {"text": "Don't say", "pair": "a"}]


def same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    assert [one["label"] for one in ours] == [one["label"] for one in theirs]
    assert [one["score"] for one in ours] == pytest.approx([one["score"] for one in theirs], abs=1e-5)


@pytest.mark.parametrize(("architecture", "config"), [
    ("BertForSequenceClassification", NAMES), ("RobertaForSequenceClassification", {}),
    ("DistilBertForSequenceClassification", NAMES), ("ElectraForSequenceClassification", {"num_labels": 1}),
    ("BertForSequenceClassification", {**NAMES, "problem_type": "multi_label_classification"}),
    ("BertForSequenceClassification", {"num_labels": 1, "problem_type": "regression"}),
    ("GPT2ForSequenceClassification", {**NAMES, "pad_token_id": 7}), ("GPT2ForSequenceClassification", NAMES),
    ("LlamaForSequenceClassification", {"pad_token_id": 2}), ("BartForSequenceClassification", NAMES),
    ("LongformerForSequenceClassification", NAMES), ("AlbertForSequenceClassification", NAMES),
])  # fmt: skip
def test_the_pipeline_says_the_same(folders: Folders, pipeline: Any, architecture: str, config: Any) -> None:
    folder = folders(architecture, **config)
    theirs = pipeline("text-classification", folder)
    inputs = [*TEXTS, *PAIRS]
    ours = af.tasks.classify(folder, inputs, top_k=0)
    for given, found in zip(inputs, ours, strict=True):
        pair = isinstance(given, dict)
        same(found, theirs({"text": given["text"], "text_pair": given["pair"]} if pair else given, top_k=None))
    for given, found in zip(inputs, ours, strict=True):
        same(af.tasks.classify(folder, given), found[:1])


def test_other_names(folders: Folders) -> None:
    folder = folders("BertForSequenceClassification", **NAMES)
    known = [one["label"] for one in af.tasks.classify(folder, "The fox", top_k=0)]
    names = dict(zip(NAMES["id2label"].values(), "abc"))
    found = af.tasks.classify(folder, "The fox", top_k=0, labels=list("abc"))
    assert [one["label"] for one in found] == [names[label] for label in known]


def test_more_than_ten_labels_in_text_order(folders: Folders, pipeline: Any, tmp_path: Path) -> None:
    """A config.json whose keys are sorted as texts: "10" is before "2" there, but is still the eleventh label."""
    names = [f"label {letter}" for letter in "qwertyuiopas"]
    numbered = {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
    folder = shutil.copytree(folders("BertForSequenceClassification", **numbered), tmp_path / "sorted")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config, sort_keys=True))
    assert list(json.loads((folder / "config.json").read_text())["id2label"])[:3] == ["0", "1", "10"]
    theirs = pipeline("text-classification", folder)
    for text in TEXTS:
        same(af.tasks.classify(folder, text, top_k=0), theirs(text, top_k=None))


def test_a_config_that_asks_for_other_outputs(folders: Folders) -> None:
    """Pairs in each input, or as an option: the result is the same."""
    wanted = af.tasks.classify(folders("BertForSequenceClassification", **NAMES), "The fox")
    for change in ({"return_dict": False}, {"output_hidden_states": True}):
        same(af.tasks.classify(folders("BertForSequenceClassification", **NAMES, **change), "The fox"), wanted)


def test_mistakes(folders: Folders) -> None:
    folder = folders("BertForSequenceClassification", **NAMES)
    with pytest.raises(ValueError, match="^2 labels given, but the model has 3$"):
        af.tasks.classify(folder, "The fox", labels=["yes", "no"])
    with pytest.raises(ValueError, match="^labels must be a list"):
        af.tasks.classify(folder, "The fox", labels="abc")
    with pytest.raises(ValueError, match="^classify reads no field 'pairs'; did you mean 'pair'"):
        af.tasks.classify(folder, {"text": "The fox", "pairs": "dog"})
    with pytest.raises(ValueError, match="^pair is int, not text"):
        af.tasks.classify(folder, {"text": "The fox", "pair": 3})
    with pytest.raises(ValueError, match="^the text has 71 tokens, and this model takes at most 48; truncate"):
        af.tasks.classify(folder, {"text": "The fox" + " dog" * 30, "pair": "dog " * 36})
    whole = af.tasks.classify(folder, {"text": "The fox" + " dog" * 30, "pair": "dog " * 36}, truncate=True)
    cut = af.tasks.classify(folder, {"text": "The fox" + " dog" * 20, "pair": "dog " * 23})
    assert [one["score"] for one in whole] == pytest.approx([one["score"] for one in cut])
    with pytest.raises(ValueError, match="needs a model with a ClassifyHead; this one has LMHead"):
        af.tasks.classify(folders("BertForMaskedLM"), "a")
    with pytest.raises(ValueError, match="top_k is -1"):
        af.tasks.classify(folder, "a", top_k=-1)


def test_labels_of_a_config_that_does_not_match(folders: Folders) -> None:
    model = af.load(folders("BertForSequenceClassification", **NAMES))
    source = {**model.spec.source, "id2label": {"0": "yes", "1": "no"}}
    model.spec = model.spec.replace(source=type(model.spec.source)(source))
    with pytest.raises(ValueError, match="^2 labels in the config, but the model has 3$"):
        af.tasks.classify(model, "a")
