"""Positions that skip padding tokens: generated, passed by the caller, or with padding on the left."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from cases.roberta import CASES
from cases.transformer import CASES as TRANSLATORS
from catalogue import Case, close, folder, make_inputs, ours, published, shared, spec_of
from safetensors.torch import load_file, save_file

import anyformer as af
from anyformer import families
from anyformer.runtime.state import State
from anyformer.specs.part import walk

BY_ID = {case.id: case for case in (*CASES, *TRANSLATORS)}
# config.json of FacebookAI/roberta-base
BASE = {
    "architectures": ["RobertaForMaskedLM"], "attention_probs_dropout_prob": 0.1, "bos_token_id": 0, "eos_token_id": 2,
    "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768, "initializer_range": 0.02,
    "intermediate_size": 3072, "layer_norm_eps": 1e-05, "max_position_embeddings": 514, "model_type": "roberta",
    "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1, "type_vocab_size": 1, "vocab_size": 50265,
}  # fmt: skip


def text_with_pads(case: Case) -> tuple[str, torch.Tensor, dict[str, Any]]:
    """Return tokens (3, 14) with scattered padding tokens, and the other inputs of the model."""
    spec, inputs = spec_of(case), make_inputs(case, batch=3, length=14)
    name = "decoder_input_ids" if spec.pair else "input_ids"
    pad = getattr(spec, spec.target).numbering.token
    ids = inputs.pop(name)[:, :10]
    ids[0, [2, 5, 6]], ids[1, 4] = pad, pad
    inputs.pop("token_type_ids", None)
    if spec.pair:  # otherwise the published class masks them by default
        inputs["decoder_attention_mask"] = torch.ones_like(ids)
    return name, ids, inputs


@pytest.mark.parametrize("id", ["RobertaForCausalLM", "RobertaForCausalLM-cross", "FSMTForConditionalGeneration-odd"])
def test_a_padding_token_that_was_written_takes_up_no_position_later(id: str) -> None:
    """Cached = uncached = published, for every kind of cache: growing, static, forked, cut, reordered, joined."""
    case = BY_ID[id]
    model, (name, ids, rest) = shared(case), text_with_pads(case)
    mask = rest.pop("decoder_attention_mask", None)
    whole = {} if mask is None else {"decoder_attention_mask": mask}

    def read(state: State, start: int, end: int, rows: Any = slice(None)) -> torch.Tensor:
        given = {n: v[rows] for n, v in rest.items()}
        seen = {} if mask is None or state.capacity else {"decoder_attention_mask": mask[rows, :end]}
        return model(**given, **seen, **{name: ids[rows, start:end]}, past_key_values=state).logits

    with torch.no_grad():
        full = model(**rest, **whole, **{name: ids}, use_cache=False).logits
        close(full, published(case)[0](**rest, **whole, **{name: ids}, use_cache=False).logits)
        for state in (model.new_state(), model.new_state(3, capacity=12)):
            read(state, 0, 3)
            for t in range(3, 8):
                close(read(state, t, t + 1), full[:, t : t + 1])
            fork = state.fork()
            close(read(fork, 8, 10), full[:, 8:])
            state.truncate(6)
            close(read(state, 6, 8), full[:, 6:8])
            rows = torch.tensor([1, 0, 2])
            state.reorder(rows)
            close(read(state, 8, 10, rows), full[rows, 8:])
        if mask is None:
            parts = [model.new_state() for _ in range(3)]
            for row, (state, length) in enumerate(zip(parts, (7, 3, 5), strict=True)):
                read(state, 0, length, slice(row, row + 1))
            joined = State.concatenate(parts)
            new = torch.stack([ids[row, length] for row, length in enumerate((7, 3, 5))])[:, None]
            expected = torch.stack([full[row, length] for row, length in enumerate((7, 3, 5))])
            close(model(**{name: new}, past_key_values=joined).logits[:, 0], expected)


@pytest.mark.parametrize(
    "id", ["RobertaForMaskedLM", "RobertaModel-odd", "RobertaForCausalLM", "XLMRobertaXLModel-odd", "CamembertModel"]
)
def test_given_positions_are_rows_of_the_published_table(id: str) -> None:
    case = BY_ID[id]
    inputs, places = make_inputs(case), torch.randint(0, 96, (2, 17), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for positions in (places, places[:1]):
            found = shared(case)(**inputs, position_ids=positions)[0]
            close(found, published(case)[0](**inputs, position_ids=positions.expand(2, -1))[0])
        embeds = shared(case).embedding.tokens(inputs.pop("input_ids"))
        close(shared(case)(**inputs, inputs_embeds=embeds)[0], published(case)[0](**inputs, inputs_embeds=embeds)[0])


def test_the_rows_of_padding_do_not_learn() -> None:
    case = BY_ID["RobertaForMaskedLM-odd"]
    model, theirs, inputs = ours(case), published(case)[0], make_inputs(case, labels=True)
    inputs["input_ids"][:, :4] = 4
    model(**inputs).loss.backward()
    theirs.zero_grad()
    theirs(**inputs).loss.backward()
    mine, table = model.embedding.position.weight.grad, theirs.roberta.embeddings.position_embeddings.weight.grad
    close(mine, table)
    assert mine[4].count_nonzero() == 0 and mine[5].count_nonzero() > 0
    fresh = af.build(spec_of(case))
    assert fresh.embedding.position.weight[4].count_nonzero() == 0 and fresh.embedding.tokens.weight[4].sum() == 0
    theirs.zero_grad()


def test_published_config_and_leftovers(tmp_path) -> None:
    family = families.find("roberta")
    assert family.write(family.read(BASE)).items() >= BASE.items()
    assert af.count(family.read(BASE)).parameters == 124_697_433
    case = BY_ID["RobertaForMaskedLM"]
    tensors = load_file(folder(case) / "model.safetensors")
    tensors["roberta.embeddings.position_ids"] = torch.arange(96)[None]
    tensors |= {"lm_head.decoder.weight": tensors["roberta.embeddings.word_embeddings.weight"].clone()}
    tensors |= {"lm_head.decoder.bias": tensors["lm_head.bias"].clone()}
    (tmp_path / "config.json").write_text((folder(case) / "config.json").read_text())
    save_file(tensors, tmp_path / "model.safetensors")
    for name, tensor in af.load(tmp_path).state_dict().items():
        assert torch.equal(tensor, shared(case).state_dict()[name]), name


# -- the families that are RoBERTa with other values -------------------------------------------------------------------

# config.json of almanach/camembert-base: the first ids are from its own dictionary
CAMEMBERT = {**BASE, "architectures": ["CamembertForMaskedLM"], "model_type": "camembert", "vocab_size": 32005,
             "bos_token_id": 5, "eos_token_id": 6}  # fmt: skip
XLM = {**BASE, "architectures": ["XLMRobertaForMaskedLM"], "model_type": "xlm-roberta", "vocab_size": 250002}


@pytest.mark.parametrize(("config", "parameters"), [(CAMEMBERT, 110_655_493), (XLM, 278_295_186)], ids=["fr", "xlm"])
def test_other_vocabularies(config: dict[str, Any], parameters: int) -> None:
    family = families.find(config["model_type"])
    spec = family.read(config)
    assert family.write(spec).items() >= config.items() and af.count(spec).parameters == parameters
    body = families.find("roberta").read({**BASE, "vocab_size": config["vocab_size"]})
    unnamed = {"family": "", "architecture": "", "source": {}}
    assert spec.replace(**unnamed) == body.replace(**unnamed)


def test_norms_and_dropouts_of_the_pre_norm_ones() -> None:
    large, small = (spec_of(BY_ID[f"{name}Model-odd"]) for name in ("XLMRobertaXL", "RobertaPreLayerNorm"))
    assert large.embedding.norm is None and small.embedding.norm.eps == 1e-3
    for spec, dropout in ((large, 0.0), (small, 0.3)):
        steps = spec.encoder.layers.steps
        assert all(step.out_norm is None and step.pre_norm.eps == 1e-3 for step in steps.values())
        assert (steps["attention"].dropout, steps["feedforward"].dropout, spec.embedding.dropout) == (0.3, dropout, 0.3)
        assert spec.encoder.norm.eps == 1e-3


@pytest.mark.parametrize("name", ["XLMRobertaXL", "RobertaPreLayerNorm", "Roberta"])
def test_there_are_as_many_dropouts_as_published(name: str) -> None:
    case = BY_ID[f"{name}ForTokenClassification-odd"]
    theirs = published(case)[0]
    rates = sorted(module.p for module in theirs.modules() if isinstance(module, torch.nn.Dropout) and module.p)
    found = []
    for path, part in walk(spec_of(case)):
        copies = spec_of(case).encoder.depth if ".layers." in path else 1
        found += [part.dropout] * copies if getattr(part, "dropout", 0) else []
    assert sorted(found) == rates


@pytest.mark.parametrize("name", ["XLMRobertaXL", "RobertaPreLayerNorm"])
def test_labels_of_pads(name: str) -> None:
    """XLM-R XL ignores them, the others only if they are -100."""
    case = BY_ID[f"{name}ForTokenClassification"]
    inputs = make_inputs(case, labels=True)
    mask = torch.ones_like(inputs["input_ids"])
    mask[0, 9:], mask[1, 14:] = 0, 0
    for more in ({}, {"attention_mask": mask}):
        model, theirs = ours(case), published(case)[0]
        theirs.zero_grad()
        found, expected = model(**inputs, **more).loss, theirs(**inputs, **more).loss
        close(found, expected)
        found.backward()
        expected.backward()
        close(model.head.out.weight.grad, theirs.classifier.weight.grad)
    with pytest.raises(ValueError, match=r"labels must have the shape \(2, 17\), got \(2, 16\)"):
        model(**{**inputs, "labels": inputs["labels"][:, 1:]}, attention_mask=mask)
    theirs.zero_grad()


@pytest.mark.slow
def test_an_old_folder_of_either_is_roberta_unless_named(tmp_path) -> None:
    """The tensors of a folder without names cannot distinguish them, but they compute the same."""
    case = BY_ID["CamembertForMaskedLM"]
    config = json.loads((folder(case) / "config.json").read_text())
    plain = {name: value for name, value in config.items() if name not in ("model_type", "architectures")}
    (tmp_path / "config.json").write_text(json.dumps(plain))
    (tmp_path / "model.safetensors").write_bytes((folder(case) / "model.safetensors").read_bytes())
    assert af.load(tmp_path).spec.family == "roberta"
    model = af.load(tmp_path, architecture="CamembertForMaskedLM")
    assert model.spec == shared(case).spec
    inputs = make_inputs(case)
    with torch.no_grad():
        assert torch.equal(model(**inputs).logits, af.load(tmp_path)(**inputs).logits)
