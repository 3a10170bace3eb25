"""XLM's padding, languages and segments, compared with transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from catalogue import every_case, make_inputs, published, shared
from test_loading import compare

from anyformer import families

BY_ID = {case.id: case for case in every_case() if case.model_type == "xlm"}
OUTPUTS = {"output_hidden_states": True, "output_attentions": True}


def both(name: str, **inputs: Any) -> None:
    """Compare every output, also at padding."""
    case = BY_ID[name]
    with torch.no_grad():
        compare(published(case)[0](**inputs, **OUTPUTS), shared(case)(**inputs, **OUTPUTS))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["XLMModel", "XLMModel-causal", "XLMForQuestionAnsweringSimple", "XLMModel-odd"])
def test_pads_are_zeros_between_the_layers(name: str, masked: bool) -> None:
    """Padding on the right, marked by attention_mask or by token id. Attention weights of a causal XLM differ only in
    the rows of padding, which attend to other padding."""
    case = BY_ID[name]
    inputs = make_inputs(case)
    real = torch.ones_like(inputs["input_ids"])
    real[1, -5:] = 0
    inputs["input_ids"] = torch.where(real > 0, inputs["input_ids"], 4 if name.endswith("odd") else 2)
    if masked:
        inputs["attention_mask"] = real
    with torch.no_grad():
        theirs, mine = published(case)[0](**inputs, **OUTPUTS), shared(case)(**inputs, **OUTPUTS)
    if name.endswith("causal"):
        for a, b in zip(theirs.attentions, mine.attentions, strict=True):
            keep = real[:, None, :, None].bool()
            torch.testing.assert_close(a.where(keep, 0), b.where(keep, 0), atol=1e-5, rtol=0)
        theirs = {name: value for name, value in theirs.items() if name != "attentions"}
    compare(theirs, mine)
    assert not mine.hidden_states[1][1, -5:].any()
    assert not mine.hidden_states[0][1, -5:].any()


def test_languages_may_be_left_out_and_segments_are_tokens() -> None:
    inputs = make_inputs(BY_ID["XLMModel"])
    ids, languages = inputs["input_ids"], inputs["langs"]
    both("XLMModel", input_ids=ids)
    both("XLMModel", input_ids=ids, langs=languages, token_type_ids=ids.flip(-1))
    both("XLMModel-odd", input_ids=ids, token_type_ids=ids.flip(-1))
    model = shared(BY_ID["XLMModel"])
    with torch.no_grad():
        plain, first_language = model(input_ids=ids)[0], model(input_ids=ids, langs=torch.zeros_like(ids))[0]
        assert torch.equal(first_language, model(input_ids=ids, langs=ids.new_zeros(1, 1))[0])
    assert not torch.allclose(plain, first_language, atol=1e-3)
    with pytest.raises(ValueError, match="langs.* 3"):
        model(input_ids=ids, langs=torch.full_like(ids, 3))
    both("XLMModel-odd", input_ids=ids, langs=torch.ones_like(ids))  # without language vectors: ignored, as published


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"asm": True}, "asm"),
        ({"is_encoder": False}, "is_encoder"),
        ({"summary_use_proj": False}, "summary_use_proj .*True.*False"),
        ({"summary_activation": "tanh"}, "summary_activation .*None.*tanh"),
        ({"summary_type": "attn"}, "summary_type"),
        ({"n_heads": 3}, "emb_dim 2048 .*n_heads 3"),
    ],
)
def test_what_is_not_supported_names_its_field(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        families.find("xlm").read({**config, "architectures": ["XLMForSequenceClassification"]})
