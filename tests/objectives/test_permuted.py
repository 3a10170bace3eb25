"""Permutation language modelling: predicted tokens, visible tokens, and that no predicted token sees itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer import families
from anyformer.objectives.batches import Batch, Record
from anyformer.objectives.permuted import ROUND, Permuted, permutation_mask
from anyformer.objectives.vocabulary_info import VocabularyInfo
from small import close
from tiny import OTHERS, model_of

KNOWN = VocabularyInfo(size=50, apart=(0, 2, 3))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def row(size: int) -> np.ndarray:
    return np.array([*(5 + np.arange(size - 2) % 40), 3, 2], np.int32)  # special tokens at the end


def drawn(*sizes: int, **more: Any) -> tuple[list[Record], Batch]:
    objective, random = Permuted(known=KNOWN, **more), rng(3)
    records = [objective.vary({"input_ids": row(size)}, random) for size in sizes]
    return records, objective.collate(records, 0)


def test_one_token_in_six_in_short_spans() -> None:
    objective, random, ids = Permuted(known=KNOWN), rng(), row(302)
    counts, where, orders = [], np.zeros(302), []
    for _ in range(1000):
        seen = objective.vary({"input_ids": ids}, random)
        places, order = seen["places"], seen["order"]
        counts.append(len(places))
        where[places] += 1
        assert np.array_equal(seen["input_ids"], ids)  # nothing is replaced
        assert seen["labels"].tolist() == ids[places].tolist()
        assert sorted(order[places]) == list(range(len(places))) and (np.delete(order, places) == -1).all()
        runs = np.diff(np.flatnonzero(np.diff(np.concatenate([[0], order >= 0, [0]]))))[::2]
        assert runs.max() <= 10  # at most two adjacent spans
        orders.append(order[places][0] / len(places))
    assert abs(np.mean(counts) / 300 - 1 / 6) < 0.01
    assert where[-2:].sum() == 0
    assert abs(np.mean(orders) - 0.5) < 0.03  # the first chosen token is equally likely early or late in the order


def test_one_token_is_asked_for_where_none_was_chosen() -> None:
    objective = Permuted(known=KNOWN)
    ids = np.array([0, 0, 7, 0, 0, 8, 9, 2, 3], np.int32)  # three tokens of text among special ones
    drawn = [objective.choose(ids, rng(seed)).tolist() for seed in range(300)]
    assert all(drawn) and {place for places in drawn for place in places} == {2, 5, 6}
    assert np.bincount([places[0] for places in drawn if len(places) == 1], minlength=9)[[2, 5, 6]].min() > 50
    assert objective.choose(np.array([0, 2, 3], np.int32), rng()).tolist() == []  # no token can be chosen


def test_as_often_as_the_collator_of_transformers(words: Any) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.DataCollatorForPermutationLanguageModeling(
        transformers.PreTrainedTokenizerFast.from_pretrained(words.folder)
    )
    ids = [30 + i % 8 for i in range(300)]
    torch.manual_seed(0)
    right = float((theirs([{"input_ids": ids} for _ in range(100)])["labels"] != -100).float().mean())
    objective, random = Permuted(known=KNOWN), rng()
    mine = np.mean([len(objective.vary({"input_ids": np.array(ids)}, random)["places"]) for _ in range(300)])
    assert abs(mine / 300 - right) < 0.01


def test_who_sees_whom() -> None:
    order = torch.tensor([[-1, 1, -1, 0, 2]])
    assert (~permutation_mask(order))[0].int().tolist() == [
        [1, 0, 1, 0, 0],  # context tokens do not see predicted ones
        [1, 0, 1, 1, 0],
        [1, 0, 1, 0, 0],
        [1, 0, 1, 0, 0],  # the first predicted token
        [1, 1, 1, 1, 0],
    ]


def test_no_token_that_is_asked_for_is_seen_before_its_turn() -> None:
    """A prediction does not depend on the token itself or on later tokens in the order, but on the earlier ones."""
    model = model_of("xlnet", depth=3)
    records, batch = drawn(21, 34, rate=0.4)
    inputs = {name: value for name, value in batch.items() if name != "labels"}

    def answers(ids: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return model(**{**inputs, "input_ids": ids}).logits

    plain, checked = answers(batch["input_ids"]), 0
    for i, record in enumerate(records):
        order = torch.from_numpy(record["order"])
        for n, place in enumerate(record["places"].tolist()):
            turn = int(order[place])
            for hidden in (order >= turn, (order >= 0) & (order < turn)):
                ids = batch["input_ids"].clone()
                ids[i, : len(order)][hidden] += 1
                found = answers(ids)[i, n]
                if bool(hidden[place]):
                    assert torch.equal(found, plain[i, n]), (i, place)
                elif hidden.any():
                    assert not torch.allclose(found, plain[i, n]), (i, place)
                    checked += 1
    assert checked > 10


def test_the_loss_is_that_of_the_model() -> None:
    model, objective = model_of("xlnet"), Permuted(known=KNOWN)
    records, batch = drawn(40, 60)
    assert batch["labels"].shape[1] % ROUND == 0
    for i, record in enumerate(records):
        count = len(record["places"])
        assert batch["labels"][i, :count].tolist() == record["labels"].tolist()
        assert batch["target_mapping"][i, :count].int().argmax(-1).tolist() == record["places"].tolist()
        assert not batch["target_mapping"][i, count:].any() and (batch["labels"][i, count:] == -100).all()
    (loss,), (weight,) = objective.losses(model, batch).values(), objective.weights(batch).values()
    assert weight == sum(len(record["places"]) for record in records)
    close(loss / weight, model(**batch).loss, 1e-5)


@pytest.mark.slow
def test_the_loss_falls() -> None:
    spec = families.find("xlnet").read({**OTHERS["xlnet"], "dropout": 0.0, "initializer_range": 0.2})
    model, objective, random = af.build(spec, seed=0), Permuted(known=KNOWN), rng()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(120):
        shifts = random.integers(40, size=8)
        rows = [np.array([*(5 + (np.arange(24) + shift) % 40), 3, 2], np.int32) for shift in shifts]  # consecutive ids
        batch = objective.collate([objective.vary({"input_ids": ids}, random) for ids in rows], 0)
        loss = objective.losses(model, batch)["loss"] / objective.weights(batch)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5]), losses[::10]


def test_mistakes_are_one_line() -> None:
    with pytest.raises(ValueError, match=r"takes target_mapping \(OrderedText, TwoStreams\)"):
        Permuted(known=KNOWN).module(model_of("bert"))
    for wrong in ({"rate": 0.0}, {"rate": 1.0}, {"longest": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Permuted(**wrong)
    nothing = Permuted(known=KNOWN).vary({"input_ids": np.array([3, 2], np.int32)}, rng())
    assert len(nothing["places"]) == 0
