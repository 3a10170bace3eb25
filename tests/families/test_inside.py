"""BEHAVIOUR.md, "Looking inside": `af.look` says what it promises of every family, or in one line why it cannot."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from catalogue import Case, body_and_head, close, family, make_inputs, over_catalogue, shared
from torch import Tensor

import anyformer as af
from anyformer.look.roles import attending, body
from anyformer.look.trace import main_tensor


def run(case: Case, seed: int = 0, batch: int = 1) -> Any:
    with torch.no_grad():
        return af.trace(shared(case), **make_inputs(case, batch=batch, seed=seed))


def said(trace: Any) -> Tensor:
    value = main_tensor(dict(trace.output))[0]
    assert value is not None
    return value


@over_catalogue("I1", everyday=family)
def test_attention_of_every_mixer_or_why_there_is_none(case: Case) -> None:
    mixers = attending(shared(case))
    if not mixers:
        with pytest.raises(ValueError, match="has no attention weights"):
            af.look.attention(run(case))
        return
    found = af.look.attention(run(case))
    assert {each.address for each in found.maps} == set(mixers)
    assert all(each.weights.dim() == 4 for each in found.maps)


@over_catalogue("I1", everyday=body_and_head)
def test_the_lens_after_the_last_layer_is_the_model(case: Case) -> None:
    traced, model = run(case, batch=2), shared(case)
    neck = body(model).last.part.neck
    if model.spec.head is None:
        with pytest.raises(ValueError, match="has no head"):
            af.look.logit_lens(traced)
    elif neck is not None and neck.every_layer:
        with pytest.raises(ValueError, match="mixes the states of all layers"):
            af.look.logit_lens(traced)
    else:
        lens = af.look.logit_lens(traced)
        close(lens.logits(-1), said(traced), 1e-6)
        assert len(lens) == len(body(model).last.part.steps) + 1
        assert len(lens) == 1 or not torch.allclose(lens.logits(0), said(traced))


@over_catalogue("I1", everyday=body_and_head)
def test_contributions_add_up_to_the_score(case: Case) -> None:
    traced, model = run(case), shared(case)
    value = said(traced)
    places = [0, -1] if value.dim() > 1 and value.shape[1] > 1 else [0]
    try:
        found = af.look.contributions(traced, position=places)
    except ValueError as error:
        lines = ("this model has", "stands between the stream and the head")
        assert any(line in str(error) for line in lines) and "off by" not in str(error)
        assert model.spec.writes is False or body(model).last.part.neck is not None, str(error)
        return
    expected = torch.stack([value[0, place].max() for place in places])
    close(found.scores, expected)
    close(found.values.sum(0), expected, 1e-4)
    summed = torch.stack([*found.by_sublayer().values()]).sum(0)
    close(summed, expected, 1e-4)
