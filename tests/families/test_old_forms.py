"""Checkpoints as published in 2018 and 2019: no model_type, old names, pickles. Compared with transformers, which opens
the same folders."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from catalogue import Case, every_case, folder, make_inputs, randomise
from safetensors.torch import load_file, save_file
from test_loading import compare
from torch import Tensor

import anyformer as af
from anyformer import families
from anyformer.weights import pickled_weights

transformers = pytest.importorskip("transformers")

# fields of every config of 2019
YEAR = {"output_attentions": False, "output_hidden_states": False, "pruned_heads": {}, "torchscript": False,
        "use_bfloat16": False, "finetuning_task": None, "num_labels": 2, "output_past": True}  # fmt: skip
BERT = {"vocab_size": 33, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
        "max_position_embeddings": 20, "type_vocab_size": 2, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1, "initializer_range": 0.02}  # fmt: skip
GPT2 = {"vocab_size": 33, "n_positions": 20, "n_ctx": 20, "n_embd": 16, "n_layer": 2, "n_head": 2, "attn_pdrop": 0.1,
        "resid_pdrop": 0.1, "embd_pdrop": 0.1, "layer_norm_epsilon": 1e-5, "initializer_range": 0.02,
        "summary_type": "cls_index", "summary_use_proj": True, "summary_activation": None,
        "summary_proj_to_labels": True, "summary_first_dropout": 0.1}  # fmt: skip
DISTILBERT = {"vocab_size": 33, "max_position_embeddings": 20, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24,
              "dropout": 0.1, "attention_dropout": 0.1, "activation": "gelu", "initializer_range": 0.02,
              "qa_dropout": 0.1, "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": False,
              "tie_weights_": True}  # fmt: skip
T5 = {"vocab_size": 33, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "n_positions": 512,
      "relative_attention_num_buckets": 8, "dropout_rate": 0.1, "layer_norm_epsilon": 1e-6, "initializer_factor": 1.0,
      "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1, "is_encoder_decoder": True}  # fmt: skip
Weights = dict[str, Tensor]


def tensorflow_names(held: Weights) -> Weights:
    ends = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}

    def old(name: str) -> str:
        return next((name.removesuffix(end) + ends[end] for end in ends if name.endswith(end)), name)

    return {old(name): tensor for name, tensor in held.items()}


def without(ending: str) -> Callable[[Weights], Weights]:
    return lambda held: {name: tensor for name, tensor in held.items() if not name.endswith(ending)}


def bare_gpt2(held: Weights) -> Weights:
    """No prefix, no head, and the causal mask as a buffer."""
    held = {name.removeprefix("transformer."): tensor for name, tensor in held.items() if name != "lm_head.weight"}
    return held | {f"h.{i}.attn.bias": torch.ones(20, 20).tril()[None, None] for i in range(2)}


def roberta_leftovers(held: Weights) -> Weights:
    """An unused pooler, and positions as a tensor."""
    held = {**held, "roberta.pooler.dense.weight": torch.randn(16, 16), "roberta.pooler.dense.bias": torch.randn(16)}
    assert "lm_head.decoder.bias" in held and "lm_head.decoder.weight" in held
    return held | {"roberta.embeddings.position_ids": torch.arange(20)[None]}


def t5_leftovers(held: Weights) -> Weights:
    """One table under three names, and an unused bias."""
    bias = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    assert {"shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"} <= held.keys()
    return {**held, bias: torch.randn(8, 2)}


@dataclasses.dataclass(frozen=True)
class Form:
    """A published class, its config file of the time, and the format of its weights."""

    architecture: str
    config: dict[str, Any]
    age: Callable[[Weights], Weights] = dict
    file: str = "config.json"
    zipped: bool = False  # torch writes zip files since 1.6
    wrap: str = ""
    named: str | None = None  # the class, if nothing in the folder names it


FORMS = {
    "bert": Form("BertForPreTraining", {**BERT, **YEAR, "layer_norm_eps": 1e-12}, tensorflow_names),
    "bert-google": Form("BertForPreTraining", BERT, tensorflow_names, file="bert_config.json"),
    "bert-masked": Form("BertForMaskedLM", {**BERT, **YEAR}, without("decoder.bias"), zipped=True),
    "bert-labels": Form("BertForSequenceClassification", {**BERT, **YEAR, "num_labels": 5}),
    "bert-next": Form("BertForNextSentencePrediction", {**BERT, **YEAR}, zipped=True),
    "bert-bare": Form("BertModel", {**BERT, **YEAR}, named="BertModel"),
    "bert-wrapped": Form("BertForMaskedLM", {**BERT, **YEAR}, wrap="state_dict"),
    "gpt2": Form("GPT2LMHeadModel", {**GPT2, **YEAR}, bare_gpt2),
    "gpt2-base": Form("GPT2Model", {**GPT2, **YEAR}, named="GPT2Model", zipped=True),
    "roberta": Form(
        "RobertaForMaskedLM", {**BERT, **YEAR, "type_vocab_size": 1, "layer_norm_eps": 1e-5}, roberta_leftovers
    ),
    "distilbert": Form("DistilBertForMaskedLM", {**DISTILBERT, **YEAR}),
    "distilbert-classes": Form("DistilBertForSequenceClassification", {**DISTILBERT, **YEAR, "num_labels": 3}),
    "t5": Form("T5ForConditionalGeneration", {**T5, **YEAR}, t5_leftovers),
}  # fmt: skip


def written(form: Form, target: Path) -> Path:
    """Return the folder in its published form, with random weights."""
    kind = getattr(transformers, form.architecture)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = kind(kind.config_class(**form.config))
    randomise(model)
    held: Any = form.age(model.state_dict())
    target.mkdir()
    (target / form.file).write_text(json.dumps(form.config))
    stored = {"epoch": 1, form.wrap: held} if form.wrap else held
    torch.save(stored, target / "pytorch_model.bin", _use_new_zipfile_serialization=form.zipped)
    return target


def opened(form: Form, source: Path, target: Path) -> Any:
    """Do what `anyformer convert --unpickle` does, without the separate process, which tests/weights tests."""
    held = pickled_weights.tensors_in(str(source / "pytorch_model.bin"))
    target.mkdir()
    save_file({name: tensor.clone() for name, tensor in held.items()}, target / "model.safetensors")
    return af.load(source, weights=target, architecture=form.named)


LATER = FORMS.keys() - {"bert", "bert-masked", "bert-wrapped", "gpt2", "t5"}  # one of each way to name and to store


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in LATER)) for n in FORMS])
def test_the_forms_of_2019_equal_transformers(name: str, tmp_path: Path) -> None:
    form = FORMS[name]
    source = written(form, tmp_path / "old")
    ours = opened(form, source, tmp_path / "weights")
    assert ours.spec.architecture == form.architecture
    kind = getattr(transformers, form.architecture)
    config = kind.config_class.from_json_file(source / form.file)
    if form.wrap:
        torch.save(torch.load(source / "pytorch_model.bin")[form.wrap], source / "pytorch_model.bin")
    theirs, report = kind.from_pretrained(source, config=config, output_loading_info=True, attn_implementation="eager")
    assert not report["missing_keys"]
    theirs.eval()
    case = Case(families.find(ours.spec.family).name, form.architecture, form.config)
    for labels in (False, True):
        inputs = make_inputs(case, labels=labels)
        with torch.no_grad():
            expected = theirs(**inputs, output_hidden_states=True, output_attentions=True)
            compare(expected, ours(**inputs, output_hidden_states=True, output_attentions=True))
    af.save(ours, tmp_path / "new", format="hf")
    again = json.loads((tmp_path / "new" / "config.json").read_text())
    assert again["architectures"] == [form.architecture] and again["model_type"] == ours.spec.family
    assert {n: again.get(n) for n in form.config} == form.config  # every field of the old file survives


# -- which class it is -------------------------------------------------------------------------------------------------


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    """A current BertForPreTraining whose config names neither class nor family."""
    case = next(case for case in every_case() if case.architecture == "BertForPreTraining")
    return unnamed(case, tmp_path)


def unnamed(case: Case, target: Path) -> Path:
    config = json.loads((folder(case) / "config.json").read_text())
    config = {n: v for n, v in config.items() if n not in ("model_type", "architectures")}
    (target / "config.json").write_text(json.dumps(config))
    (weights,) = folder(case).glob("*.safetensors")
    (target / weights.name).write_bytes(weights.read_bytes())
    return target


@pytest.mark.slow
def test_another_class_of_the_same_folder(bert: Path) -> None:
    assert af.load(bert).spec.architecture == "BertForPreTraining"
    assert af.spec(bert).architecture == "BertForPreTraining"
    masked = af.load(bert, architecture="BertForMaskedLM")  # leftovers are declared
    assert masked.spec.architecture == "BertForMaskedLM"
    line = r"missing classifier.weight \(here head.out.weight.*unexpected cls.predictions"
    with pytest.raises(ValueError, match=line):
        af.load(bert, architecture="BertForSequenceClassification")
    model, report = af.load(bert, architecture="BertForSequenceClassification", strict=False)
    assert "head.out.weight" in report.missing and model.spec.architecture == "BertForSequenceClassification"
    with pytest.raises(ValueError, match="did you mean 'BertForPreTraining'"):
        af.load(bert, architecture="BertForPretraining")


@pytest.mark.slow
def test_tensors_that_fit_two_families_or_none_are_refused(bert: Path) -> None:
    file = bert / "model.safetensors"
    held = load_file(file)
    body = {name.removeprefix("bert."): tensor for name, tensor in held.items() if name.startswith("bert.")}
    save_file(body, file)
    with pytest.raises(ValueError) as error:
        af.load(bert)
    line = str(error.value)
    assert "BertModel and RobertaModel" in line and "architecture='BertModel'" in line and "\n" not in line
    assert af.load(bert, architecture="BertModel").spec.family == "bert"
    save_file({"something.weight": torch.ones(2)}, file)
    with pytest.raises(ValueError, match=r"no model_type.*no known class.*architecture="):
        af.load(bert)
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"model.safetensors"):
        af.load(bert)


def test_a_family_without_a_class_takes_the_one_that_fits(tmp_path: Path) -> None:
    case = next(case for case in every_case() if case.architecture == "BertForTokenClassification")
    unnamed(case, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "bert"}))
    assert af.load(tmp_path).spec.architecture == "BertForTokenClassification"
    held = load_file(tmp_path / "model.safetensors")
    save_file({**held, "surplus": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="unexpected .*surplus"):  # no class fits: compared with the default class
        af.load(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert af.spec(tmp_path).architecture == "BertForPreTraining"  # nothing distinguishes them


def test_a_class_alone_names_the_family(tmp_path: Path) -> None:
    case = next(case for case in every_case() if case.architecture == "RobertaModel")
    unnamed(case, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["RobertaModel"]}))
    assert af.load(tmp_path).spec.family == "roberta"


@pytest.mark.slow
@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in every_case()])
def test_no_class_is_taken_for_another(case: Case, tmp_path: Path) -> None:
    """Without a name, every class of the catalogue is recognised as itself, or as one that computes the same from the
    same tensors, or refused."""
    unnamed(case, tmp_path)
    try:
        model = af.load(tmp_path)
    except ValueError as error:
        assert "architecture=" in str(error)
        return
    named, found = af.spec(folder(case)), model.spec
    if hasattr(named.head, "shift"):  # it affects the position of labels, not the computation
        found = af.override(found, {"head.shift": named.head.shift})
    alike = {"family": named.family, "architecture": named.architecture, "source": named.source}
    assert found.family == case.model_type or found.replace(**alike) == named
