"""Layers that run more than once: one module, counted once, run as often as published."""

from __future__ import annotations

import pytest
import torch
from cases.albert import CASES, SMALL
from catalogue import close, make_inputs, ours, published, spec_of
from torch.utils.flop_counter import FlopCounterMode

import anyformer as af
from anyformer import families
from anyformer.specs.codec import override

BY_ID = {case.id: case for case in CASES}


def test_a_layer_is_one_module_that_runs_again() -> None:
    spec = spec_of(BY_ID["AlbertForMaskedLM-odd"])
    assert spec.encoder.depth == 6 and spec.encoder.order == (0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 4, 5)
    model, seen = ours(BY_ID["AlbertForMaskedLM-odd"]), []
    assert len(model.encoder.layers) == 6
    for i, layer in enumerate(model.encoder.layers):
        layer.register_forward_hook(lambda *_, i=i: seen.append(i))
    out = model(**make_inputs(BY_ID["AlbertForMaskedLM-odd"]), output_hidden_states=True)
    assert tuple(seen) == spec.encoder.order and len(out.hidden_states) == 15


def test_work_is_counted_as_often_as_it_is_done() -> None:
    """FLOPs equal transformers', and weights count once."""
    case = BY_ID["AlbertForMaskedLM-odd"]
    found, mine = [], ours(case)
    mine.kernel = "eager"  # torch does not count its fused kernel on a CPU
    for model in (mine, published(case)[0]):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(**make_inputs(case))
        found.append(counter.get_total_flops())
    assert abs(found[0] / found[1] - 1) < 0.01
    longer = override(spec_of(case), {"encoder.order": (*range(6), *range(6), *range(6), *range(6))})
    assert af.count(longer).parameters == af.count(spec_of(case)).parameters


def test_gradients_add_up_over_the_runs() -> None:
    case = BY_ID["AlbertForPreTraining-odd"]
    model, theirs, inputs = ours(case), published(case)[0], make_inputs(case, labels=True)
    model(**inputs).loss.backward()
    theirs.zero_grad()
    theirs(**inputs).loss.backward()
    layer = theirs.albert.encoder.albert_layer_groups[1].albert_layers[0]
    close(model.encoder.layers[2].attention.op.q.weight.grad, layer.attention.query.weight.grad)
    close(model.embedding.project.weight.grad, theirs.albert.encoder.embedding_hidden_mapping_in.weight.grad)
    theirs.zero_grad()


def test_orders_that_leave_a_layer_out_are_refused() -> None:
    spec = spec_of(BY_ID["AlbertForMaskedLM-odd"])
    for bad in ((0, 1, 2, 3, 4), (0, 1, 2, 3, 4, 5, 6), ()):
        with pytest.raises(ValueError, match=r"encoder.*order"):
            override(spec, {"encoder.order": bad})


def test_groups_of_layers_are_written_back() -> None:
    family = families.find("albert")
    for groups, inner in ((2, 1), (1, 2), (3, 4)):
        config = {**SMALL, "num_hidden_groups": groups, "inner_group_num": inner, "num_hidden_layers": groups}
        written = family.write(family.read(config).replace(source={}))
        assert (written["num_hidden_groups"], written["inner_group_num"]) == (groups, inner)
