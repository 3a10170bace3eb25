"""Features that only encoder-decoders have: given encoder outputs, shifted labels, ties."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from catalogue import (
    Case,
    cases,
    close,
    folder,
    is_encoder_decoder,
    make_inputs,
    mask_for,
    over,
    published,
    settings,
    shared,
    spec_of,
)
from safetensors.torch import load_file, save_file

import anyformer as af
from anyformer.models import LastTokenStartModel
from anyformer.parts.head.classify import ClassifyHead
from anyformer.parts.head.language import LMHead

PAIRS = [case for case in cases() if is_encoder_decoder(spec_of(case))]
over_pairs = over(PAIRS, settings)


@over_pairs
@torch.no_grad()
def test_outputs_come_in_the_published_order(case: Case) -> None:
    inputs = make_inputs(case, labels=True)
    asked = {"output_hidden_states": True, "output_attentions": True}
    for more in ({}, asked):
        theirs, mine = published(case)[0](**inputs, **more), shared(case)(**inputs, **more)
        assert {*mine} == {*theirs}
        assert [n for n in mine if n != "past_key_values"] == [n for n in theirs if n != "past_key_values"]
    values = shared(case)(**inputs, return_dict=False)
    assert isinstance(values, tuple) and torch.equal(values[0], shared(case)(**inputs)[0])


@over_pairs
@torch.no_grad()
def test_encoder_outputs_in_every_form(case: Case) -> None:
    theirs, mine = published(case)[0], shared(case)
    inputs = make_inputs(case)
    if isinstance(spec_of(case).head, ClassifyHead):
        with pytest.raises(ValueError, match="input_ids"):
            mine(decoder_input_ids=inputs["input_ids"], encoder_outputs=torch.zeros(2, 5, spec_of(case).width))
        pytest.skip("the end of the text is found in input_ids, by the published class too")
    inputs["attention_mask"] = mask_for(spec_of(case), inputs)
    inputs["attention_mask"][1, -5:] = 0
    expected = mine(**inputs)
    name = spec_of(case).embedding.inputs[0]
    source = {name: inputs.pop(name)}
    read = getattr(theirs, "encoder", None) or theirs.get_encoder()
    read = read(**source, attention_mask=inputs["attention_mask"], output_hidden_states=True)
    for given in (read, (read[0],), read[0], (read[0], read.hidden_states)):
        out = mine(**inputs, encoder_outputs=given)
        close(out[0], expected[0])
        close(out.encoder_last_hidden_state, read[0])
        if isinstance(given, torch.Tensor) or len(given) == 1:
            assert out.encoder_hidden_states is None
        else:
            assert len(out.encoder_hidden_states) == len(read.hidden_states)


@over_pairs
@torch.no_grad()
def test_decoder_reads_moved_labels(case: Case) -> None:
    spec, theirs, mine = spec_of(case), published(case)[0], shared(case)
    if isinstance(spec, LastTokenStartModel):
        pytest.skip("the published class reads the source here, which has another vocabulary and length")
    inputs = make_inputs(case, labels=True)
    del inputs["decoder_input_ids"]
    if not isinstance(spec.head, LMHead) and not spec.reads_source:
        with pytest.raises(ValueError, match="decoder_input_ids"):
            mine(**inputs)
        return
    expected, found = theirs(**inputs), mine(**inputs)
    if spec.head is None:
        return close(found[0], expected[0])
    close(found.loss, expected.loss)
    close(found[1], expected[1])


@torch.no_grad()
def test_moved_labels_start_again_in_each_document() -> None:
    case = next(case for case in PAIRS if case.id == "T5ForConditionalGeneration-odd")
    model, inputs = shared(case), make_inputs(case, batch=1, length=12)
    documents = torch.tensor([[0] * 5 + [1] * 7])
    labels = inputs["input_ids"]
    out = model(input_ids=labels, labels=labels, document_ids=documents, decoder_document_ids=documents)
    for part in (slice(0, 5), slice(5, 12)):
        close(out.logits[:, part], model(input_ids=labels[:, part], labels=labels[:, part]).logits)


@pytest.mark.parametrize("form", ["old", "new"])
def test_a_checkpoint_with_an_output_matrix_of_its_own_is_not_tied(form: str, tmp_path) -> None:
    """T5 1.1: old configs are untied, configs written by transformers 5 are tied; both store the matrix."""
    import transformers

    case = next(case for case in PAIRS if case.id == "T5ForConditionalGeneration-v1.1")
    shutil.copytree(folder(case), tmp_path / "m")
    tensors, config = load_file(tmp_path / "m/model.safetensors"), json.loads((tmp_path / "m/config.json").read_text())
    tensors["lm_head.weight"] = torch.randn(99, 32, generator=torch.Generator().manual_seed(9)) / 6
    tensors["encoder.embed_tokens.weight"] = tensors["shared.weight"].clone()
    tensors["decoder.embed_tokens.weight"] = tensors["shared.weight"].clone()
    tensors["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = torch.zeros(32, 4)
    save_file(tensors, tmp_path / "m/model.safetensors", metadata={"format": "pt"})
    if form == "old":
        del config["scale_decoder_outputs"]
        config |= {"tie_word_embeddings": False, "n_positions": 512, "output_past": True}
    (tmp_path / "m/config.json").write_text(json.dumps(config))
    mine, inputs = af.load(tmp_path / "m"), make_inputs(case)
    assert torch.equal(mine.head.out.weight, tensors["lm_head.weight"])
    assert mine.spec.ties == (("decoder_embedding.tokens.weight", "embedding.tokens.weight"),)
    af.save(mine, tmp_path / "ours")
    af.save(mine, tmp_path / "hf", format="hf")
    for name in ("m", "hf"):
        theirs = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / name).eval()
        for model in (mine, af.load(tmp_path / "ours"), af.load(tmp_path / "hf")):
            with torch.no_grad():
                close(model(**inputs).logits, theirs(**inputs).logits)


def test_t5_starts_as_published() -> None:
    """The std of every initial matrix equals transformers'."""
    import transformers

    size = {"vocab_size": 500, "d_model": 96, "d_kv": 40, "d_ff": 300, "num_layers": 1, "num_heads": 3}
    for name in ("T5ForConditionalGeneration", "T5ForQuestionAnswering", "T5ForTokenClassification"):
        config = {**size, "initializer_factor": 0.5, "feed_forward_proj": "gated-silu"}
        theirs = getattr(transformers, name)(transformers.T5Config(**config))
        family = af.families.find("t5")
        spec = family.read({**config, "architectures": [name]})
        mine = dict(af.build(spec, seed=0).named_parameters())
        from anyformer.weights.rules import plan

        state = theirs.state_dict()
        for step in plan(family.rules(spec), mine, family.prefix_of(name))[0]:
            tensor, other = mine[step.targets[0]], state[step.sources[0]]
            spread = 5 / max(tensor.numel(), 1) ** 0.5
            scale = float(other.pow(2).mean().sqrt())
            found = float(tensor.detach().pow(2).mean().sqrt())
            assert abs(found - scale) <= spread * scale + 1e-9, (step.sources[0], found, scale)


def test_labels_after_their_last_token() -> None:
    fsmt = pytest.importorskip("transformers.models.fsmt.modeling_fsmt")
    model = shared(next(case for case in PAIRS if case.id == "FSMTForConditionalGeneration"))
    pad = model.spec.padding_token
    labels = torch.tensor([[5, 6, 7, pad], [8, 9, pad, pad]])
    expected = fsmt.shift_tokens_right(labels, pad)
    for given in (labels, labels.masked_fill(labels == pad, -100)):
        assert torch.equal(model.shift_right(given), expected)
    with pytest.raises(ValueError, match="packed documents need decoder_input_ids"):
        model.shift_right(labels, torch.zeros_like(labels))
