"""Rare values of config fields: our outputs equal transformers' for the same config.json and for the one that we
write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from catalogue import Case, every_case, make_inputs, randomise
from test_loading import compare

import anyformer as af
from anyformer import families

transformers = pytest.importorskip("transformers")

FIRST = {case.architecture: case for case in reversed(every_case())}
T5, SWITCH = "T5ForConditionalGeneration", "SwitchTransformersModel"
MARIAN, TABLE = "MarianMTModel", "of a shared table; the published class cannot compute a loss then"
OWN, EMPTY = "each stack of an encoder-decoder has its own", "no layer, so no table of relative positions"
BOTH = "the decoder is bidirectional, as in the published code for causal masks of any class"

# the class, the config fields that differ from its first case (... removes one), and what is unusual about them
UNUSUAL: list[tuple[str, dict[str, Any], str]] = [
    (T5, {"is_decoder": True}, OWN),
    ("T5ForQuestionAnswering", {"is_decoder": True}, OWN),
    (T5, {"num_hidden_layers": 3}, "the decoder has num_layers, 2: derived before aliases are applied"),
    ("T5Model", {"num_layers": ..., "num_hidden_layers": 1}, "the decoder has the default number of layers, 6"),
    (T5, {"num_layers": 0, "num_decoder_layers": 1}, EMPTY),
    (T5, {"num_decoder_layers": 0}, EMPTY),
    ("T5EncoderModel", {"num_layers": 0}, EMPTY),
    (SWITCH, {"is_decoder": True}, OWN),
    (SWITCH, {"num_hidden_layers": 5}, "every third layer is sparse, from num_layers: the second and the fifth"),
    (SWITCH, {"num_decoder_layers": 0}, EMPTY),
    (MARIAN, {"decoder_vocab_size": 120}, TABLE),
    (MARIAN, {"decoder_vocab_size": 120, "tie_word_embeddings": False}, TABLE),
    ("MarianForCausalLM", {"decoder_vocab_size": 120}, TABLE),
    ("BartModel", {"pad_token_id": -1}, "the last row of the table, as in nn.Embedding"),
    ("M2M100Model", {"pad_token_id": -1}, "the last row of the table; positions start at 0"),
    ("NystromformerModel", {"add_cross_attention": True}, "no layer reads it"),
    ("NystromformerForQuestionAnswering", {"num_labels": 7}, "always a start and an end"),
    ("RobertaForMaskedLM", {"pad_token_id": -1}, "the last row of the table; positions start at 0"),
    *[(name, {"is_causal": False}, BOTH) for name in ("BartModel", "BartForQuestionAnswering", "M2M100Model", "T5Model",
                                                      "MarianModel", SWITCH, "WhisperModel")],
    *[(name, {"is_causal": False, "is_decoder": True}, BOTH)
      for name in ("BertModel", "RobertaForTokenClassification", "XLMRobertaXLModel", "ElectraModel")],
    ("BigBirdModel", {"is_causal": False, "is_decoder": True, "attention_type": "original_full"}, BOTH),
    ("BertModel", {"is_causal": False}, "an encoder is always bidirectional"),
    ("FSMTModel", {"is_causal": False}, "it builds its own masks and does not read it"),
    *[(f"Deepseek{version}ForCausalLM", {"n_shared_experts": 0}, "their tensors are in the file, without a number")
      for version in ("V2", "V3")],
]  # fmt: skip


def changed(case: Case, changes: dict[str, Any]) -> dict[str, Any]:
    config = {**case.config, **changes, "model_type": case.model_type, "architectures": [case.architecture]}
    return {name: value for name, value in config.items() if value is not ...}


@pytest.mark.parametrize(
    "architecture, changes, why", UNUSUAL,
    ids=[f"{architecture}-{json.dumps(changes, default=str)}" for architecture, changes, _ in UNUSUAL],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:fsmt config. .*'is_causal'")
@torch.no_grad()
def test_an_unusual_value_is_honoured(architecture: str, changes: dict[str, Any], why: str, tmp_path: Path) -> None:
    case, kind = FIRST[architecture], getattr(transformers, architecture)
    config = changed(case, changes)
    model = kind(kind.config_class.from_dict(dict(config))).eval()
    randomise(model)
    model.save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(config))  # not as the class writes it
    theirs, mine = kind.from_pretrained(tmp_path / "theirs").eval(), af.load(tmp_path / "theirs")
    theirs.set_attn_implementation("eager")
    inputs = make_inputs(case, labels=why is not TABLE)
    expected = theirs(**inputs)
    compare(expected, mine(**inputs))
    af.save(mine, tmp_path / "ours", format="hf")
    compare(expected, kind.from_pretrained(tmp_path / "ours").eval()(**inputs))


def test_an_encoder_alone_that_says_it_decodes_is_refused() -> None:
    """The published class would have a cross-attention without a source."""
    for architecture in ("T5EncoderModel", "T5ForTokenClassification", "SwitchTransformersEncoderModel"):
        case = FIRST[architecture]
        with pytest.raises(ValueError, match=f"is_decoder=True .*{architecture}"):
            families.find(case.model_type).read(changed(case, {"is_decoder": True}))


@pytest.mark.parametrize("architecture", ["DebertaModel", "DebertaV2Model"])
def test_no_layer_is_refused_where_the_first_one_holds_the_distances(architecture: str) -> None:
    case = FIRST[architecture]
    with pytest.raises(ValueError, match="num_hidden_layers .* 0"):
        families.find(case.model_type).read(changed(case, {"num_hidden_layers": 0}))


@torch.no_grad()
def test_a_null_return_dict_asks_for_tuples() -> None:
    """As published, except for a few classes without a head, which return outputs by name only for null."""
    case = FIRST["LlamaForCausalLM"]
    config = changed(case, {"return_dict": None, "num_hidden_layers": 1})
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig.from_dict(dict(config))).eval()
    ours = af.build(families.find(case.model_type).read(config), seed=0).eval()
    for model in (theirs, ours):
        assert isinstance(model(**make_inputs(case)), tuple)
