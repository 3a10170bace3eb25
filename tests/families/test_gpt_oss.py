"""Attention sinks in traces: with padding, cached steps and packed documents."""

from __future__ import annotations

import torch
from catalogue import Case, close, every_case, make_inputs, ours, published

import anyformer as af

CASE: Case = next(case for case in every_case() if case.id == "GptOssForCausalLM")
WEIGHTS = [f"decoder.layers.{i}.attention.op.weights" for i in range(2)]


def test_weights_of_padded_texts_and_of_cached_steps_are_the_published_ones() -> None:
    theirs, mine, ids = published(CASE)[0], ours(CASE), make_inputs(CASE, length=20)["input_ids"]
    mask = torch.ones_like(ids)
    mask[1, 16:] = 0
    with torch.no_grad():
        expected = theirs(input_ids=ids, attention_mask=mask, output_attentions=True).attentions
        run = af.trace(mine, keep=WEIGHTS, input_ids=ids, attention_mask=mask)
        for name, weights in zip(WEIGHTS, expected, strict=True):
            close(run[name][mask.bool()[:, None].expand(-1, 4, -1)], weights[mask.bool()[:, None].expand(-1, 4, -1)])
            assert bool((run[name].sum(-1) < 1).all())  # the sink has the rest
        assert not run[WEIGHTS[0]][0, :, 12, :6].any() and run[WEIGHTS[1]][0, :, 12, :6].all()  # window of 7
        assert not run[WEIGHTS[1]][1, :, :, 16:][:, :16].any()
        first = mine(input_ids=ids[:, :9], use_cache=True)
        state = first.past_key_values
        for t in range(9, 20):
            step = mine(input_ids=ids[:, t : t + 1], past_key_values=state, use_cache=True, output_attentions=True)
            state = step.past_key_values
            for weights, whole in zip(step.attentions, theirs(input_ids=ids, output_attentions=True).attentions):
                row = whole[:, :, t : t + 1, : t + 1]
                close(weights, row[..., -weights.shape[-1] :])
                assert not row[..., : -weights.shape[-1]].any()  # the window's cache has forgotten these keys


def test_weights_of_packed_documents_are_those_of_separate_ones() -> None:
    mine, ids = ours(CASE), make_inputs(CASE, batch=1, length=20)["input_ids"]
    documents = torch.tensor([0] * 12 + [1] * 8)[None]
    with torch.no_grad():
        together = af.trace(mine, keep=WEIGHTS, input_ids=ids, document_ids=documents)
        for start, end in ((0, 12), (12, 20)):
            alone = af.trace(mine, keep=WEIGHTS, input_ids=ids[:, start:end])
            for name in WEIGHTS:
                rows = together[name][:, :, start:end]
                close(rows[..., start:end], alone[name])
                assert not rows[..., :start].any() and not rows[..., end:].any()
