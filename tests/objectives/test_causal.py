"""Next-token prediction: labels, loss, and packing, which must not change the loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import anyformer as af
from anyformer import families
from anyformer.objectives.causal import NextToken, next_tokens
from anyformer.objectives.heads import forward_to_head
from small import close
from tiny import model_of

A, B = np.array([5, 6, 7, 8, 9], np.int32), np.array([10, 11, 12], np.int32)


def test_encode_ends_texts(gpt2, bert) -> None:
    ids = NextToken().encode({"text": "The fox"}, gpt2)["input_ids"]
    assert ids.tolist() == [*gpt2.encode("The fox"), gpt2.eos_token_id]
    assert NextToken().encode({"text": ""}, gpt2)["input_ids"].tolist() == [gpt2.eos_token_id]
    assert NextToken().encode({"text": "fox"}, bert)["input_ids"].tolist() == bert.encode("fox")  # ends with [SEP]


@pytest.mark.parametrize(("example", "why"), [({"txt": "a"}, "no column 'text'; did you mean 'txt'"),
                                              ({"text": 3}, "column 'text' holds int")])  # fmt: skip
def test_a_wrong_example_is_one_line(example, why, gpt2) -> None:
    with pytest.raises(ValueError, match=why):
        NextToken().encode(example, gpt2)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_padded_equals_by_hand(family: str) -> None:
    model, objective = model_of(family), NextToken()
    batch = objective.collate([{"input_ids": A}, {"input_ids": B}], 0)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8, 9], [10, 11, 12, 0, 0]]
    assert objective.weights(batch) == {"loss": 6}
    right = sum(
        F.cross_entropy(model(input_ids=torch.tensor(row)[None]).logits[0, :-1], torch.tensor(row[1:]), reduction="sum")
        for row in (A.tolist(), B.tolist())
    )
    close(objective.losses(objective.module(model), batch)["loss"], right, 1e-5)
    states = forward_to_head(model, batch)
    assert float(model.head.loss(states.x, states.ctx, next_tokens(batch)).weight) == 6


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_packed_equals_separate_gradients_too(family: str) -> None:
    model, objective = model_of(family), NextToken()
    row = {"input_ids": np.concatenate([A, B]), "document_ids": np.array([0] * 5 + [1] * 3)}
    packed, apart = objective.collate([row], 0), objective.collate([{"input_ids": A}, {"input_ids": B}], 0)
    assert objective.weights(packed) == objective.weights(apart) == {"loss": 6}
    found = []
    for batch in (packed, apart):
        model.zero_grad()
        loss = objective.losses(model, batch)["loss"]
        loss.backward()
        found.append((loss, [p.grad.clone() for p in model.parameters()]))
    close(found[0][0], found[1][0], 1e-5)
    for a, b in zip(found[0][1], found[1][1]):
        close(a, b, 1e-5)


def test_one_text_where_documents_are_not_kept_apart() -> None:
    model, objective = model_of("gpt2"), NextToken(apart=False)
    row = {"input_ids": np.concatenate([A, B]), "document_ids": np.array([0] * 5 + [1] * 3)}
    batch = objective.collate([row], 0)
    assert set(batch) == {"input_ids"} and objective.weights(batch) == {"loss": 7}
    logits = model(**batch).logits[0, :-1]
    right = F.cross_entropy(logits, batch["input_ids"][0, 1:], reduction="sum")
    close(objective.losses(model, batch)["loss"], right, 1e-5)


def test_a_model_of_another_kind_is_one_line() -> None:
    with pytest.raises(ValueError, match="reads from left to right"):
        NextToken().module(model_of("bert"))
    headless = model_of("gpt2")
    headless.head = None
    with pytest.raises(ValueError, match="the model has no head"):
        NextToken().module(headless)


def test_experts_are_balanced_in_training() -> None:
    """The training loss includes the router losses, as published; the evaluation loss covers only the labels."""
    config = {"architectures": ["MixtralForCausalLM"], "vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2,
              "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 8, "num_local_experts": 4,
              "router_aux_loss_coef": 0.5}  # fmt: skip
    model = af.build(families.find("mixtral").read(config), seed=1)
    ids = torch.randint(0, 50, (3, 9), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids}
    for training in (True, False):
        model.train(training)
        out = model(input_ids=ids, labels=ids, output_router_logits=training)
        found = NextToken().losses(model, batch)["loss"] / NextToken().weights(batch)["loss"]
        close(found, out.loss, 1e-5)
    assert out.aux_loss is None
