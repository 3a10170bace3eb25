"""DistilBERT: the placement of dropout, and positions initialised as sines."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from cases.distilbert import CASES, SMALL
from catalogue import close, shared, spec_of

import anyformer as af
from anyformer import families

BY_ID = {case.id: case for case in CASES}
# config.json of distilbert/distilbert-base-uncased
BASE = {
    "activation": "gelu", "architectures": ["DistilBertForMaskedLM"], "attention_dropout": 0.1, "dim": 768,
    "dropout": 0.1, "hidden_dim": 3072, "initializer_range": 0.02, "max_position_embeddings": 512,
    "model_type": "distilbert", "n_heads": 12, "n_layers": 6, "pad_token_id": 0, "qa_dropout": 0.1,
    "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": False, "tie_weights_": True, "vocab_size": 30522,
}  # fmt: skip


def test_positions_start_as_sines_and_learn() -> None:
    from transformers import DistilBertConfig, DistilBertModel

    case = BY_ID["DistilBertModel-odd"]
    model, theirs = af.build(spec_of(case)), DistilBertModel(DistilBertConfig(**case.config))
    close(model.embedding.position.weight, theirs.embeddings.position_embeddings.weight)
    assert model.embedding.position.weight.requires_grad


def test_published_config() -> None:
    family = families.find("distilbert")
    assert family.write(family.read(BASE)).items() >= BASE.items()
    assert af.count(family.read(BASE)).parameters == 66_985_530


@pytest.mark.parametrize("id", ["DistilBertForQuestionAnswering-odd", "DistilBertForSequenceClassification-odd"])
def test_a_head_drops_in_training_alone(id: str) -> None:
    head = shared(BY_ID[id]).head
    x, ctx = torch.ones(2, 3, 36), type("C", (), {"tokens": None})()
    runs = [head.eval()(x, ctx, {}), head.eval()(x, ctx, {})]
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0] if runs[0][name] is not None)
    runs = [head.train()(x, ctx, {}), head.train()(x, ctx, {})]
    assert any(not torch.equal(runs[0][name], runs[1][name]) for name in runs[0] if runs[0][name] is not None)
    head.eval()


@pytest.mark.parametrize(
    "bad", [
        {"n_heads": 5},
        {"architectures": ["DistilBertForQuestionAnswering"], "num_labels": 3},
    ], ids=json.dumps,
)  # fmt: skip
def test_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=[*bad][-1]):
        families.find("distilbert").read({**SMALL, **bad})
