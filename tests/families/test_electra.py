"""The discriminator's loss, the sizes of generator and discriminator, and refusals."""

from __future__ import annotations

from typing import Any

import torch
from cases.electra import CASES, SMALL
from catalogue import close, make_inputs, published, shared, spec_of

import anyformer as af
from anyformer import families

BY_ID = {case.id: case for case in CASES}


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


def test_a_generator_and_its_discriminator_can_share_one_table() -> None:
    generator, discriminator = af.spec("electra-base-generator"), af.spec("electra-base")
    assert generator.architecture == "ElectraForMaskedLM" and discriminator.architecture == "ElectraForPreTraining"
    assert generator.embedding.tokens.width == discriminator.width == 768


def test_dropout_and_summary_are_where_the_published_classes_have_them() -> None:
    def pool(id: str) -> Any:
        return spec_of(BY_ID[id]).head.pool

    assert pool("ElectraForSequenceClassification-odd").activation == "gelu"
    found = pool("ElectraForMultipleChoice-odd")
    assert (found.dense, found.activation) == (False, "tanh")
    assert pool("ElectraForMultipleChoice-linear").activation == "identity"
    config = {**SMALL, "architectures": ["ElectraForMultipleChoice"], "summary_first_dropout": 0.25}
    spec = families.find("electra").read(config)
    assert spec.head.pool.input_dropout == 0.25
    assert families.find("electra").write(spec)["summary_first_dropout"] == 0.25
