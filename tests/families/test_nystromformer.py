"""Landmarks: against the published class where it works, and with its mask corrected for padded texts."""

from __future__ import annotations

import pytest
import torch
from cases.nystromformer import CASES, SMALL
from catalogue import Case, close, make_inputs, ours, published, shared
from test_loading import compare

import anyformer as af
from anyformer import families

LANDMARKS = [case for case in CASES if case.name == "landmarks"]
over = pytest.mark.parametrize("case", LANDMARKS, ids=lambda case: case.id)


@over
@pytest.mark.parametrize("padded", [False, True])
def test_outputs_equal_published(case: Case, padded: bool, monkeypatch) -> None:
    from transformers.models.nystromformer import modeling_nystromformer as module

    make = module.create_bidirectional_mask
    monkeypatch.setattr(  # published: one row for all landmarks instead of one per token, which fits no shape
        module, "create_bidirectional_mask", lambda **k: None if (m := make(**k)) is None else m[:, :, :1]
    )
    inputs = make_inputs(case, batch=3, labels=True)
    if padded:
        mask = torch.ones_like(inputs["input_ids"])
        mask[1, ..., -6:] = 0
        inputs["attention_mask"] = mask
    for more in ({}, {"output_hidden_states": True, "output_attentions": True}):
        with torch.no_grad():
            compare(published(case)[0](**inputs, **more), shared(case)(**inputs, **more))


@over
def test_kernels_agree(case: Case) -> None:
    model, inputs = ours(case), make_inputs(case)
    mask = torch.ones_like(inputs["input_ids"])
    mask[0, ..., -4:] = 0
    found = []
    with torch.no_grad():
        for model.kernel in ("eager", "sdpa"):
            found.append(model(**inputs, attention_mask=mask)[0])
    close(*found)


def test_other_lengths_and_packing_are_refused() -> None:
    case = LANDMARKS[0]
    inputs = make_inputs(case)
    with pytest.raises(ValueError, match=r"encoder\.layers\.0\.attention\.op.*18 .*17"):
        shared(case)(input_ids=inputs["input_ids"][:, :17])
    with pytest.raises(ValueError, match=r"encoder\.layers\.0\.attention\.op: documents cannot be packed"):
        shared(case)(**inputs, document_ids=torch.zeros(2, 18, dtype=torch.long))


def test_many_landmarks_come_near_to_plain_attention() -> None:
    """The inverse is exact: with one landmark per token, nothing is lost."""
    from anyformer.parts.attention.nystrom import NystromAttention
    from anyformer.runtime.context import Context
    from anyformer.specs.part import Site

    torch.manual_seed(0)
    part = NystromAttention(num_heads=2, length=24, landmarks=12, rounds=30)
    module = part.build(Site(width=16))
    x = torch.randn(2, 12, 16).repeat_interleave(2, dim=1)  # segments of two equal tokens: the means are exact
    ctx = Context(index=torch.arange(24), positions=torch.arange(24)[None])
    with torch.no_grad():
        near = module(x, ctx)
        module.part = part.replace(landmarks=24)
        close(near, module(x, ctx), 1e-3)


def test_given_positions_are_rows_of_the_published_table() -> None:
    case = CASES[0]
    inputs, places = make_inputs(case), torch.randint(0, 98, (2, 17), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        close(shared(case)(**inputs, position_ids=places)[0], published(case)[0](**inputs, position_ids=places)[0])


def test_time_grows_with_the_length() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    def flops(length: int) -> int:
        config = {**SMALL, "segment_means_seq_len": length, "num_landmarks": 8, "max_position_embeddings": length}
        model = af.build(families.find("nystromformer").read({**config, "architectures": ["NystromformerModel"]}))
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(input_ids=torch.ones(1, length, dtype=torch.long))
        return counter.get_total_flops()

    assert flops(1024) < 2.02 * flops(512)
