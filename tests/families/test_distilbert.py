"""DistilBERT: the placement of dropout, and positions initialised as sines."""

from __future__ import annotations

import pytest
import torch
from cases.distilbert import CASES
from catalogue import close, shared, spec_of

import anyformer as af

BY_ID = {case.id: case for case in CASES}


def test_positions_start_as_sines_and_learn() -> None:
    from transformers import DistilBertConfig, DistilBertModel

    case = BY_ID["DistilBertModel-odd"]
    model, theirs = af.build(spec_of(case)), DistilBertModel(DistilBertConfig(**case.config))
    close(model.embedding.position.weight, theirs.embeddings.position_embeddings.weight)
    assert model.embedding.position.weight.requires_grad


@pytest.mark.parametrize("id", ["DistilBertForQuestionAnswering-odd", "DistilBertForSequenceClassification-odd"])
def test_a_head_drops_in_training_alone(id: str) -> None:
    head = shared(BY_ID[id]).head
    x, ctx = torch.ones(2, 3, 36), type("C", (), {"tokens": None})()
    runs = [head.eval()(x, ctx, {}), head.eval()(x, ctx, {})]
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0] if runs[0][name] is not None)
    runs = [head.train()(x, ctx, {}), head.train()(x, ctx, {})]
    assert any(not torch.equal(runs[0][name], runs[1][name]) for name in runs[0] if runs[0][name] is not None)
    head.eval()
