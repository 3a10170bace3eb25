"""Spans of words: compared with transformers for each aggregation; and models trained here."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer import cli
from anyformer.data import Bytes, Data, JSONLines
from anyformer.objectives.tag import Tag, split_words, word_tokens
from anyformer.tasks.each.tag import AGGREGATIONS
from anyformer.train.optim import AdamW
from anyformer.train.run import Batch, Run
from anyformer.train.start import train
from tiny import encoder

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


@pytest.mark.parametrize("aggregation", [name for name in AGGREGATIONS if name != "word"])
@pytest.mark.parametrize(
    "architecture", [f"{name}ForTokenClassification" for name in ("Bert", "Roberta", "GPT2", "T5")]
)
def test_the_pipeline_says_the_same(folders: Folders, pipeline: Any, architecture: str, aggregation: str) -> None:
    folder = folders(architecture, **NAMES)
    theirs = pipeline("token-classification", folder)
    ours = af.tasks.tag(folder, TEXTS, aggregation=aggregation)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers warns that it guesses word boundaries of byte-level tokens
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
    with pytest.raises(ValueError, match="^stride is -1"):
        af.tasks.tag(folder, [LONG, LONG], stride=-1)
    with pytest.raises(ValueError, match="needs a model with a TagHead"):
        af.tasks.tag(folders("BertForMaskedLM"), "a")
    with pytest.raises(ValueError, match="^text is empty$"):
        af.tasks.tag(folder, " ")
    with pytest.raises(ValueError, match="^the text has no tokens$"):
        af.tasks.tag(folder, "\u200d\u200d")


# -- models that were trained here: a label for each word


def tagger(folder: Path, labels: tuple[str, ...], every: bool = False, **changes: Any) -> Any:
    """A run without steps; its saved description has the objective, and so how words are labelled."""
    rows = [{"words": ["Ride", "Jane", "in", "London"], "tags": [labels[0], labels[1], *labels[-2:]]}]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * 4))
    special = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    run = Run(
        name="tags", vocabulary=Bytes(special=special, begin="cls_token", end="sep_token"),
        model=encoder("BertForTokenClassification", num_labels=len(labels), initializer_range=1.0, **changes),
        data=Data(train=JSONLines(path=str(folder / "rows.jsonl"))), objective=Tag(labels=labels, every=every),
        batch=Batch(examples=2), steps=1, optimizer=AdamW(lr=1e-8),
    )  # fmt: skip
    train(run, folder / "run", device="cpu")
    return folder / "run"


BIO = ("B-PER", "I-PER", "B-LOC", "O")
SAID = "Ride Jane  lives in the U.S., near (London)."


@pytest.mark.parametrize("every", [False, True])
def test_a_model_that_was_trained_here_labels_whole_words_wherever_it_goes(tmp_path: Path, every: bool) -> None:
    """Each token of these models is a byte: without words, labels change inside them."""
    folder = tagger(tmp_path, BIO, every)
    ours, saved, exported = af.load(folder), tmp_path / "saved", tmp_path / "exported"
    af.save(ours, saved)
    assert cli.main(["convert", str(folder), str(exported), "--format", "hf"]) == 0
    assert json.loads((exported / "config.json").read_text())["label_all_tokens"] is every
    expected = af.tasks.tag(ours, SAID)
    starts, ends = map(set, zip(*split_words(SAID)))
    assert expected and all(span["start"] in starts and span["end"] in ends for span in expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as a warning about an unknown config field
        for where in (saved, exported):
            assert af.tasks.tag(where, SAID) == expected
    simple = af.tasks.tag(ours, SAID, aggregation="simple")
    assert any(span["start"] not in starts or span["end"] not in ends for span in simple)


@pytest.mark.parametrize("every", [False, True])
def test_a_word_has_the_label_that_evaluation_gives_it(tmp_path: Path, every: bool) -> None:
    labels = ("NOUN", "VERB", "DET", "PUNCT")  # without "O": a result for each word
    model = af.load(tagger(tmp_path, labels, every))
    words = ["Ride", "sees", "the", "U.S.", ","]
    found = af.tasks.tag(model, "Ride sees the U.S.,")
    assert [span["word"] for span in found] == words
    ids, places = word_tokens(words, af.tasks.open_model(model).tokenizer)
    shares = model(input_ids=torch.tensor(ids)[None].long()).logits[0].detach().softmax(-1)
    for number, span in enumerate(found):
        tokens = shares[torch.tensor(places) == number]
        own = tokens.mean(0) if every else tokens[0]
        assert span["entity_group"] == labels[int(own.argmax())]
        assert span["score"] == pytest.approx(float(own.max()), abs=1e-5)


def test_windows_cut_no_word(tmp_path: Path) -> None:
    model = af.load(tagger(tmp_path, ("NOUN", "VERB", "DET", "PUNCT")))
    text = " ".join(f"word{i} and {i}" for i in range(20))
    for stride in (0, 7, None):
        assert [span["word"] for span in af.tasks.tag(model, text, stride=stride)] == text.split()


def test_how_a_text_is_divided_into_words() -> None:
    text = '(Ada) "sees" the U.S., wait... :) @me I \'m in!!'
    words = ["(", "Ada", ")", '"', "sees", '"', "the", "U.S.", ",", "wait", "...", ":)", "@me", "I", "'m", "in", "!!"]
    assert [text[start:end] for start, end in split_words(text)] == words
