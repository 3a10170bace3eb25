"""A user's mistake in Python raises ValueError, TypeError or FileNotFoundError with one line that names the wrong
input, never an error from inside torch."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer import families

V, T = 50, 6
BERT = {"num_hidden_layers": 1, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40, "vocab_size": V,
        "max_position_embeddings": 16}  # fmt: skip
SOUND = {"vocab_size": 23, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 40,
         "conv_dim": [12, 16, 24], "conv_stride": [5, 2, 2], "conv_kernel": [10, 3, 2], "num_conv_pos_embeddings": 8,
         "num_conv_pos_embedding_groups": 4, "conv_depthwise_kernel_size": 7}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "writer": ("gpt2", {"n_layer": 1, "n_embd": 24, "n_head": 3, "vocab_size": V, "n_positions": 16,
                        "architectures": ["GPT2LMHeadModel"]}),
    "double": ("openai-gpt", {"n_layer": 1, "n_embd": 24, "n_head": 3, "vocab_size": V, "n_positions": 16,
                              "summary_proj_to_labels": False, "architectures": ["OpenAIGPTDoubleHeadsModel"]}),
    "pair": ("t5", {"num_layers": 1, "d_model": 24, "d_kv": 8, "num_heads": 3, "d_ff": 40, "vocab_size": V,
                    "decoder_start_token_id": 0, "architectures": ["T5ForConditionalGeneration"]}),
    "masked": ("bert", {**BERT, "architectures": ["BertForMaskedLM"]}),
    "pretraining": ("bert", {**BERT, "architectures": ["BertForPreTraining"]}),
    "next": ("bert", {**BERT, "architectures": ["BertForNextSentencePrediction"]}),
    "classes": ("bert", {**BERT, "architectures": ["BertForSequenceClassification"], "num_labels": 3}),
    "number": ("bert", {**BERT, "architectures": ["BertForSequenceClassification"], "num_labels": 1}),
    "several": ("bert", {**BERT, "architectures": ["BertForSequenceClassification"], "num_labels": 3,
                         "problem_type": "multi_label_classification"}),
    "choice": ("bert", {**BERT, "architectures": ["BertForMultipleChoice"]}),
    "tags": ("bert", {**BERT, "architectures": ["BertForTokenClassification"], "num_labels": 3}),
    "span": ("bert", {**BERT, "architectures": ["BertForQuestionAnswering"]}),
    "replaced": ("electra", {**BERT, "embedding_size": 24, "architectures": ["ElectraForPreTraining"]}),
    "letters": ("wav2vec2-conformer", {**SOUND, "architectures": ["Wav2Vec2ConformerForCTC"]}),
    "frames": ("wav2vec2-conformer", {**SOUND, "architectures": ["Wav2Vec2ConformerForAudioFrameClassification"]}),
    "global": ("longformer", {**BERT, "attention_window": 4, "architectures": ["LongformerForMaskedLM"]}),
}  # fmt: skip


@functools.cache
def model(name: str) -> Any:
    family, config = MODELS[name]
    return af.build(families.find(family).read(config), seed=0).eval()


ids = torch.arange(2 * T).view(2, T) + 5
one = torch.ones(2, T)
long = torch.long
sound = torch.randn(2, 613, generator=torch.Generator().manual_seed(0))


def full(*shape: int, value: int = 1) -> torch.Tensor:
    return torch.full(shape, value)


GOOD: dict[str, dict[str, Any]] = {
    "writer": {"input_ids": ids, "labels": ids},
    "double": {"input_ids": ids, "labels": ids, "mc_labels": full(2)},
    "pair": {"input_ids": ids, "labels": ids},
    "masked": {"input_ids": ids, "labels": ids},
    "pretraining": {"input_ids": ids, "labels": ids, "next_sentence_label": full(2)},
    "next": {"input_ids": ids, "labels": full(2)},
    "classes": {"input_ids": ids, "labels": full(2)},
    "number": {"input_ids": ids, "labels": full(2)},
    "several": {"input_ids": ids, "labels": full(2, 3)},
    "choice": {"input_ids": ids[None].expand(2, -1, -1), "labels": full(2)},
    "tags": {"input_ids": ids, "labels": full(2, T)},
    "span": {"input_ids": ids, "start_positions": full(2), "end_positions": full(2)},
    "replaced": {"input_ids": ids, "labels": full(2, T)},
    "letters": {"input_values": sound, "labels": full(2, 3)},
    "frames": {"input_values": sound, "labels": torch.rand(2, 30, 2)},
    "global": {"input_ids": ids, "labels": ids, "attention_mask": full(2, T, value=2)},
}


@pytest.mark.parametrize("name", MODELS)
def test_what_the_mistakes_are_made_from_is_right(name: str) -> None:
    assert any(math.isfinite(value.item()) for key, value in model(name)(**GOOD[name]).items() if "loss" in key)


# (model, changed inputs, regular expression of the message)
CALLS: list[tuple[str, dict[str, Any], str]] = [
    # ids
    ("writer", {"input_ids": ids.float()}, "input_ids.*integers.* got torch.float32"),
    ("writer", {"input_ids": ids.bool()}, "input_ids.*integers.* got torch.bool"),
    ("writer", {"input_ids": ids.short()}, "input_ids.*integers.*int64.* got torch.int16"),
    ("writer", {"input_ids": ids.tolist()}, "input_ids.*tensor, got a list"),
    ("writer", {"input_ids": [[10**30]]}, "input_ids.*tensor, got a list"),
    ("writer", {"input_ids": "some text"}, "input_ids.*tensor, got a str"),
    ("writer", {"input_ids": ids[0]}, r"input_ids must be \(batch, tokens\).* got \(6,\)"),
    ("writer", {"input_ids": ids[:, :0]}, r"input_ids.*one token, got \(2, 0\)"),
    ("writer", {"input_ids": ids + V}, r"token id \d+ .* 50"),
    ("writer", {"input_ids": -ids}, "token id -16 .* 50"),
    ("pair", {"decoder_input_ids": ids.float()}, "decoder_input_ids.*integers"),
    # embeddings instead of ids
    ("writer", {"input_ids": None, "inputs_embeds": torch.zeros(2, T, 25)}, r"\(batch, tokens, 24\), got \(2, 6, 25\)"),
    ("writer", {"input_ids": None, "inputs_embeds": torch.zeros(2, 24)}, r"\(batch, tokens, 24\), got \(2, 24\)"),
    ("writer", {"input_ids": None, "inputs_embeds": full(2, T, 24)}, "inputs_embeds.*floating-point"),
    ("writer", {"inputs_embeds": torch.zeros(2, T, 24)}, "one of input_ids and inputs_embeds"),
    ("letters", {"input_values": sound.long()}, "input_values.*floating-point"),
    # masks
    ("writer", {"attention_mask": one[:, 1:]}, r"attention_mask .*\(batch 2, 6 tokens\), got \(2, 5\)"),
    ("writer", {"attention_mask": one[:, None]}, r"attention_mask .*\(batch, tokens\), got \(2, 1, 6\)"),
    ("writer", {"attention_mask": 2 * one}, "attention_mask.* got 2.0"),
    ("writer", {"attention_mask": one.long() * 2}, "attention_mask.* got 2"),
    ("writer", {"attention_mask": one * math.nan}, "attention_mask.* got nan"),
    ("writer", {"attention_mask": (1 - one) * -1e4 - 1}, "attention_mask.* got -1.0"),
    ("writer", {"attention_mask": one.tolist()}, "attention_mask.*tensor, got a list"),
    ("writer", {"attention_mask": one.cfloat()}, "attention_mask.*0 and 1.* got torch.complex64"),
    ("pair", {"attention_mask": 3 * one}, "attention_mask.* got 3.0"),
    ("letters", {"attention_mask": torch.full((2, 613), 0.5)}, "attention_mask.* got 0.5"),
    ("global", {"attention_mask": 3 * one}, "attention_mask.* got 3.0"),
    # other inputs
    ("masked", {"token_type_ids": full(2, T, value=2)}, r"token_type_ids: 2 .*0 and 1 \(segments=2\)"),
    ("masked", {"token_type_ids": full(2, T - 1)}, r"token_type_ids.*shape \(2, 6\).* got \(2, 5\)"),
    ("writer", {"position_ids": full(3)}, r"position_ids.*shape \(6,\) or .* got \(3,\)"),
    ("writer", {"position_ids": full(2, T).float()}, "position_ids.*integers"),
    ("writer", {"document_ids": full(T)}, r"document_ids.*shape \(2, 6\).*got \(6,\)"),
    ("writer", {"input_idx": ids}, "no input 'input_idx'; did you mean 'input_ids'"),
    ("writer", {"use_cache": "yes"}, "use_cache.*True or False, got 'yes'"),
    ("writer", {"use_cache": 1}, "use_cache.*True or False, got 1"),
    ("writer", {"output_attentions": "/a/path"}, "output_attentions.*True or False, got '/a/path'"),
    ("writer", {"past_key_values": ()}, "past_key_values.*state.*got a tuple"),
    ("pair", {"encoder_outputs": 3}, "encoder_outputs .* got 3"),
    # labels, for every head
    ("writer", {"labels": ids + V}, r"labels: \d+ .*0 to 49.* -100 "),
    ("writer", {"labels": full(2, T, value=-1)}, "labels: -1 .*0 to 49"),
    ("writer", {"labels": ids.float()}, "labels.*integers.* got torch.float32"),
    ("writer", {"labels": ids[:, 1:]}, r"labels.*shape \(2, 6\).*got \(2, 5\)"),
    ("writer", {"labels": ids[0]}, r"labels.*shape \(2, 6\).*got \(6,\)"),
    ("writer", {"labels": ids.tolist()}, "labels.*tensor, got a list"),
    ("double", {"labels": ids[0]}, r"labels.*shape \(2, 6\).*got \(6,\)"),
    ("double", {"mc_labels": full(2, value=99)}, r"mc_labels: 99 .*0 to \d"),
    ("pair", {"labels": ids.float()}, r"labels .*\(batch, tokens\), got torch.float32"),
    ("pair", {"labels": ids[0]}, r"labels .*\(batch, tokens\), got torch.int64 of shape \(6,\)"),
    ("pair", {"labels": ids + V}, "is outside"),
    ("masked", {"labels": ids.T}, r"labels.*shape \(2, 6\).*got \(6, 2\)"),
    ("pretraining", {"next_sentence_label": full(2, value=2)}, "next_sentence_label: 2 .*0 to 1"),
    ("next", {"labels": full(2, value=7)}, "labels: 7 .*0 to 1"),
    ("classes", {"labels": full(2, value=3)}, "labels: 3 .*0 to 2"),
    ("classes", {"labels": full(3)}, r"labels.*shape \(2,\) or \(2, 1\).*got \(3,\)"),
    ("classes", {"labels": full(2).float()}, r"labels.*shape \(2, 3\).*got \(2,\)"),
    ("number", {"labels": full(3).float()}, r"labels.*shape \(2,\) or \(2, 1\).*got \(3,\)"),
    ("several", {"labels": full(2, 2).float()}, r"labels.*shape \(2, 3\).*got \(2, 2\)"),
    ("choice", {"labels": full(2, value=2)}, "labels: 2 .*0 to 1"),
    ("choice", {"labels": full(4)}, r"labels.*shape \(2,\) or \(2, 1\).*got \(4,\)"),
    ("choice", {"input_ids": ids}, r"inputs of shape \(batch, choices, tokens\)"),
    ("tags", {"labels": full(2, T, value=3)}, "labels: 3 .*0 to 2"),
    ("tags", {"labels": full(2)}, r"labels.*shape \(2, 6\).*got \(2,\)"),
    ("tags", {"labels": full(2, T).bool()}, "labels.*integers"),
    ("span", {"start_positions": full(3)}, r"start_positions.*shape \(2,\) or \(2, 1\).*got \(3,\)"),
    ("span", {"end_positions": full(2).float()}, "end_positions.*integers"),
    ("replaced", {"labels": full(2)}, r"labels.*shape \(2, 6\).*got \(2,\)"),
    ("letters", {"labels": full(2, 3, value=23)}, "labels: 23 .* 23"),
    ("letters", {"labels": full(3, 3)}, r"labels.*shape \(2, 3\).*got \(3, 3\)"),
    ("letters", {"labels": full(2, 3).float()}, "labels.*integers"),
    ("letters", {"labels": full(5)}, "labels.*shape"),
    ("frames", {"labels": torch.rand(2, 30)}, r"labels.*shape \(2, 30, 2\).*got \(2, 30\)"),
]


@pytest.mark.parametrize(("name", "given", "sentence"), CALLS, ids=lambda value: value if type(value) is str else "")
def test_a_mistake_in_a_call(name: str, given: dict[str, Any], sentence: str) -> None:
    with pytest.raises((ValueError, TypeError), match=sentence) as caught:
        model(name)(**{**GOOD[name], **given})
    assert "\n" not in str(caught.value)


def test_more_inputs_than_there_are() -> None:
    with pytest.raises(ValueError, match=r"20 positional inputs.* at most \d"):
        model("writer")(*[ids] * 20)


def gpt2(**changes: Any) -> Any:
    return families.find("gpt2").read({**MODELS["writer"][1], **changes})


def gpt2_model() -> Any:
    return af.build(gpt2(), seed=0)


EPS, OP = "decoder.norm.eps", "decoder.layers.feedforward.op"
# (code, regular expression of the message); `folder` is an empty folder and `file` a file in it
CODE: list[tuple[str, str]] = [
    ("af.spec(5)", "expected the name or path of a description, got int"),
    ("af.spec(None)", "expected the name or path of a description, got NoneType"),
    ("af.spec({'kind': 'DecoderModel'})", "name or path of a description, got dict"),
    ("af.spec('gtp2')", "did you mean 'gpt2'"),
    ("af.spec(folder / 'none.json')", "none.json: no such file"),
    ("af.override(gpt2(), [('width', 3)])", r"changes must be \{path: value\}"),
    ("af.override(gpt2(), 'width=3')", r"changes must be \{path: value\}"),
    ("af.override(gpt2(), {3: 4})", r"changes must be \{path: value\}"),
    ("af.override('gpt2', {'width': 3})", "expected a description from af.spec, got str"),
    ("af.override(gpt2(), {'': 3})", "no '' in this DecoderModel"),
    ("af.override(gpt2(), {EPS: float('inf')})", "decoder.norm.eps: expected a finite number, got inf"),
    ("af.override(gpt2(), {EPS: float('nan')})", "decoder.norm.eps: expected a finite number, got nan"),
    ("af.override(gpt2(), {EPS: -1.0})", "decoder.norm.eps.* -1.0.* at least 0"),
    ("af.override(gpt2(), {EPS: 10**400})", "decoder.norm.eps: expected a finite number, got 1000"),
    ("af.override(gpt2(), {OP: {'kind': 'LayerNorm'}})", r"^decoder.layers.feedforward.op: LayerNorm .*\bOp\b.*MLP"),
    ("af.override(gpt2(), {OP: {'kind': 'RMSNorm'}})", r"^decoder.layers.feedforward.op: RMSNorm .*\bOp\b.*MLP"),
    ("af.override(gpt2(), {OP: {'kind': 'TopK', 'top_k': 1}})", r"^decoder.layers.feedforward.op: TopK .*\bOp\b.*MLP"),
    ("af.override(gpt2(), {OP: 3})", "decoder.layers.feedforward.op: expected Op, got 3"),
    ("af.override(gpt2(), {'decoder.layers.attention.pre_norm': {'kind': 'MLP', 'width': 3}})",
     r"^decoder.layers.attention.pre_norm: MLP .*\bNorm\b.*RMSNorm"),
    ("af.override(gpt2(), {'decoder.norm.bias': '/a/path'})", "decoder.norm.bias: expected bool, got '/a/path'"),
    ("af.override(gpt2(), {'decoder.layers.attention.dropout': float('nan')})", "attention.dropout: .* finite .* nan"),
    ("gpt2(layer_norm_epsilon=math.inf)", "layer_norm_epsilon=inf .*finite"),
    ("gpt2(layer_norm_epsilon='/a/path')", "layer_norm_epsilon='/a/path' .*number"),
    ("af.build({'kind': 'DecoderModel'})", "expected a model description from af.spec, got dict"),
    ("af.build('gpt2')", "expected a model description from af.spec, got str"),
    ("af.build(gpt2(), seed='a')", "seed must be an integer, got 'a'"),
    ("af.build(gpt2(), dtype='float16')", "dtype .*torch.bfloat16.* 'float16'"),
    ("af.build(gpt2(), dtype=torch.int8)", "dtype .*torch.bfloat16.* torch.int8"),
    ("af.count('gpt2')", "expected a model description from af.spec, got str"),
    ("af.save(model('writer'), file)", "is a file, not a folder"),
    ("af.save(model('writer'), 5)", "expected the path of a folder, got 5"),
    ("af.save(gpt2(), folder)", "expected a model from af.build or af.load, got DecoderModel"),
    ("af.save(model('writer'), folder, format='onnx')", "unknown format 'onnx'"),
    ("af.load(folder / 'none')", "none: no such folder"),
    ("af.load(folder)", "no spec.json and no config.json in this folder"),
    ("af.load(file)", "is a file: pass the folder of the model"),
    ("af.load(5)", "expected the folder or hub id of a model, got int"),
    ("af.load(None)", "expected the folder or hub id of a model, got NoneType"),
    ("af.load(saved, dtype='float8')", "dtype 'float8' is not supported"),
    ("af.load(saved, dtype=torch.int64)", "dtype torch.int64 is not supported"),
    ("af.generate('gpt2', ids)", "expected a model from af.build or af.load, got str"),
    ("af.generate(model('writer'), ids.tolist())", "input_ids.*tensor, got a list"),
    ("af.generate(model('writer'), ids.float())", "input_ids.*integers"),
    ("af.generate(model('writer'), ids, attention_mask=one.tolist())", "attention_mask.*tensor, got a list"),
    ("af.generate(model('writer'), ids, attention_mask=2 * one)", "attention_mask.* got 2.0"),
    ("af.generate(model('writer'), ids, past_key_values=[])", "past_key_values.*state"),
    ("af.generate(model('writer'), 'a text')", "input_ids.*tensor, got a str"),
    ("af.generate(model('classes'), ids)", "has no language-model head"),
    ("af.generate(model('writer'), ids, max_new_tokens='5')", "max_new_tokens='5': .*whole number"),
    ("af.generate(model('writer'), ids, use_cache='yes')", "use_cache='yes': .*True or False"),
    ("af.lora.LoRA(rank=0)", "LoRA.rank.* 0.* at least 1"),
    ("af.lora.apply(gpt2_model(), af.lora.LoRA(targets=('*.query',)))", "no linear layer matches '\\*.query'"),
    ("af.lora.merge(model('writer'))", "this model has no adapters"),
    ("af.save(model('writer'), folder / 'new', format='peft')", "this model has no adapters"),
    ("af.load(saved, base=saved)", "base= is only for adapters"),
    ("af.trace(model('writer'), keep=['decoder.layer.*'], input_ids=ids)", r"'decoder\.layer\.\*'"),
    ("af.trace('gpt2', keep=['*'], input_ids=ids)", "cannot trace str; .*af.build or af.load"),
    ("af.processor(folder)", "no tokenizer|nothing"),
    ("af.processor(5)", "got int"),
    ("af.tasks.write(model('writer'), 'Once')", "tokenizer"),
    ("af.tasks.write('nowhere/at/all', 'Once')", "no such folder"),
    ("af.tasks.write(5, 'Once')", "model .*folder.*hub id.* got int"),
    ("af.parts.MLP(widht=3)", "widht"),
    ("af.parts.MLP(width=3, activation='rleu')", "did you mean 'relu'"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "sentence"), CODE, ids=[code for code, _ in CODE])
def test_a_mistake_in_code(code: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    names = {**globals(), "folder": tmp_path, "file": file}
    if "saved" in code:
        names["saved"] = tmp_path / "saved"
        af.save(model("writer"), names["saved"])
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=sentence) as caught:
        eval(code, names)
    assert "\n" not in str(caught.value)
