"""Spans of words: transformers' results, with each way to make words of tokens."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import anyformer as af
from anyformer.tasks.each.tag import AGGREGATIONS

Folders = Callable[..., Path]
LABELS = ("B-PER", "I-PER", "O", "B-LOC", "I-LOC", "MISC")
NAMES = {"id2label": dict(enumerate(LABELS)), "label2id": {name: i for i, name in enumerate(LABELS)}}
TEXTS = ["The quick brown fox jumps over the lazy dog.", "transformers transforming; naïve café 42 dogs zyzzyva!",
         "Ada ᚠᚢᚦ foxᚠᚢᚦ", "  two   spaces,\tDie Füchse springen"]  # fmt: skip
LONG = " ".join(["The quick brown fox; transformers transforming, said 42 dogs.", "Die Füchse springen über"] * 4)


def same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], text: str) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs):
        assert one.keys() == other.keys()
        assert one["score"] == pytest.approx(float(other["score"]), abs=1e-5)
        assert {k: v for k, v in one.items() if k not in ("score", "word")} == {
            k: v for k, v in other.items() if k not in ("score", "word")
        }
        assert one["word"] == text[one["start"] : one["end"]]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize(
    "architecture", [f"{name}ForTokenClassification" for name in ("Bert", "Roberta", "GPT2", "T5")]
)
def test_the_pipeline_says_the_same(folders: Folders, pipeline: Any, architecture: str, aggregation: str) -> None:
    folder = folders(architecture, **NAMES)
    theirs = pipeline("token-classification", folder)
    ours = af.tasks.tag(folder, TEXTS, aggregation=aggregation)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs guesses where words of byte-level tokens begin, and says so
        for text, found in zip(TEXTS, ours, strict=True):
            same(found, theirs(text, aggregation_strategy=aggregation), text)
    assert sum(map(len, ours)) > 3


@pytest.mark.parametrize("aggregation", ["simple", "first", "average", "max"])
@pytest.mark.parametrize("stride", [0, 5, 20])
def test_long_texts_are_read_in_windows(folders: Folders, pipeline: Any, aggregation: str, stride: int) -> None:
    folder = folders("BertForTokenClassification", **NAMES)
    theirs = pipeline("token-classification", folder)(LONG, aggregation_strategy=aggregation, stride=stride)
    found = af.tasks.tag(folder, [LONG, TEXTS[0]], aggregation=aggregation, stride=stride)
    same(found[0], theirs, LONG)
    assert found[0][-1]["end"] > len(LONG) - 45
    same(found[1], af.tasks.tag(folder, TEXTS[0], aggregation=aggregation), TEXTS[0])


def test_without_a_stride_a_quarter_of_a_window_is_in_common(folders: Folders) -> None:
    folder = folders("BertForTokenClassification", **NAMES)
    assert af.tasks.tag(folder, LONG) == af.tasks.tag(folder, LONG, stride=11)  # of 46 tokens


def test_mistakes(folders: Folders) -> None:
    folder = folders("BertForTokenClassification", **NAMES)
    with pytest.raises(ValueError, match="^no aggregation 'mean'"):
        af.tasks.tag(folder, "a", aggregation="mean")
    with pytest.raises(ValueError, match="^stride is 46, and a window of this model has 46 tokens"):
        af.tasks.tag(folder, LONG, stride=46)
    with pytest.raises(ValueError, match="^input 1: stride is -1"):
        af.tasks.tag(folder, [LONG], stride=-1)
    with pytest.raises(ValueError, match="needs a model with a TagHead"):
        af.tasks.tag(folders("BertForMaskedLM"), "a")
    with pytest.raises(ValueError, match="^text is empty$"):
        af.tasks.tag(folder, " ")
    with pytest.raises(ValueError, match="^the text has no tokens$"):
        af.tasks.tag(folder, "\u200d\u200d")
