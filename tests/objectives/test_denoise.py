"""BART's five noise functions, MASS, and the common parts of encoder-decoder objectives."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import anyformer as af
from anyformer.objectives import denoise as d
from anyformer.objectives.mass import MASS
from anyformer.objectives.translate import Translate
from anyformer.objectives.vocabulary_info import VocabularyInfo
from anyformer.specs.field_types import Fraction
from small import close
from tiny import model_of

KNOWN = VocabularyInfo(size=1000, mask=4, begin=2, end=3, apart=(2, 3, 4), stops=(9,))
IDS = np.arange(100, 300)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_token_masking() -> None:
    out = d.TokenMasking(rate=0.15).damage(IDS, rng(), KNOWN)
    assert len(out) == 200 and (out == 4).sum() == 30 and np.array_equal(out[out != 4], IDS[out != 4])


def test_token_deletion() -> None:
    out = d.TokenDeletion(rate=0.15).damage(IDS, rng(), KNOWN)
    assert len(out) == 170 and (np.diff(out) > 0).all() and set(out) <= set(IDS)


def test_text_infilling() -> None:
    """30 % of the tokens are removed, in spans of length Poisson(3); each becomes one mask, also those of length 0."""
    random, spans, gone = rng(), Counter(), []
    for _ in range(1000):
        out = d.TextInfilling().damage(IDS, random, KNOWN)
        kept = out[out != 4]
        assert len(kept) == 140 and (np.diff(kept) > 0).all()
        # single masks between kept tokens show the length of their span
        for i in np.flatnonzero(out[1:-1] == 4) + 1:
            if out[i - 1] != 4 and out[i + 1] != 4:
                spans[int(out[i + 1] - out[i - 1] - 1)] += 1
        gone.append((out == 4).sum())
    total = sum(spans.values())
    for length in range(6):  # slightly below the Poisson tail, because the last span of a text is cut
        poisson = np.exp(-3) * 3**length / np.prod(np.arange(1, length + 1))
        assert abs(spans[length] / total - poisson) < 0.02, length
    assert abs(np.mean(gone) - 20.5) < 0.7  # 60 tokens in spans of 3, plus the last one, which is cut


def test_text_infilling_masks_alike_everywhere() -> None:
    random, where = rng(), np.zeros(200)
    for _ in range(2000):
        out = d.TextInfilling().damage(IDS, random, KNOWN)
        where[np.isin(IDS, out)] += 1
    inner = where[10:-10] / 2000  # few spans reach the first and last tokens
    assert abs(where.mean() / 2000 - 0.7) < 1e-9 and inner.std() < 0.016


def test_sentence_permutation() -> None:
    ids = np.array([1, 2, 9, 3, 9, 9, 4, 5, 9, 6])  # a full stop is 9; the last sentence has none
    seen = {tuple(d.SentencePermutation().damage(ids, rng(i), KNOWN)) for i in range(400)}
    sentences = [(1, 2, 9), (3, 9, 9), (4, 5, 9), (6,)]
    from itertools import permutations

    assert seen == {sum(order, ()) for order in permutations(sentences)}
    half = [d.SentencePermutation(rate=0.5).damage(ids, rng(i), KNOWN).tolist() for i in range(100)]
    assert Counter(row == ids.tolist() for row in half)[True] > 30  # two of four sentences, which may keep their order


def test_document_rotation() -> None:
    ids = np.arange(5)
    seen = {tuple(d.DocumentRotation().damage(ids, rng(i), KNOWN)) for i in range(100)}
    assert seen == {tuple((ids + i) % 5) for i in range(5)}
    assert {tuple(d.DocumentRotation(rate=0.0).damage(ids, rng(i), KNOWN)) for i in range(9)} == {tuple(ids)}


@pytest.mark.parametrize("noise", [kind() for kind in d.Noise.__subclasses__()], ids=lambda n: type(n).__name__)
@pytest.mark.parametrize("ids", [np.zeros(0, np.int64), np.array([9]), np.array([9, 9])], ids=len)
def test_tiny_texts(noise: d.Noise, ids: np.ndarray) -> None:
    for seed in range(20):
        assert len(noise.damage(ids, rng(seed), KNOWN)) <= len(ids) + 8


def test_noises_are_composed_in_order_and_the_text_is_the_target() -> None:
    class Reverse(d.Noise):
        rate: Fraction = 1.0

        def damage(self, ids: np.ndarray, random: np.random.Generator, known: VocabularyInfo) -> np.ndarray:
            return ids[::-1]

    noises = (Reverse(), d.TokenDeletion(rate=0.5), Reverse())
    seen = d.Denoise(noises=noises, known=KNOWN).vary({"input_ids": np.arange(10, 20)}, rng())
    assert seen["labels"].tolist() == [2, *range(10, 20), 3]
    inner = seen["input_ids"][1:-1]
    assert len(inner) == 5 and (np.diff(inner) > 0).all() and seen["input_ids"][[0, -1]].tolist() == [2, 3]
    assert d.Denoise().noises == (d.SentencePermutation(), d.TextInfilling())
    assert d.Denoise().reads(512) == 510
    again = af.override(d.Denoise(), {"noises.1.rate": 0.2})
    assert again.noises[1].rate == 0.2


def test_bart_from_text(bart: Any) -> None:
    objective = d.Denoise().ready(bart)
    record = objective.encode({"text": "The fox. The dog."}, bart)
    assert bart.decode(record["input_ids"]) == "The fox. The dog."
    seen = objective.vary(record, rng())
    assert bart.decode(seen["labels"]) == "<s>The fox. The dog.</s>" and bart.mask_token_id in seen["input_ids"]


def test_noise_mistakes_are_one_line(gpt2: Any) -> None:
    with pytest.raises(ValueError, match="needs a tokenizer with a mask token"):
        d.Denoise().ready(gpt2)
    with pytest.raises(ValueError, match="noises is empty"):
        d.Denoise(noises=())
    with pytest.raises(ValueError, match="TokenMasking.rate is 1.5"):
        d.TokenMasking(rate=1.5)
    d.Denoise(noises=(d.TokenDeletion(), d.DocumentRotation())).ready(gpt2)  # these do not need a mask token


# -- MASS -------------------------------------------------------------------------------------------------------------


def test_mass() -> None:
    """Half of the tokens are masked 80/10/10 for the encoder; the decoder sees only the fragment, shifted by one."""
    objective, random, ids = MASS(known=KNOWN), rng(), np.arange(100, 140)
    kinds, starts = np.zeros(3), []
    for _ in range(2000):
        seen = objective.vary({"input_ids": ids}, random)
        fragment, places = seen["labels"], seen["decoder_position_ids"]
        assert len(fragment) == 20 and np.array_equal(fragment, ids[places]) and (np.diff(places) == 1).all()
        assert seen["decoder_input_ids"].tolist() == [4, *fragment[:-1]]
        new = seen["input_ids"]
        assert np.array_equal(np.delete(new, places), np.delete(ids, places))
        hidden = new[places]
        kinds += [(hidden == 4).sum(), ((hidden != 4) & (hidden != fragment)).sum(), (hidden == fragment).sum()]
        starts.append(places[0])
    assert np.abs(kinds / kinds.sum() - [0.8, 0.1, 0.1]).max() < 0.01
    assert set(starts) == set(range(21))


def test_mass_reads_the_decoder_inputs_it_made() -> None:
    model, objective = model_of("t5"), MASS(known=KNOWN.replace(size=50))
    records = [objective.vary({"input_ids": np.arange(10, 10 + n)}, rng(n)) for n in (12, 7)]
    batch = objective.collate(records, 0)
    inputs = {n: t for n, t in batch.items() if n not in ("labels", "decoder_position_ids")}
    logits = model(**inputs).logits
    right = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum")
    close(objective.losses(objective.module(model), batch)["loss"], right, 1e-5)
    assert objective.weights(batch) == {"loss": 6 + 4}


# -- from text to text -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_translation_loss(smoothing: float, words: Any) -> None:
    model, objective = model_of("t5"), Translate(smoothing=smoothing)
    pairs = [("the cat sat", "you and me"), ("the dog ran on the mat", "week")]
    records = [objective.encode({"source": a, "target": b}, words) for a, b in pairs]
    assert words.decode(records[0]["input_ids"]) == "the cat sat </s>" or records[0]["input_ids"][-1] == 1
    assert [len(record["labels"]) for record in records] == [4, 2]
    batch = objective.collate(records, 0)
    assert batch["labels"][1].tolist()[2:] == [-100, -100]
    start = torch.tensor([[0], [0]])
    decoder = torch.cat([start, batch["labels"][:, :-1].clamp(min=0)], 1)
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], decoder_input_ids=decoder)
    right = F.cross_entropy(
        logits.logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum", label_smoothing=smoothing
    )
    close(objective.losses(objective.module(model), batch)["loss"], right, 1e-5)
    assert objective.weights(batch) == {"loss": 6}


def test_translation_examples(words: Any) -> None:
    with pytest.raises(ValueError, match="column 'target' is empty"):
        Translate().encode({"source": "the cat", "target": ""}, words)
    with pytest.raises(ValueError, match="no column 'target'; did you mean 'targets'"):
        Translate().encode({"source": "the cat", "targets": "a"}, words)
    asked = Translate(prefix="you to me ").encode({"source": "cat", "target": "dog"}, words)
    assert words.decode(asked["input_ids"][:-1]) == "you to me cat"
