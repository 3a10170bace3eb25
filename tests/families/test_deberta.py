"""DeBERTa: masks with holes, its losses, its authors' files, and its config fields."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import deberta, deberta_v2
from catalogue import Case, close, folder, make_inputs, ours, published, shared, spec_of
from safetensors.torch import load_file, save_file
from test_loading import compare

import anyformer as af
from anyformer import families
from anyformer.objectives.replaced import ReplacedTokens
from anyformer.objectives.vocabulary_info import VocabularyInfo

BY_ID = {case.id: case for case in (*deberta.CASES, *deberta_v2.CASES)}
KINDS = [("deberta", deberta.SMALL), ("deberta-v2", deberta_v2.SMALL)]
both = pytest.mark.parametrize(("model_type", "small"), KINDS, ids=[name for name, _ in KINDS])
# config.json of microsoft/deberta-v3-base
BASE = {
    "model_type": "deberta-v2", "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072, "max_position_embeddings": 512,
    "relative_attention": True, "position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": True,
    "pos_att_type": "p2c|c2p", "layer_norm_eps": 1e-7, "max_relative_positions": -1, "position_biased_input": False,
    "num_attention_heads": 12, "num_hidden_layers": 12, "type_vocab_size": 0, "vocab_size": 128100,
}  # fmt: skip


@pytest.mark.parametrize("id", ["DebertaModel", "DebertaModel-odd", "DebertaV2Model", "DebertaV2Model-odd"])
@torch.no_grad()
def test_pads_in_the_middle(id: str) -> None:
    """Masked tokens keep their positions: relative positions and convolutions count them, as published."""
    case = BY_ID[id]
    inputs = make_inputs(case)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs["attention_mask"][0, 4:7] = inputs["attention_mask"][1, -5:] = 0
    compare(published(case)[0](**inputs, output_hidden_states=True), shared(case)(**inputs, output_hidden_states=True))


@pytest.mark.parametrize("buckets", [0, 6])
@torch.no_grad()
def test_texts_longer_than_distances_reach(buckets: int) -> None:
    config = {**deberta_v2.SMALL, "position_buckets": buckets or -1, "max_relative_positions": 10}
    case = Case("deberta-v2", "DebertaV2Model", {**config, "position_biased_input": False}, f"far-{buckets}")
    for length in (1, 2, 3, 4, 5, 9, 10, 11, 90):
        inputs = make_inputs(case, length=length)
        close(shared(case)(**inputs)[0], published(case)[0](**inputs)[0])


@both
def test_segments_that_have_no_vector_change_nothing(model_type: str, small: dict[str, Any]) -> None:
    """Tokenizers return them, and published classes do not read them."""
    case = BY_ID["DebertaModel-odd" if model_type == "deberta" else "DebertaV2Model-odd"]
    ids = make_inputs(case)["input_ids"]
    with torch.no_grad():
        found = shared(case)(input_ids=ids, token_type_ids=torch.ones_like(ids)).last_hidden_state
        assert torch.equal(found, shared(case)(input_ids=ids).last_hidden_state)
        close(found, published(case)[0](input_ids=ids, token_type_ids=torch.ones_like(ids)).last_hidden_state)


# -- losses ------------------------------------------------------------------------------------------------------------

LABELS: dict[str, tuple[dict[str, Any], Any]] = {
    "classes": ({}, torch.tensor([2, 0, 1])), "one without": ({}, torch.tensor([2, -1, 1])),
    "shares": ({}, torch.tensor([[0.2, 0.5, 0.3], [1.0, 0, 0], [0.1, 0.1, 0.9]])),
    "a number": ({"num_labels": 1}, torch.tensor([0.5, -1.0, 2.0])),
    "numbers": ({"problem_type": "regression"}, torch.tensor([[0.2, 0.5, 0.3], [1.0, 0, 0], [0.1, 0.1, 0.9]])),
    "a named number": ({"num_labels": 1, "problem_type": "regression"}, torch.tensor([0.5, -1.0, 2.0])),
    "several": ({"problem_type": "multi_label_classification"}, torch.tensor([[0.0, 1, 1], [1, 0, 0], [0, 0, 0]])),
    "named classes": ({"problem_type": "single_label_classification"}, torch.tensor([2, -100, 1])),
}  # fmt: skip


@pytest.mark.parametrize("kind", LABELS)
@both
def test_losses_of_texts(model_type: str, small: dict[str, Any], kind: str) -> None:
    """It has its own loss if the config names no problem."""
    more, labels = LABELS[kind]
    name = {"deberta": "Deberta", "deberta-v2": "DebertaV2"}[model_type]
    case = Case(model_type, f"{name}ForSequenceClassification", {**small, "num_labels": 3, **more}, f"loss {kind}")
    inputs = {**make_inputs(case, batch=3), "labels": labels}
    theirs, mine = published(case)[0](**inputs), shared(case)(**inputs)
    close(mine.loss, theirs.loss)
    close(mine.logits, theirs.logits)
    assert shared(case)(**make_inputs(case, batch=3)).logits.shape == (3, more.get("num_labels", 3))


# -- files and configs -------------------------------------------------------------------------------------------------


@both
def test_files_of_the_authors(model_type: str, small: dict[str, Any], tmp_path: Path) -> None:
    """They have the head of legacy=False and leftovers of pretraining, and name neither this nor their class."""
    name = {"deberta": "Deberta", "deberta-v2": "DebertaV2"}[model_type]
    config = {**small, "legacy": False, "position_biased_input": False}
    case = Case(model_type, f"{name}ForMaskedLM", config, "authors")
    shutil.copytree(folder(case), tmp_path / "m")
    stored = json.loads((tmp_path / "m" / "config.json").read_text())
    stored = {k: v for k, v in stored.items() if k not in ("legacy", "architectures")}
    (tmp_path / "m" / "config.json").write_text(json.dumps(stored))
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    assert any(name.startswith("lm_predictions.") for name in tensors)
    tensors["deberta.embeddings.position_embeddings.weight"] = torch.ones(96, 32)
    left = {"dense.weight": (32, 32), "LayerNorm.bias": (32,), "classifier.weight": (1, 32)}
    tensors |= {f"mask_predictions.{name}": torch.ones(shape) for name, shape in left.items()}
    save_file(tensors, tmp_path / "m" / "model.safetensors")
    model, inputs = af.load(tmp_path / "m"), make_inputs(case)
    with torch.no_grad():
        close(model(**inputs).logits, published(case)[0](**inputs).logits)
    assert model.spec.replace(source={}) == spec_of(case).replace(source={})
    base, report = af.load(tmp_path / "m", architecture=f"{name}Model", strict=False)
    assert not report.missing and all(each.startswith("lm_predictions.") for each in report.unexpected)
    with torch.no_grad():
        close(base(**inputs).last_hidden_state, published(case)[0].deberta(**inputs).last_hidden_state)


def test_the_named_one_is_the_published_one() -> None:
    assert af.spec("deberta-v3-base").encoder == families.find("deberta-v2").read({**BASE, "legacy": False}).encoder


def test_what_was_swapped_is_written_back() -> None:
    family = families.find("deberta-v2")
    spec = family.read({**BASE, "architectures": ["DebertaV2Model"]})
    path = "encoder.layers.attention.op.position"
    config = family.write(af.override(spec, {f"{path}.buckets": 64, f"{path}.reach": 128, f"{path}.norm": None}))
    assert (config["position_buckets"], config["max_relative_positions"]) == (64, 128)
    assert config.get("norm_rel_ebd", "none") == "none"
    one = {f"{path}.by_key": False, "encoder.layers.attention.op.scale": (2 * 64) ** -0.5}
    assert family.write(af.override(spec, one))["pos_att_type"] == ["c2p"]
    with pytest.raises(ValueError, match="by_key.* False"):  # with the scale of three terms
        family.write(af.override(spec, {f"{path}.by_key": False}))


def test_dropout_is_where_the_published_classes_have_it() -> None:
    spec = spec_of(BY_ID["DebertaV2ForSequenceClassification-odd"])
    first, rest = (spec.encoder.layer(i).steps for i in (0, 1))
    assert [*first] == [*rest, "convolution"]
    assert first["attention"].op.position.dropout == first["convolution"].op.dropout == spec.embedding.dropout == 0.3
    assert first["convolution"].dropout == first["attention"].op.dropout == 0


@pytest.mark.parametrize("rate", [None, 0.0, 0.25])
@both
def test_dropout_before_the_classes_as_published(model_type: str, small: dict[str, Any], rate: float | None) -> None:
    """None means hidden_dropout_prob; 0.0 is a value."""
    import transformers

    name = {"deberta": "DebertaForSequenceClassification", "deberta-v2": "DebertaV2ForSequenceClassification"}
    config = {**small, "hidden_dropout_prob": 0.3, "cls_dropout": rate}
    kind = getattr(transformers, name[model_type])
    spec = families.find(model_type).read({**config, "architectures": [kind.__name__]})
    assert spec.head.pool.dropout == kind(kind.config_class(**config)).dropout.p


def test_replaced_tokens_are_told_as_in_v3() -> None:
    """DeBERTa v3 was trained like this: a generator with half of the layers, and one score per token."""
    family, small = families.find("deberta-v2"), {**deberta_v2.SMALL, "num_hidden_layers": 1}
    generator = family.read({**small, "architectures": ["DebertaV2ForMaskedLM"], "legacy": False})
    config = {**deberta_v2.SMALL, "architectures": ["DebertaV2ForTokenClassification"], "num_labels": 1}
    model = af.build(family.read(config), seed=0)
    objective = ReplacedTokens(
        generator=generator, known=VocabularyInfo(size=99, mask=4, begin=2, end=3, apart=(0, 2, 3, 4))
    )
    rows = [{"input_ids": np.array([2, *range(10, 10 + n), 3], np.int32)} for n in (25, 12)]
    batch = objective.collate([objective.vary(row, np.random.default_rng(i)) for i, row in enumerate(rows)], 0)
    both = objective.module(model)
    sums = objective.losses(both, batch)
    assert set(sums) == {"generator", "discriminator"}
    sum(sums.values()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in both.parameters() if p.requires_grad)


@pytest.mark.parametrize("id", ["DebertaForMaskedLM", "DebertaV2ForMaskedLM-odd"])
def test_the_first_layer_alone_has_a_table(id: str) -> None:
    model = ours(BY_ID[id])
    (name,) = [name for name, _ in model.named_parameters() if name.endswith("position.table.weight")]
    assert name == "encoder.layers.0.attention.op.position.table.weight"
    trace = af.trace(model, keep=["encoder.layers.*.attention.op.position"], **make_inputs(BY_ID[id]))
    found = [trace[f"encoder.layers.{i}.attention.op.position"] for i in range(model.spec.encoder.depth)]
    heads = model.spec.encoder.layer(0).steps["attention"].op.num_heads
    assert all(each.shape == (2, heads, 17, 17) for each in found) and not torch.equal(found[0], found[1])
