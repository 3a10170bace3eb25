"""Windows and global tokens: any mask against the published class, and time and memory linear in the length."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases.longformer import CASES, SMALL
from catalogue import close, make_inputs, ours, published, shared
from test_loading import compare
from torch import Tensor

import anyformer as af
from anyformer import families
from small import nothing_grows_with_the_square_of_the_length

BY_ID = {case.id: case for case in CASES}


def masks(kind: str, length: int) -> dict[str, Tensor]:
    """Return which tokens of three rows are global, and which are real."""
    chosen = torch.zeros(3, length, dtype=torch.long)
    if kind == "unequal":
        chosen[0, :3], chosen[2, [3, length - 1]] = 1, 1
    elif kind == "all":
        chosen[:] = 1
    real = torch.ones_like(chosen)
    real[1, -length // 3 :] = 0
    if kind == "pads":
        chosen[1, -1:], chosen[0, 4] = 1, 1  # padding is never global
    return {"global_attention_mask": chosen, "attention_mask": real}


@pytest.mark.parametrize("length", [5, 17, 77])
@pytest.mark.parametrize("kind", ["none", "unequal", "all", "pads"])
@pytest.mark.parametrize("id", ["LongformerModel-odd", "LongformerForSequenceClassification"])
def test_any_global_tokens_equal_published(id: str, kind: str, length: int) -> None:
    case = BY_ID[id]
    inputs = make_inputs(case, batch=3, length=length) | masks(kind, length)
    with torch.no_grad():
        expected = published(case)[0](**inputs, output_hidden_states=True, output_attentions=True)
        found = shared(case)(**inputs, output_hidden_states=True, output_attentions=True)
        assert ("global_attentions" in expected) == (kind != "none") == (found.global_attentions is not None)
        compare(expected, found)
        model = ours(case)
        for model.kernel in ("eager", "sdpa", "auto"):
            close(model(**inputs)[0], expected[0])


@pytest.mark.parametrize("capture", [False, True], ids=["plain", "attentions"])
def test_cost_grows_with_the_length(capture: bool) -> None:
    config = {**SMALL, "max_position_embeddings": 9000, "attention_window": 8, "architectures": ["LongformerModel"]}
    model = af.build(families.find("longformer").read(config))

    def run(length: int) -> Tensor:
        ids = torch.randint(5, 99, (1, length))
        chosen = torch.zeros_like(ids)
        chosen[:, [0, 9]] = 1
        return model(input_ids=ids, global_attention_mask=chosen, output_attentions=capture)[0]

    nothing_grows_with_the_square_of_the_length(run)


@pytest.mark.slow
def test_compiled_with_global_tokens_known_beforehand_is_linear_too() -> None:
    case = BY_ID["LongformerForSequenceClassification"]
    model, inputs = shared(case), make_inputs(case, length=70)
    torch._dynamo.reset()
    sizes: list[int] = []

    def backend(graph: Any, example: Any) -> Any:
        for node in graph.graph.nodes:
            value = node.meta.get("example_value")
            sizes.extend([value.numel()] if isinstance(value, Tensor) else [])
        return graph.forward

    with torch.no_grad():
        found = torch.compile(model, fullgraph=True, backend=backend, dynamic=False)(**inputs).logits
        close(found, model(**inputs).logits)
    assert max(sizes) < 2 * 4 * 3 * 34 * 36 * 8  # rows, heads, chunks, keys of a chunk; far below heads x 70 x 70 x 8


def test_separators_are_needed_where_nothing_is_said() -> None:
    case = BY_ID["LongformerForQuestionAnswering"]
    inputs = make_inputs(case)
    inputs["input_ids"][0, 5] = 9
    with pytest.raises(ValueError, match=r"three separators \(token 2\)"):
        shared(case)(**inputs)
    with pytest.raises(ValueError, match="global_attention_mask"):
        shared(case)(**inputs, global_attention_mask=torch.ones(2, 3))
    chosen = torch.zeros_like(inputs["input_ids"])
    chosen[:, 2] = 1
    with torch.no_grad():
        expected = published(case)[0](**inputs, global_attention_mask=chosen)
        compare(expected, shared(case)(**inputs, global_attention_mask=chosen))


def test_a_two_in_the_attention_mask_is_a_global_token() -> None:
    case = BY_ID["LongformerForMaskedLM-odd"]
    inputs, given = make_inputs(case, batch=3), masks("unequal", 17)
    inputs.pop("global_attention_mask")
    with torch.no_grad():
        merged = given["attention_mask"] * (1 + given["global_attention_mask"])
        found = shared(case)(**inputs, attention_mask=merged)
        compare(published(case)[0](**inputs, attention_mask=merged), found)
        assert torch.equal(found.logits, shared(case)(**inputs, **given).logits)
