"""Span corruption: T5's format, lengths and statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anyformer.objectives.span_corruption import SpanCorruption
from anyformer.objectives.spans import corrupt, count_spans, draw_spans, pieces
from anyformer.objectives.vocabulary_info import VocabularyInfo
from anyformer.train.learning_plan import row_length
from small import close
from tiny import model_of

TEXT = "Thank you for inviting me to your party last week ."


def test_the_published_example(words: Any) -> None:
    ids = np.array(words.encode(TEXT, add_special_tokens=False))
    gone = np.isin(ids, [words.id(word) for word in ("for", "inviting", "last")])
    source, target = corrupt(ids, gone, VocabularyInfo.from_tokenizer(words).sentinels)
    assert words.decode(source) == "Thank you <extra_id_0> me to your party <extra_id_1> week ."
    assert words.decode(target) == "<extra_id_0> for inviting <extra_id_1> last <extra_id_2>"


def test_a_text_that_ends_with_a_span_has_no_sentinel_after_it() -> None:
    source, target = corrupt(np.arange(6), np.array([0, 1, 0, 0, 1, 1], bool), [90, 91, 92])
    assert source.tolist() == [0, 90, 2, 3, 91] and target.tolist() == [90, 1, 91, 4, 5]
    source, target = corrupt(np.arange(3), np.array([1, 0, 1], bool), [90, 91])
    assert source.tolist() == [90, 1, 91] and target.tolist() == [90, 0, 91, 2]


def test_the_published_lengths() -> None:
    """568 tokens of text give a source of 512 and a target of 114 tokens, including end tokens."""
    objective = SpanCorruption()
    assert objective.reads(512) == row_length(objective, 512) == 568 and row_length(objective, None) is None
    noise, spans = count_spans(568, objective.rate, objective.mean)
    assert (noise, spans) == (85, 28) and 568 - noise + spans + 1 == 512 and noise + spans + 1 == 114


def test_statistics() -> None:
    objective, random = SpanCorruption(), np.random.default_rng(0)
    masks = np.stack([draw_spans(200, objective.rate, objective.mean, random) for _ in range(4000)])
    assert (masks.sum(1) == 30).all()  # exactly 15 %
    starts = masks[:, 1:] & ~masks[:, :-1]
    assert (starts.sum(1) == 10).all() and not masks[:, 0].any() and masks[:, -1].all()  # spans of 3 tokens on average
    runs = ["".join("01"[int(gone)] for gone in mask).split("0") for mask in masks[:500]]
    lengths = np.array([len(run) for row in runs for run in row if run])
    # cutting 30 into 10 at random: P(length = 1) = C(28, 8) / C(29, 9) = 9 / 29
    assert lengths.mean() == 3 and abs((lengths == 1).mean() - 9 / 29) < 0.02
    middle = masks[:, 20:180].mean(0)
    assert abs(middle.mean() - 0.15) < 0.01 and middle.std() < 0.01  # uniform except at the ends


def test_pieces_are_divided_evenly() -> None:
    random = np.random.default_rng(0)
    found = {tuple(pieces(5, 3, random)) for _ in range(300)}
    assert found == {(1, 1, 3), (1, 3, 1), (3, 1, 1), (1, 2, 2), (2, 1, 2), (2, 2, 1)}
    counts = [sum(tuple(pieces(4, 2, random)) == (1, 3) for _ in range(3000))]
    assert abs(counts[0] / 3000 - 1 / 3) < 0.03


@pytest.mark.parametrize("size", [1, 2, 3, 5, 17, 133])
def test_nothing_is_lost(size: int) -> None:
    """Source and target together contain the whole text."""
    known = VocabularyInfo(size=1000, end=1, sentinels=tuple(range(900, 1000)))
    ids = np.arange(10, 10 + size)
    seen = SpanCorruption(known=known).vary({"input_ids": ids}, np.random.default_rng(size))
    source, target = seen["input_ids"].tolist(), seen["labels"].tolist()
    assert source.pop() == target.pop() == 1
    spans: dict[int, list[int]] = {}
    for token in target:
        if token >= 900:
            spans[token] = []
        else:
            spans[list(spans)[-1]].append(token)
    assert list(spans) == sorted(spans)
    assert [t for token in source for t in spans.get(token, [token])] == ids.tolist()


@pytest.mark.parametrize("rate", [0.01, 0.5, 0.99])
def test_one_token_goes_at_least_and_one_stays(rate: float) -> None:
    for size in (2, 3, 10, 99):
        noise, spans = count_spans(size, rate, SpanCorruption().mean)
        assert 1 <= spans <= noise < size and spans <= size - noise


def test_labels_and_loss_as_the_model_has_them() -> None:
    known = VocabularyInfo(size=50, end=1, sentinels=tuple(range(49, 40, -1)))
    objective, model = SpanCorruption(known=known), model_of("t5")
    random = np.random.default_rng(0)
    records = [objective.vary({"input_ids": np.arange(5, 5 + n)}, random) for n in (20, 9)]
    batch = objective.collate(records, 0)
    right = model(**batch).loss  # mean over the labels
    assert objective.weights(batch)["loss"] == sum(len(record["labels"]) for record in records)
    close(objective.losses(objective.module(model), batch)["loss"] / objective.weights(batch)["loss"], right, 1e-5)


def test_mistakes_are_one_line(bert: Any) -> None:
    with pytest.raises(ValueError, match="needs a tokenizer with the tokens <extra_id_0>"):
        SpanCorruption().ready(bert)
    with pytest.raises(ValueError, match="28 spans but 20 sentinels"):
        known = VocabularyInfo(size=1000, sentinels=tuple(range(20)))
        SpanCorruption(known=known).vary({"input_ids": np.arange(568)}, np.random.default_rng(0))
    with pytest.raises(ValueError, match="it needs an encoder-decoder"):
        SpanCorruption().module(model_of("gpt2"))
    with pytest.raises(ValueError, match="above 0 and below 1"):
        SpanCorruption(rate=0.0)
