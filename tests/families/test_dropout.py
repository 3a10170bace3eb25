"""Dropout is applied where the published classes apply it. Outputs in eval mode do not show this."""

from __future__ import annotations

import pytest
from catalogue import every_case, spec_of

from anyformer.specs.addresses import value_at

BY_ID = {case.id: case for case in every_case()}
POOLED, INPUT, HEAD = "head.pool.dropout", "head.pool.input_dropout", "head.dropout"
EMBEDDING, LAYERS = "embedding.dropout", "encoder.layers"
ATTENTION, FEEDFORWARD, WEIGHTS = (f"{LAYERS}.{end}" for end in ("attention.dropout", "feedforward.dropout",
                                                                 "attention.op.dropout"))  # fmt: skip
WHERE: dict[str, dict[str, float]] = {
    "AlbertForSequenceClassification-odd": {POOLED: 0.2, EMBEDDING: 0.3, ATTENTION: 0.3, FEEDFORWARD: 0, WEIGHTS: 0.1},
    "AlbertForPreTraining-odd": {POOLED: 0.2}, "AlbertForTokenClassification-odd": {HEAD: 0.2},
    "AlbertModel-odd": {POOLED: 0},
    "BertForSequenceClassification-odd": {POOLED: 0.2, EMBEDDING: 0.3, ATTENTION: 0.3, FEEDFORWARD: 0.3, WEIGHTS: 0},
    "BertForTokenClassification-odd": {HEAD: 0.2},
    "BertForTokenClassification": {HEAD: 0.1},  # hidden_dropout_prob is the default
    "BertModel": {POOLED: 0}, "BertForPreTraining": {POOLED: 0},
    "BigBirdForSequenceClassification-odd": {INPUT: 0.2, POOLED: 0.2, EMBEDDING: 0.3},
    "DebertaV2ForSequenceClassification-odd": {INPUT: 0.15, POOLED: 0.2, EMBEDDING: 0.3},
    "DebertaV2ForSequenceClassification": {POOLED: 0.1}, "DebertaForTokenClassification-odd": {HEAD: 0.3},
    "DistilBertForSequenceClassification-odd": {POOLED: 0.05, EMBEDDING: 0.3, ATTENTION: 0, FEEDFORWARD: 0.3},
    "DistilBertForQuestionAnswering-odd": {HEAD: 0.15}, "DistilBertForTokenClassification-odd": {HEAD: 0.3},
    "ElectraForSequenceClassification-odd": {INPUT: 0.2, POOLED: 0.2},
    "ElectraForSequenceClassification": {POOLED: 0.1}, "ElectraForMultipleChoice-odd": {POOLED: 0.15},
    "LongformerForSequenceClassification-odd": {INPUT: 0.3, POOLED: 0.3},
    "LongformerForMultipleChoice-odd": {POOLED: 0.3}, "LongformerForTokenClassification-odd": {HEAD: 0.3},
    "NystromformerForSequenceClassification-odd": {INPUT: 0.3, POOLED: 0.3},
    "NystromformerForMultipleChoice-odd": {POOLED: 0}, "NystromformerForTokenClassification-odd": {HEAD: 0.3},
    "RobertaForSequenceClassification-odd": {INPUT: 0.2, POOLED: 0.2}, "RobertaForMultipleChoice-odd": {POOLED: 0.3},
    "RobertaForTokenClassification-odd": {HEAD: 0.2}, "RobertaForTokenClassification": {HEAD: 0.1},
    "RobertaModel-odd": {POOLED: 0},
}  # fmt: skip


@pytest.mark.parametrize("id", WHERE)
def test_dropout_is_where_the_published_classes_have_it(id: str) -> None:
    spec = spec_of(BY_ID[id])
    assert {path: value_at(spec, path) for path in WHERE[id]} == WHERE[id]
