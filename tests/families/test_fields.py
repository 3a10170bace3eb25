"""Values of config fields that published classes take and few files have: the whole of config.json as transformers reads
it, the same outputs, and the same again from what we write back."""

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

FIRST = {(case.model_type, case.architecture): case for case in reversed(every_case())}
DERIVED = "before the alias is heard"

# the class, the config fields that differ from its first case's (... leaves one out), and what is unusual about them
UNUSUAL: list[tuple[str, str, dict[str, Any], str]] = [
    ("t5", "T5ForConditionalGeneration", {"is_decoder": True}, "each stack of a pair has its own"),
    ("t5", "T5ForQuestionAnswering", {"is_decoder": True}, "each stack of a pair has its own"),
    ("t5", "T5ForConditionalGeneration", {"num_hidden_layers": 3}, f"the decoder's 2 layers are num_layers', {DERIVED}"),
    ("t5", "T5Model", {"num_layers": ..., "num_hidden_layers": 1}, f"the decoder has the default's 6 layers, {DERIVED}"),
    ("t5", "T5ForConditionalGeneration", {"num_layers": 0, "num_decoder_layers": 1}, "no layer, so no table of distances"),
    ("t5", "T5ForConditionalGeneration", {"num_decoder_layers": 0}, "no layer, so no table of distances"),
    ("t5", "T5EncoderModel", {"num_layers": 0}, "no layer, so no table of distances"),
    ("switch_transformers", "SwitchTransformersModel", {"is_decoder": True}, "each stack of a pair has its own"),
    ("switch_transformers", "SwitchTransformersModel", {"num_hidden_layers": 4, "num_sparse_encoder_layers": 1},
     f"every third layer is sparse, of num_layers, {DERIVED}"),
    ("switch_transformers", "SwitchTransformersModel", {"num_decoder_layers": 0}, "no layer, so no table of distances"),
]  # fmt: skip


def changed(case: Case, changes: dict[str, Any]) -> dict[str, Any]:
    config = {**case.config, **changes, "model_type": case.model_type, "architectures": [case.architecture]}
    return {name: value for name, value in config.items() if value is not ...}


@pytest.mark.parametrize(
    "model_type, architecture, changes, why", UNUSUAL,
    ids=[f"{architecture}-{json.dumps(changes, default=str)}" for _, architecture, changes, _ in UNUSUAL],
)  # fmt: skip
@torch.no_grad()
def test_an_unusual_value_is_honoured(
    model_type: str, architecture: str, changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    case, kind = FIRST[model_type, architecture], getattr(transformers, architecture)
    config = changed(case, changes)
    model = kind(kind.config_class.from_dict(dict(config))).eval()
    randomise(model)
    model.save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(config))  # as it was, not as the class writes it
    theirs, mine = kind.from_pretrained(tmp_path / "theirs").eval(), af.load(tmp_path / "theirs")
    theirs.set_attn_implementation("eager")
    inputs = make_inputs(case, labels=True)
    expected = theirs(**inputs)
    compare(expected, mine(**inputs))
    af.save(mine, tmp_path / "ours", format="hf")
    compare(expected, kind.from_pretrained(tmp_path / "ours").eval()(**inputs))


def test_an_encoder_alone_that_says_it_decodes_is_refused() -> None:
    """The published class then has a cross-attention, and nothing for it to look at."""
    for model_type, architecture in (
        ("t5", "T5EncoderModel"), ("t5", "T5ForTokenClassification"),
        ("switch_transformers", "SwitchTransformersEncoderModel"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="is_decoder=True is not supported with"):
            families.find(model_type).read(changed(FIRST[model_type, architecture], {"is_decoder": True}))
