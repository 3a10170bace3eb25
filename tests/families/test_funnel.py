"""The Funnel-Transformer: padding on the left, short texts, dropout on positions, old files."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from cases.funnel import CASES, SMALL
from catalogue import Case, close, folder, make_inputs, ours, over, published, settings, shared
from safetensors.torch import load_file
from test_loading import compare

import anyformer as af
from anyformer import families
from anyformer.evaluate.model_outputs import results
from anyformer.parts.halve import Halve

BY_ID = {case.id: case for case in CASES}


@over(CASES, settings)
def test_pads_on_the_left_equal_pads_on_the_right(case: Case) -> None:
    model, inputs, pads = shared(case), make_inputs(case), 5
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    right = {name: F.pad(value, (0, pads)) for name, value in inputs.items()}
    left = {name: F.pad(value, (pads, 0)) for name, value in inputs.items()}
    with torch.no_grad():
        a, b = (results(model.spec, model(**each)) for each in (right, left))
    for name, (value, per_token) in a.items():
        found = b[name][0]
        if per_token and model.spec.encoder.top is not None:
            value, found = value[:, :-pads], found[:, pads:]
        close(found, value)


@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.parametrize("queries", [True, False])
def test_short_texts(separate: bool, queries: bool) -> None:
    """If two tokens cannot be pooled, a block reads the input of the block before it."""
    config = {**SMALL, "separate_cls": separate, "pool_q_only": queries, "attention_type": "factorized"}
    case = Case("funnel", "FunnelModel", config, f"short-{separate}-{queries}")
    theirs, mine = published(case)[0], ours(case)
    for length in range(1, 8):
        inputs = make_inputs(case, length=length)
        with torch.no_grad():
            compare(theirs(**inputs, output_hidden_states=True), mine(**inputs, output_hidden_states=True))


def test_both_ways_to_score_distances_agree(monkeypatch) -> None:
    """The factorised form, which dropout uses, with a dropout that drops nothing."""
    case = BY_ID["FunnelModel-repeated-factorized"]
    case = Case("funnel", "FunnelModel", {**case.config, "attention_dropout": 0.0}, "quiet")
    model, inputs = ours(case), make_inputs(case)
    calls = []
    monkeypatch.setattr(F, "dropout", lambda x, *_: calls.append(x.shape) or x)
    with torch.no_grad():
        expected = model(**inputs)[0]
        assert not calls
        close(model.train()(**inputs)[0], expected)
    assert (inputs["input_ids"].shape[1], SMALL["d_model"] // 2) in calls  # sines of the queries


def test_noise_on_distances() -> None:
    """hidden_dropout also applies to the sinusoids, in both forms."""
    for way in ("relative_shift", "factorized"):
        spec = families.find("funnel").read({**SMALL, "attention_type": way, "architectures": ["FunnelModel"]})
        quiet = {"embedding.dropout": 0.0}
        for i in range(3):
            for step in ("attention", "feedforward"):
                quiet[f"encoder.stages.{i}.layers.{step}.dropout"] = 0.0
            quiet[f"encoder.stages.{i}.layers.attention.op.dropout"] = 0.0
        for step in ("attention.dropout", "attention.op.dropout", "feedforward.dropout"):
            quiet[f"encoder.top.layers.{step}"] = 0.0
        model = af.build(af.override(spec, quiet)).train()
        inputs = make_inputs(BY_ID["FunnelModel"])
        assert len({float(model(**inputs)[0].detach().abs().sum()) for _ in range(3)}) == 3


def test_a_padding_token_survives_the_way_back(tmp_path) -> None:
    """The published class sets that vector to zero when it loads; the file still has it."""
    case = BY_ID["FunnelForMaskedLM-padding"]
    af.save(ours(case), tmp_path, format="hf")
    for name, tensor in load_file(folder(case) / "model.safetensors").items():
        assert torch.equal(tensor, load_file(tmp_path / "model.safetensors")[name]), name
    assert af.load(tmp_path).spec == ours(case).spec


def test_packed_documents_are_refused() -> None:
    inputs = make_inputs(BY_ID["FunnelModel"])
    with pytest.raises(ValueError, match="Funnel .* documents cannot be packed"):
        shared(BY_ID["FunnelModel"])(**inputs, document_ids=torch.zeros_like(inputs["input_ids"]))


def test_a_config_as_published() -> None:
    old = {"max_position_embeddings": 1024, "rel_attn_type": "factorized", "type_vocab_size": 3}
    family = families.find("funnel")
    spec = family.read({**SMALL, **old, "hidden_size": 20})
    assert spec.replace(source={}) == family.read({**SMALL, "d_model": 20}).replace(source={})
    assert old.items() <= family.write(spec).items()


def test_halving_there_and_back() -> None:
    x = torch.arange(1.0, 10.0)[None, :, None]  # 9 tokens
    mean, whole = Halve(), Halve(truncate=False)
    assert mean.shorten(x)[0, :, 0].tolist() == [1, 2.5, 4.5, 6.5, 8]
    assert whole.shorten(x)[0, :, 0].tolist() == [1, 2.5, 4.5, 6.5, 8.5]
    assert Halve(by="max", first_apart=False).shorten(x)[0, :, 0].tolist() == [2, 4, 6, 8, 9]
    short = Halve().shorten(x[:, :8])
    assert short[0, :, 0].tolist() == [1, 2.5, 4.5, 6.5]
    assert mean.lengthen(short, 8, 2)[0, :, 0].tolist() == [1, 2.5, 2.5, 4.5, 4.5, 6.5, 6.5, 0]
    real = torch.tensor([[True, True, True, True, False, False, False, False, False]])
    assert mean.shorten(real)[0].tolist() == [True, True, False, False, False]
