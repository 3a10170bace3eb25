"""The discriminator's loss, the sizes of generator and discriminator, and refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from cases.electra import CASES, SMALL
from catalogue import close, make_inputs, published, shared, spec_of

import anyformer as af
from anyformer import families

BY_ID = {case.id: case for case in CASES}
# config.json of google/electra-small-discriminator
BASE = {
    "architectures": ["ElectraForPreTraining"], "attention_probs_dropout_prob": 0.1, "embedding_size": 128,
    "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 256, "initializer_range": 0.02,
    "intermediate_size": 1024, "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "electra",
    "num_attention_heads": 4, "num_hidden_layers": 12, "type_vocab_size": 2, "vocab_size": 30522,
}  # fmt: skip


def test_the_loss_passes_over_pads() -> None:
    case = BY_ID["ElectraForPreTraining"]
    inputs = make_inputs(case, labels=True)
    mask = torch.ones_like(inputs["input_ids"])
    mask[1, -6:] = 0
    for given in ({}, {"attention_mask": mask}):
        close(shared(case)(**inputs, **given).loss, published(case)[0](**inputs, **given).loss)
    other = {**inputs, "labels": torch.where(mask == 0, 1 - inputs["labels"], inputs["labels"])}
    assert torch.equal(
        shared(case)(**other, attention_mask=mask).loss, shared(case)(**inputs, attention_mask=mask).loss
    )


def test_published_configs() -> None:
    family = families.find("electra")
    assert family.write(family.read(BASE)).items() >= BASE.items()
    assert af.count(family.read({**BASE, "architectures": ["ElectraModel"]})).parameters == 13_483_008
    generator, discriminator = af.spec("electra-base-generator"), af.spec("electra-base")
    assert generator.architecture == "ElectraForMaskedLM" and discriminator.architecture == "ElectraForPreTraining"
    assert generator.embedding.tokens.width == discriminator.width == 768  # so that both can share one table


@pytest.mark.parametrize(
    "bad", [
        {"add_cross_attention": True}, {"hidden_size": 33}, {"type_vocab_size": 0},
        {"architectures": ["ElectraForQuestionAnswering"], "num_labels": 3},
    ], ids=json.dumps,
)  # fmt: skip
def test_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=[*bad][-1]):
        families.find("electra").read({**SMALL, **bad})


def test_dropout_and_summary_are_where_the_published_classes_have_them() -> None:
    def pool(id: str) -> Any:
        return spec_of(BY_ID[id]).head.pool

    found = pool("ElectraForSequenceClassification-odd")
    assert (found.input_dropout, found.dropout, found.activation) == (0.2, 0.2, "gelu")
    assert pool("ElectraForSequenceClassification").dropout == 0.1
    found = pool("ElectraForMultipleChoice-odd")
    assert (found.dense, found.activation, found.dropout) == (False, "tanh", 0.15)
    assert pool("ElectraForMultipleChoice-linear").activation == "identity"
    config = {**SMALL, "architectures": ["ElectraForMultipleChoice"], "summary_first_dropout": 0.25}
    spec = families.find("electra").read(config)
    assert spec.head.pool.input_dropout == 0.25
    assert families.find("electra").write(spec)["summary_first_dropout"] == 0.25
