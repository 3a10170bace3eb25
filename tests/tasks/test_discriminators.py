"""next-sentence and detect-replaced, compared with transformers' models."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af

Folders = Callable[..., Path]
PAIRS = [{"text": "The fox", "pair": "jumps over the lazy dog."}, {"text": "Don't say it, said the dog", "pair": "a"},
         {"text": "42 dogs", "pair": "and 1,234 foxes!"}]  # fmt: skip


@functools.cache
def opened(folder: Path, architecture: str) -> Any:
    import transformers

    model = getattr(transformers, architecture).from_pretrained(folder).eval()
    return transformers.AutoTokenizer.from_pretrained(folder), model


def theirs(folder: Path, architecture: str, *texts: str, output: str = "logits") -> Any:
    tokenizer, model = opened(folder, architecture)
    with torch.no_grad():
        return getattr(model(**tokenizer(*texts, return_tensors="pt")), output)[0]


@pytest.mark.parametrize(("architecture", "output"), [
    ("BertForNextSentencePrediction", "logits"),
    ("BertForPreTraining", "seq_relationship_logits"),
    ("AlbertForPreTraining", "sop_logits"),
])  # fmt: skip
def test_next_sentence(folders: Folders, architecture: str, output: str) -> None:
    folder = folders(architecture)
    found = af.tasks.next_sentence(folder, PAIRS)
    for row, one in zip(PAIRS, found, strict=True):
        score = float(theirs(folder, architecture, row["text"], row["pair"], output=output).softmax(-1)[0])
        assert one == {"follows": score > 0.5, "score": pytest.approx(score, abs=1e-5)}
    assert af.tasks.next_sentence(folder, PAIRS[0])["score"] == pytest.approx(found[0]["score"], abs=1e-5)


def test_next_sentence_mistakes(folders: Folders) -> None:
    folder = folders("BertForNextSentencePrediction")
    with pytest.raises(ValueError, match="^next-sentence needs text and pair, but pair is missing$"):
        af.tasks.next_sentence(folder, "The fox")
    with pytest.raises(ValueError, match="^the text has 63 tokens, and this model takes at most 48"):
        af.tasks.next_sentence(folder, {"text": "dog " * 30, "pair": "fox " * 30})
    cut = af.tasks.next_sentence(folder, {"text": "dog " * 30, "pair": "fox " * 30}, truncate=True)
    short = af.tasks.next_sentence(folder, {"text": "dog " * 22, "pair": "fox " * 23})
    assert cut["score"] == pytest.approx(short["score"], abs=1e-6)
    with pytest.raises(ValueError, match="this model has a ClassifyHead"):  # a classifier is a different task
        af.tasks.next_sentence(folders("BertForSequenceClassification"), PAIRS[0])


def test_detect_replaced(folders: Folders) -> None:
    folder = folders("ElectraForPreTraining")
    texts = ["The quick brown fox transforms.", "a café", "It's 42 dogs"]
    found = af.tasks.detect_replaced(folder, texts)
    for text, tokens in zip(texts, found, strict=True):
        logits = theirs(folder, "ElectraForPreTraining", text)[1:-1]  # without [CLS] and [SEP]
        assert [one["score"] for one in tokens] == pytest.approx(logits.sigmoid().tolist(), abs=1e-5)
        assert [one["replaced"] for one in tokens] == (logits > 0).tolist()
        assert [one["word"] for one in tokens] == [text[one["start"] : one["end"]] for one in tokens]
        assert "".join(one["word"] for one in tokens) == text.replace(" ", "")
    assert len({one["replaced"] for tokens in found for one in tokens}) == 2


def test_detect_replaced_mistakes(folders: Folders) -> None:
    folder = folders("ElectraForPreTraining")
    with pytest.raises(ValueError, match="^the text has 72 tokens, and this model takes at most 48"):
        af.tasks.detect_replaced(folder, "dog " * 70)
    assert len(af.tasks.detect_replaced(folder, "dog " * 70, truncate=True)) == 46
    with pytest.raises(ValueError, match="needs a model with a DetectHead"):
        af.tasks.detect_replaced(folders("BertForMaskedLM"), "a")
