"""BEHAVIOUR.md, "Looking inside": `af.look` works for every family, or explains in one line why it cannot."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from catalogue import Case, close, make_inputs, over_catalogue, shared, structure
from torch import Tensor

import anyformer as af
from anyformer.look.roles import attention_mixers, body, last_stretch, stream_end
from anyformer.look.trace import main_tensor
from anyformer.models import AutoencoderModule
from anyformer.parts.head.ctc import CTCHead
from anyformer.parts.head.double import DoubleHead
from anyformer.parts.head.language import LMHead, VocabularyOutput
from anyformer.parts.head.pretraining import PretrainingHead
from anyformer.parts.head.speech import FrameHead
from anyformer.parts.head.tag import TagHead
from anyformer.stacks.funnel import FunnelModule
from anyformer.stacks.stages import StagesModule

SCORES_TOKENS = (LMHead, VocabularyOutput, PretrainingHead, DoubleHead, TagHead, CTCHead, FrameHead)


def run(case: Case, seed: int = 0, batch: int = 1) -> Any:
    with torch.no_grad():
        return af.trace(shared(case), **make_inputs(case, batch=batch, seed=seed))


def scores_of(trace: Any) -> Tensor:
    value = main_tensor(dict(trace.output))[0]
    assert value is not None
    return value


@over_catalogue("I1", everyday=structure)
def test_attention_of_every_mixer_or_why_there_is_none(case: Case) -> None:
    mixers = attention_mixers(shared(case))
    if not mixers:
        with pytest.raises(ValueError, match="attention weights"):
            af.look.attention(run(case))
        return
    found = af.look.attention(run(case))
    assert {each.address for each in found.maps} == set(mixers)
    assert all(each.weights.dim() == 4 for each in found.maps)


@over_catalogue("I1", everyday=structure)
def test_the_lens_after_the_last_layer_is_the_model(case: Case) -> None:
    traced, model = run(case, batch=2), shared(case)
    if model.spec.towers or isinstance(model, AutoencoderModule):
        facts = r"two towers.*model\.text.*model\.image" if model.spec.towers else "no stream.*autoencoder"
        return check_refusal(traced, facts)
    neck = body(model).last_stack.part.neck
    if model.spec.head is None:
        with pytest.raises(ValueError, match="this model has no head"):
            af.look.logit_lens(traced)
    elif neck is not None and neck.every_layer:
        with pytest.raises(ValueError, match="all layers"):
            af.look.logit_lens(traced)
    else:
        lens = af.look.logit_lens(traced)
        close(lens.logits(-1), scores_of(traced), 1e-6)
        assert len(lens) == len(last_stretch(body(model).last_stack)[1]) + 1
        assert len(lens) == 1 or not torch.allclose(lens.logits(0), scores_of(traced))


def check_refusal(traced: Any, facts: str) -> None:
    for function in (af.look.logit_lens, af.look.stream_norms):
        with pytest.raises(ValueError, match=facts):
            function(traced)


@over_catalogue("I1", everyday=structure)
def test_contributions_add_up_to_the_score(case: Case) -> None:
    traced, spec = run(case), shared(case).spec
    streams = not spec.towers and not isinstance(shared(case), AutoencoderModule)
    beside = "is between the stream and the head" if streams and stream_end(body(shared(case))) else None
    if (reason := beside if isinstance(spec.head, SCORES_TOKENS) else "this model has") is not None:
        with pytest.raises(ValueError, match=reason):
            af.look.contributions(traced)
        return
    value = scores_of(traced)
    found = af.look.contributions(traced, position=[0, -1])
    expected = value[0, [0, -1]].max(-1).values
    close(found.scores, expected)
    close(found.values.sum(0), expected, 1e-4)
    close(torch.stack([*found.by_sublayer().values()]).sum(0), expected, 1e-4)
    if attention_mixers(shared(case)) and not isinstance(body(shared(case)), (StagesModule, FunnelModule)):
        assert any(line.head is not None for line in found.names), "no head has a line"
