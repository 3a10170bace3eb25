"""Published forms of the original Transformer: inputs_embeds, padding tokens, labels without decoder input, texts
longer than the position table, incomplete checkpoints."""

from __future__ import annotations

import pytest
import torch
from cases.transformer import CASES, FSMT, MARIAN, ODD
from catalogue import Case, close, folder, make_inputs, ours, published, shared
from safetensors.torch import load_file, save_file

import anyformer as af
from anyformer import families

BY_ID = {case.id: case for case in CASES}
PAIRS = [
    "MarianMTModel", "MarianMTModel-two-vocabularies",
    "FSMTForConditionalGeneration", "FSMTForConditionalGeneration-odd",
]  # fmt: skip


def both(case: Case, **inputs):
    with torch.no_grad():
        return published(case)[0](**inputs)[0], shared(case)(**inputs)[0]


@pytest.mark.parametrize("name", PAIRS)
def test_given_vectors(name: str) -> None:
    """Scaled as published: by FSMT, and by Marian's decoder."""
    case = BY_ID[name]
    ids, vectors = make_inputs(case), torch.randn(2, 11, case.config["d_model"])
    inputs = {"inputs_embeds": vectors, "decoder_input_ids": ids["decoder_input_ids"]}
    with torch.no_grad():
        theirs, mine = published(case)[0](**inputs), shared(case)(**inputs)
    close(mine.encoder_last_hidden_state, theirs.encoder_last_hidden_state)
    if case.model_type == "marian":  # FSMT's published class does not accept decoder_inputs_embeds with input_ids
        theirs, mine = both(case, input_ids=ids["input_ids"], decoder_inputs_embeds=vectors)
        close(mine, theirs)


@pytest.mark.parametrize("name", PAIRS)
def test_padding_tokens_without_a_mask(name: str) -> None:
    """Marian sees and counts them; FSMT does not count them, and its decoder does not see them."""
    case = BY_ID[name]
    inputs, pad = make_inputs(case), case.config.get("pad_token_id", 1)
    inputs["input_ids"][0, -4:] = inputs["input_ids"][1, 3] = pad
    inputs["decoder_input_ids"][1, -3:] = inputs["decoder_input_ids"][0, 4] = pad
    theirs, mine = both(case, **inputs)
    close(mine, theirs)


def test_scores_without_a_head_are_not_generated_from() -> None:
    """FSMTModel returns scores as its last hidden state."""
    case = BY_ID["FSMTModel"]
    with pytest.raises(ValueError, match="FSMTModel has no language-model head"):
        af.generate(shared(case), **make_inputs(case))


@pytest.mark.parametrize("name", ["MarianMTModel", "MarianMTModel-two-vocabularies"])
def test_labels_alone(name: str) -> None:
    case = BY_ID[name]
    inputs = make_inputs(case, labels=True)
    inputs.pop("decoder_input_ids")
    theirs, mine = both(case, **inputs)
    close(mine, theirs)


def test_fsmt_wraps_the_source_and_the_labels() -> None:
    case = BY_ID["FSMTForConditionalGeneration"]
    ids = make_inputs(case)["input_ids"] % 71
    ids[1, -5:] = 1
    theirs, mine = both(case, input_ids=ids)
    close(mine, theirs)
    labels = ids.masked_fill(ids == 1, -100)[:, :9]
    wrapped = published(case)[0].prepare_decoder_input_ids_from_labels(labels.clone())
    with torch.no_grad():
        expected = shared(case)(input_ids=ids, decoder_input_ids=wrapped).logits
        close(shared(case)(input_ids=ids, labels=labels).logits, expected)


def test_fsmt_reads_beyond_its_table() -> None:
    case = Case("fsmt", "FSMTForConditionalGeneration", {**FSMT, "max_position_embeddings": 10}, "short")
    theirs, _ = published(case)
    mine = ours(case)
    inputs = make_inputs(case, length=30)
    with torch.no_grad():
        close(mine(**inputs).logits, theirs(**inputs).logits)  # transformers computes a longer table, and so do we


def test_a_decoder_alone_passes_over_its_cross_attention() -> None:
    case = BY_ID["MarianForCausalLM"]
    inputs = {k: v for k, v in make_inputs(case).items() if k != "encoder_hidden_states"}
    theirs, mine = both(case, **inputs)
    close(mine, theirs)


@pytest.mark.parametrize("name", ["MarianModel", "MarianMTModel", "FSMTForConditionalGeneration"])
def test_what_can_be_computed_may_be_left_out(name: str, tmp_path) -> None:
    case = BY_ID[name]
    tensors = load_file(folder(case) / "model.safetensors")
    kept = {n: t for n, t in tensors.items() if "embed_positions" not in n and n != "final_logits_bias"}
    save_file(kept, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder(case) / "config.json").read_text())
    model, fresh = af.load(tmp_path), af.build(shared(case).spec)
    for place in ("embedding", "decoder_embedding"):
        table = model.get_parameter(f"{place}.position.weight")
        assert torch.equal(table, fresh.get_parameter(f"{place}.position.weight")) and not table.requires_grad
    if case.model_type == "marian":
        assert name != "MarianMTModel" or not model.head.offset.any()
        prefix = "model." if name == "MarianMTModel" else ""
        close(table, published(case)[0].state_dict()[f"{prefix}encoder.embed_positions.weight"])


def test_an_old_checkpoint_has_every_name_of_a_tied_table(tmp_path) -> None:
    case = BY_ID["MarianMTModel"]
    tensors = {n: t.clone() for n, t in published(case)[0].state_dict().items()}  # including tied copies and positions
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder(case) / "config.json").read_text())
    again, model = af.load(tmp_path), shared(case)
    assert all(torch.equal(t, model.state_dict()[n]) for n, t in again.state_dict().items())


def test_an_opus_config_as_published() -> None:
    old = {
        "add_bias_logits": False, "add_final_layer_norm": False, "bad_words_ids": [[98]], "classif_dropout": 0.0,
        "classifier_dropout": 0.0, "normalize_before": False, "normalize_embedding": False, "num_hidden_layers": 2,
        "static_position_embeddings": True, "extra_pos_embeddings": 98, "gradient_checkpointing": False, "num_beams": 6,
        "max_length": 512, "_num_labels": 3, "bos_token_id": 0, "forced_eos_token_id": 0, "is_encoder_decoder": True,
    }  # fmt: skip
    family = families.find("marian")
    spec = family.read({**MARIAN, **old})
    assert spec.replace(source={}) == family.read(MARIAN).replace(source={})
    assert set(old) - {"num_hidden_layers"} <= set(family.write(spec))


def test_layers_are_dropped_in_training() -> None:
    spec = families.find("marian").read({**MARIAN, **ODD, "dropout": 0.0, "encoder_layerdrop": 0.9})
    model, inputs = af.build(spec).train(), make_inputs(BY_ID["MarianMTModel"])
    assert len({float(model(**inputs).logits.detach().sum()) for _ in range(8)}) > 1
