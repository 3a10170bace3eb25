"""Labels are the same from the data to the answer, and a new head is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.data import CSV, Bytes, Data, JSONLines
from anyformer.objectives.classify import Classify
from anyformer.objectives.tag import Tag
from anyformer.recipes.shared.encoder import SPECIAL
from anyformer.tasks.each.classify import classify
from anyformer.train.optim import AdamW
from anyformer.train.run import Batch, Pretrained, Run
from anyformer.train.start import make_model, setup
from anyformer.transforms.lora import LoRA, merge
from tiny import encoder

VOCABULARY = Bytes(special=SPECIAL, begin="cls_token", end="sep_token")
ROWS = [f"{word} {i},{label}" for i in range(4) for word, label in (("aaaa", "yes"), ("zzzz", "no"))]


def run_of(folder: Path, **changes: Any) -> Run:
    (folder / "rows.csv").write_text("\n".join(("text,label", *ROWS)) + "\n")
    base: dict[str, Any] = {
        "name": "labels", "model": encoder(), "vocabulary": VOCABULARY,
        "data": Data(train=CSV(path=str(folder / "rows.csv"))),
        "objective": Classify(labels=("no", "yes")), "batch": Batch(examples=8), "steps": 20,
        "optimizer": AdamW(lr=3e-2),
    }  # fmt: skip
    return Run(**{**base, **changes})


def answers(where: Any) -> list[str]:
    return [found[0]["label"] for found in classify(where, ["aaaa 1", "zzzz 2"])]


@pytest.mark.parametrize("labels, described", [
    (("yes", "no"), ()), (("yes", "no"), ("no", "yes")), (("no", "yes"), ("no", "yes")),
], ids=["no names", "another order", "these"])  # fmt: skip
def test_a_classifier_answers_with_the_names_it_learnt(
    labels: tuple[str, ...], described: tuple[str, ...], tmp_path: Path
) -> None:
    """Answers, saved files and exported files have the labels of the data, not of the description."""
    run = run_of(tmp_path, objective=Classify(labels=labels), model=encoder(labels=described))
    trainer = setup(run, tmp_path / "run").fit()
    assert answers(tmp_path / "run") == ["yes", "no"]
    af.save(trainer.model.eval(), tmp_path / "hf", format="hf")
    config = json.loads((tmp_path / "hf/config.json").read_text())
    assert config["id2label"] == {str(i): label for i, label in enumerate(labels)}
    assert config["label2id"] == {label: i for i, label in enumerate(labels)}
    assert answers(tmp_path / "hf") == ["yes", "no"]


def test_names_decide_not_their_order(tmp_path: Path) -> None:
    """A trained classifier gives the same answers if labels are in a different order; other names are refused."""
    setup(run_of(tmp_path), tmp_path / "run").fit()
    saved = Pretrained(path=str(tmp_path / "run"))
    for part, labels in ((saved, ("yes", "no")), (saved.replace(labels=("yes", "no")), ("yes", "no"))):
        run = run_of(tmp_path, model=part, vocabulary=None, objective=Classify(labels=labels), steps=1)
        trainer = setup(run, tmp_path / f"more {bool(part.labels)}")
        assert trainer.model.spec.labels == labels and answers(trainer.model.eval()) == ["yes", "no"]
    run = run_of(tmp_path, model=saved, vocabulary=None, objective=Classify(labels=("nein", "ja")))
    with pytest.raises(ValueError, match="objective.labels: nein, ja; the model has other labels: no, yes"):
        setup(run, tmp_path / "other")


def test_more_than_ten_labels_in_their_order(tmp_path: Path) -> None:
    labels = tuple(f"tag{i}" for i in range(12))
    (tmp_path / "rows.jsonl").write_text(json.dumps({"words": ["a", "b"], "tags": ["tag10", "tag2"]}) + "\n")
    spec = encoder("BertForTokenClassification", labels)
    spec = spec.replace(source={**spec.source, "id2label": {str(i): labels[i] for i in (0, 1, 10, 11, *range(2, 10))}})
    assert spec.labels == labels
    data = Data(train=JSONLines(path=str(tmp_path / "rows.jsonl")))
    run = run_of(tmp_path, model=spec, objective=Tag(labels=labels), data=data)
    assert setup(run.replace(steps=1), tmp_path / "run").model.spec.labels == labels


# -- P3: a vocabulary belongs to its weights ---------------------------------------------------------------------------


def test_weights_know_one_vocabulary(tmp_path: Path) -> None:
    setup(run_of(tmp_path, steps=1), tmp_path / "run").fit()
    saved = Pretrained(path=str(tmp_path / "run"))
    setup(run_of(tmp_path, model=saved, steps=1), tmp_path / "same")
    smaller = Bytes(special={"pad_token": "[PAD]", "cls_token": "[CLS]"}, begin="cls_token")
    with pytest.raises(ValueError, match="vocabulary: the weights of .* were trained with a different one"):
        setup(run_of(tmp_path, model=saved, vocabulary=smaller, steps=1), tmp_path / "foreign")


# -- P6: what starts fresh learns --------------------------------------------------------------------------------------


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A masked language model in a folder, with its vocabulary."""
    model = af.build(encoder("BertForMaskedLM", ()), seed=0).eval()
    af.save(model, tmp_path / "base", format="hf")
    VOCABULARY.make([], tmp_path / "base")
    return tmp_path / "base"


def test_a_new_head_learns_beside_adapters(base: Path, tmp_path: Path) -> None:
    part = Pretrained(path=str(base), architecture="BertForSequenceClassification")
    labels = ("no", "yes", "maybe")  # the head gets as many labels as the data
    run = run_of(tmp_path, model=part, vocabulary=None, objective=Classify(labels=labels), lora=LoRA(rank=2))
    before = make_model(run, None)
    assert before.fresh and all(name.startswith("head.") for name in before.fresh) and before.head.out.out_features == 3
    model = setup(run, tmp_path / "run").fit().model
    for name in before.fresh:
        assert not torch.equal(model.get_parameter(name), before.get_parameter(name)), f"{name} did not learn"
    assert answers(tmp_path / "run") == ["yes", "no"]
    again = af.load(tmp_path / "run/adapter")  # saved by the run next to the weights
    assert again.spec.labels == labels
    ids = torch.tensor([[5, 9, 9, 6]])
    with torch.no_grad():
        logits = model.eval()(input_ids=ids).logits
        assert torch.allclose(again(input_ids=ids).logits, logits, atol=1e-6)
        assert torch.allclose(merge(again)(input_ids=ids).logits, logits, atol=1e-6)


def test_unless_it_is_asked_to_stand_still(base: Path, tmp_path: Path) -> None:
    part = Pretrained(path=str(base), architecture="BertForSequenceClassification")
    run = run_of(tmp_path, model=part, vocabulary=None, lora=LoRA(rank=2, fresh=False), steps=2)
    learnt = [name for name, p in setup(run, tmp_path / "run").fit().model.named_parameters() if p.requires_grad]
    assert learnt and all("lora_" in name for name in learnt)
