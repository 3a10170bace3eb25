"""Masked tokens: rates, replacements, static and dynamic masking; and next sentence prediction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import anyformer as af
from anyformer import families
from anyformer.objectives.masked import Masked
from anyformer.objectives.sentences import FOLLOWS, RANDOM, MaskedAndNext, truncate_pair
from anyformer.objectives.vocabulary_info import VocabularyInfo
from small import close
from tiny import CONFIGS, model_of

KNOWN = VocabularyInfo(size=1000, mask=4, begin=2, end=3, separator=3, apart=(0, 2, 3, 4), stops=(9,))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def row(size: int = 200) -> np.ndarray:
    return np.array([2, *(100 + np.arange(size - 2) % 800), 3], np.int32)


def test_rates_are_the_published_ones() -> None:
    """15 % of the tokens are chosen: 80 % become the mask, 10 % a random token, 10 % do not change."""
    objective, random, ids = Masked(known=KNOWN), rng(), row()
    kinds = np.zeros(3)
    where = np.zeros(len(ids))
    for _ in range(2000):
        seen = objective.vary({"input_ids": ids}, random)
        places, new = seen["places"], seen["input_ids"]
        assert len(places) == 30 and (np.diff(places) > 0).all()  # round(0.15 * 200), each once
        assert seen["labels"].tolist() == ids[places].tolist()
        assert np.array_equal(np.delete(new, places), np.delete(ids, places))
        where[places] += 1
        kinds += [(new[places] == 4).sum(), ((new != 4) & (new != ids))[places].sum(), (new == ids)[places].sum()]
    share = kinds / kinds.sum()  # of 60,000 draws: standard error below 0.002
    assert np.abs(share - [0.8, 0.1, 0.1]).max() < 0.006
    assert where[0] == where[-1] == 0  # begin and end are never chosen
    inner = where[1:-1] / 2000
    assert abs(inner.mean() - 30 / 198) < 1e-9 and inner.std() < 0.012  # all tokens are equally likely


def test_as_often_as_the_collator_of_transformers(bert: Any) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.DataCollatorForLanguageModeling(
        transformers.BertTokenizerFast.from_pretrained(bert.folder), seed=0
    )
    text = "the quick brown fox jumps over the lazy dog and the dogs say hello to foxes " * 6
    objective, random = Masked().ready(bert), rng()
    ids = objective.encode({"text": text}, bert)["input_ids"]
    ours = [objective.vary({"input_ids": ids}, random) for _ in range(400)]
    right = theirs([{"input_ids": ids.tolist()} for _ in range(400)])
    asked = (right["labels"] != -100).float().mean().item()
    assert abs(np.mean([len(seen["labels"]) for seen in ours]) / len(ids) - asked) < 0.006
    masked = (right["input_ids"] == bert.mask_token_id).float().mean().item()
    assert abs(np.mean([(seen["input_ids"] == bert.mask_token_id).mean() for seen in ours]) - masked) < 0.006


def test_dynamic_and_static() -> None:
    def seen(objective: Masked, times: int) -> int:
        random = rng()
        return len({tuple(objective.vary({"input_ids": row()}, random)["places"]) for _ in range(times)})

    assert seen(Masked(known=KNOWN), 100) == 100
    assert seen(Masked(known=KNOWN, length=200, copies=10), 300) == 10


def test_a_pure_function_of_record_and_generator() -> None:
    a, b = (Masked(known=KNOWN).vary({"input_ids": row()}, rng(7)) for _ in range(2))
    assert all(np.array_equal(a[name], b[name]) for name in a)


def test_whole_words(bert: Any) -> None:
    objective = Masked(length=40, whole_words=True).ready(bert)
    (record, *_) = objective.encode({"text": "transforming unseenable zyzzyva dogs café quick brownest foxes"}, bert)
    words, random = record["word_ids"], rng()
    assert len(set(words[words >= 0])) < (words >= 0).sum()  # some words have several tokens
    sizes = []
    for _ in range(200):
        places = objective.vary(record, random)["places"]
        sizes.append(len(places))
        for word in set(words[places]):
            assert set(np.flatnonzero(words == word)) <= set(places)
    assert max(sizes) == round(len(words) * 0.15)


def test_long_texts_are_cut_into_pieces(bert: Any) -> None:
    text = "the quick brown fox jumps over the lazy dog " * 9
    pieces = Masked(length=16, copies=2).ready(bert).encode({"text": text}, bert)
    assert max(len(piece["input_ids"]) for piece in pieces) == 16
    assert all(p["input_ids"][0] == bert.cls_token_id and p["input_ids"][-1] == bert.sep_token_id for p in pieces)
    inner = np.concatenate([piece["input_ids"][1:-1] for piece in pieces])
    assert inner.tolist() == bert.encode(text, add_special_tokens=False)


def test_loss_is_that_of_transformers_labels() -> None:
    model, objective = model_of("bert"), Masked(known=KNOWN.replace(size=50))
    rows = [np.array([2, *range(10, 10 + n), 3], np.int32) for n in (9, 20)]
    batch = objective.collate([objective.vary({"input_ids": ids}, rng(3)) for ids in rows], 0)
    labels = torch.full_like(batch["input_ids"], -100).flatten()
    asked = batch["labels"] != -100
    labels[batch["places"][asked]] = batch["labels"][asked]
    labels = labels.view_as(batch["input_ids"])
    for row, ids in zip(torch.where(labels == -100, batch["input_ids"], labels), rows):
        assert row[: len(ids)].tolist() == ids.tolist()  # with its labels filled in, a row equals the text
    right = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss
    (loss,), (weight,) = objective.losses(model, batch).values(), objective.weights(batch).values()
    assert weight == asked.sum() == 5
    close(loss / weight, right, 1e-5)


def test_mistakes_are_one_line(gpt2: Any) -> None:
    with pytest.raises(ValueError, match="masking needs a tokenizer with a mask token"):
        Masked().ready(gpt2)
    with pytest.raises(ValueError, match="needs the tokenizer; call objective.ready"):
        Masked().vary({"input_ids": row()}, rng())
    with pytest.raises(ValueError, match="sees both sides"):
        Masked().module(model_of("gpt2"))
    for wrong, why in [({"rate": 1.5}, "in \\[0, 1\\)"), ({"mask": 0.9, "random": 0.2}, "more than 1"),
                       ({"whole_words": True}, "need a length"), ({"copies": 3}, "need a length")]:  # fmt: skip
        with pytest.raises(ValueError, match=why):
            Masked(**wrong)


# -- next sentence ----------------------------------------------------------------------------------------------------


def document(first: int, sentences: int = 30, size: int = 8) -> dict[str, np.ndarray]:
    ids = first + np.arange(sentences * size)
    return {"input_ids": ids.astype(np.int32), "ends": np.arange(1, sentences + 1) * size,
            "document": np.asarray(np.int64(first))}  # fmt: skip


def test_next_sentence_pairs() -> None:
    """[CLS] A [SEP] B [SEP]; B follows A in half of the cases, otherwise it is from another document."""
    known = KNOWN.replace(size=5000)
    objective, random = MaskedAndNext(known=known, length=64, rate=0.0), rng()
    labels, lengths = [], []
    for _ in range(3000):
        seen = objective.vary(document(100), random, document(2000))
        ids, segments = seen["input_ids"].copy(), seen["token_type_ids"]
        ids[seen["places"]] = seen["labels"]
        ends = np.flatnonzero(ids == 3)
        assert ids[0] == 2 and len(ends) == 2 and ends[1] == len(ids) - 1 and len(ids) <= 64
        assert segments.tolist() == [0] * (ends[0] + 1) + [1] * (len(ids) - ends[0] - 1)
        first, second = ids[1 : ends[0]], ids[ends[0] + 1 : -1]
        assert (first < 2000).all() and (np.diff(first) == 1).all() and (np.diff(second) == 1).all()
        assert (second >= 2000).all() if seen["next"] == RANDOM else (second > first[-1]).all() and second[-1] < 2000
        labels.append(int(seen["next"]))
        lengths.append(len(ids))
    assert FOLLOWS == 0 and abs(np.mean(labels) - 0.5) < 0.03
    assert 0.05 < np.mean(np.array(lengths) < 50) < 0.15  # one in ten is short


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.7, 1.0])
def test_next_rate_is_how_many_follow(rate: float) -> None:
    known, random = KNOWN.replace(size=5000), rng()
    objective = MaskedAndNext(known=known, length=64, short=0.0, next_rate=rate)  # one sentence never gets FOLLOWS
    found = [int(objective.vary(document(100), random, document(2000))["next"]) for _ in range(600)]
    assert abs(found.count(FOLLOWS) / 600 - rate) < 0.05
    assert rate not in (0.0, 1.0) or len(set(found)) == 1


def test_short_runs_have_every_length() -> None:
    """With sentences of one token, a pair has the drawn length, uniform from 2 to the room."""
    objective, random = MaskedAndNext(known=KNOWN, length=12, short=1.0, next_rate=0.0), rng()
    pairs = [objective.pair(document(100, 9, 1), document(500, 99, 1), random) for _ in range(600)]
    sizes = [len(first) + len(second) for first, second, _ in pairs]
    assert {*sizes} == {*range(2, 10)} and min(map(sizes.count, range(2, 10))) > 600 / 16


def test_next_sentence_within_one_document_follows() -> None:
    objective = MaskedAndNext(known=KNOWN, length=64)
    assert all(objective.vary(document(100), rng(i), document(100))["next"] == FOLLOWS for i in range(50))
    alone = {**document(100, 1), "document": np.asarray(np.int64(1))}
    assert all(objective.vary(alone, rng(i), document(500))["next"] == RANDOM for i in range(50))


def test_cut_takes_from_the_longer_on_both_sides() -> None:
    sides = [truncate_pair(np.arange(100), np.arange(10), 40, rng(i)) for i in range(200)]
    assert all(len(a) == 30 and len(b) == 10 for a, b in sides)
    assert abs(np.mean([a[0] for a, _ in sides]) - 35) < 1.5


def test_documents_become_runs_of_sentences(bert: Any) -> None:
    text = "\n".join(["The quick brown fox jumps.", "It is lazy."] * 10)
    runs = MaskedAndNext(length=30).ready(bert).encode({"text": text}, bert)
    assert len(runs) > 1 and all(run["ends"][-1] == len(run["input_ids"]) for run in runs)
    assert all(run["ends"][-2] < 27 <= run["ends"][-1] for run in runs[:-1])
    joined = np.concatenate([run["input_ids"] for run in runs]).tolist()
    assert joined == [i for line in text.split("\n") for i in bert.encode(line, add_special_tokens=False)]


def test_pretraining_loss_is_the_heads() -> None:
    config = {**CONFIGS["bert"], "architectures": ["BertForPreTraining"], "max_position_embeddings": 64}
    model = af.build(families.find("bert").read(config), seed=0).eval()
    objective = MaskedAndNext(known=KNOWN.replace(size=50), length=40)
    documents = [document(10, 4, 5), document(20, 5, 5)]
    records = [objective.vary(documents[i], rng(i), documents[1 - i]) for i in (0, 1)]
    batch = objective.collate(records, 0)
    sums, weights = objective.losses(objective.module(model), batch), objective.weights(batch)
    labels = torch.full_like(batch["input_ids"], -100).flatten()
    asked = batch["labels"] != -100
    labels[batch["places"][asked]] = batch["labels"][asked]
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids") if name in batch}
    out = model(**inputs, labels=labels.view_as(batch["input_ids"]), next_sentence_label=batch["next"])
    close(sum(sums[name] / weights[name] for name in sums), out.loss, 1e-5)
    close(sums["next"] / 2, F.cross_entropy(out.seq_relationship_logits, batch["next"]), 1e-5)
    with pytest.raises(ValueError, match="needs a model with a PretrainingHead"):
        objective.module(model_of("bert"))
