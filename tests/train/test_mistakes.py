"""Mistakes in the data, and fields that do not fit together: one clear line from `anyformer train` before any step.

test_cli.py has empty and missing files, rows that are too long for the model, and a vocabulary that is too large."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from anyformer import cli
from anyformer.data import CSV, Bytes, Columns, Data, JSONLines, Stored
from anyformer.objectives.answer import Answer
from anyformer.objectives.classify import Classify
from anyformer.objectives.tag import Tag
from anyformer.objectives.translate import Translate
from anyformer.recipes.shared.encoder import SPECIAL
from anyformer.specs.codec import to_json
from anyformer.train.run import Batch, Run
from anyformer.weights import manifest
from tiny import encoder

LABELS = ("no", "yes")


def error_of(
    folder: Path, capsys: pytest.CaptureFixture[str], train: Any, objective: Any, model: Any, **more: Any
) -> str:
    """Return the one line."""
    base = {"vocabulary": Bytes(special=SPECIAL, begin="cls_token", end="sep_token"), "batch": Batch(examples=2)}
    run = Run(name="wrong", data=Data(train=train), objective=objective, model=model, steps=2, **{**base, **more})
    (folder / "run.json").write_text(to_json(run))
    assert cli.main(["train", str(folder / "run.json"), "--out", str(folder / "run"), "--device", "cpu"]) == 2
    out, err = capsys.readouterr()
    assert err.count("\n") == 1 and "Traceback" not in err and not manifest.steps(folder / "run")
    assert not (folder / "run" / "run.json").exists(), "the folder is free for another try"
    return err


def table(folder: Path, *rows: str) -> CSV:
    (folder / "rows.csv").write_text("\n".join(("text,label", *rows)) + "\n")
    return CSV(path=str(folder / "rows.csv"))


@pytest.mark.parametrize("label, wrong", [
    ("2", "column 'label': label 2 is outside 0..1"),
    ("-1", "column 'label': label -1 is outside 0..1"),
    ("yess", "column 'label': label 'yess' is not known; did you mean 'yes'?"),
    ("0.5", "column 'label': label '0.5' is not known"),
])  # fmt: skip
def test_a_label_outside_its_range(label: str, wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = table(tmp_path, "fine,1", f"fine,{label}")
    err = error_of(tmp_path, capsys, rows, Classify(labels=LABELS), encoder(labels=LABELS))
    assert f"rows.csv:3: {wrong}" in err and "set data.unfit='skip'" in err


def test_a_number_outside_its_range(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, objective = table(tmp_path, "fine,4.5", "fine,5.5"), Classify(low=0.0, high=5.0)
    err = error_of(tmp_path, capsys, rows, objective, encoder(labels=("similarity",)))
    assert "rows.csv:3: column 'label': 5.5 is outside 0.0 to 5.0" in err


def test_a_tag_that_is_not_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "words.conll").write_text("Ann\tB-person\nran\tO\n\nParis\tB-place\n")
    words, labels = Columns(path=str(tmp_path / "words.conll"), fields={"words": 0, "tags": 1}), ("O", "B-person")
    err = error_of(tmp_path, capsys, words, Tag(labels=labels), encoder("BertForTokenClassification", labels))
    assert "words.conll:4: column 'tags': label 'B-place' is not known" in err


def test_an_answer_that_is_not_in_its_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"question": "who?", "context": "Ann ran", "answers": {"text": ["Bob"], "answer_start": [0]}}
    (tmp_path / "questions.jsonl").write_text(json.dumps(row))
    questions = JSONLines(path=str(tmp_path / "questions.jsonl"))
    objective = Answer(length=64, stride=8, question_length=16)
    err = error_of(tmp_path, capsys, questions, objective, encoder("BertForQuestionAnswering", ()))
    assert "questions.jsonl:1: the answer 'Bob' is not at character 0 of the context" in err


def test_as_many_labels_as_the_model_tells_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, three = table(tmp_path, "fine,1"), Classify(labels=("no", "yes", "maybe"))
    assert "3 labels in the objective, 2 in the model" in error_of(
        tmp_path, capsys, rows, three, encoder(labels=LABELS)
    )


def test_a_sequence_longer_than_the_model_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = table(tmp_path, "fine,1", f"{'x' * 63},0")
    err = error_of(tmp_path, capsys, rows, Classify(labels=LABELS), encoder(labels=LABELS))
    assert "rows.csv:3: 65 tokens; the limit is 64" in err  # with its two special tokens


def test_a_window_longer_than_the_model_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"question": "who?", "context": "Ann ran " * 20, "answers": {"text": ["Ann"], "answer_start": [0]}}
    (tmp_path / "questions.jsonl").write_text(json.dumps(row))
    questions = JSONLines(path=str(tmp_path / "questions.jsonl"))
    objective = Answer(length=100, stride=8, question_length=16)
    err = error_of(tmp_path, capsys, questions, objective, encoder("BertForQuestionAnswering", ()))
    assert "questions.jsonl:1: 100 tokens; the limit is 64" in err


def test_a_vocabulary_of_another_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Bytes(special=SPECIAL).make([], tmp_path / "stored")  # 260 tokens
    rows, stored = table(tmp_path, "fine,1"), Stored(path=str(tmp_path / "stored"))
    err = error_of(
        tmp_path, capsys, rows, Classify(labels=LABELS), encoder(labels=LABELS, vocab_size=259), vocabulary=stored
    )
    assert "the vocabulary has 260 tokens, the model 259: they do not belong together" in err


def test_an_objective_of_another_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pairs.jsonl").write_text('{"source": "a", "target": "b"}')
    pairs = JSONLines(path=str(tmp_path / "pairs.jsonl"))
    ends = Bytes(special={"eos_token": "</s>", "pad_token": "<pad>"}, end="eos_token")
    err = error_of(tmp_path, capsys, pairs, Translate(), encoder(labels=LABELS), vocabulary=ends)
    assert "Translate reads one text and writes another: it needs an encoder-decoder" in err


@pytest.mark.parametrize("content, wrong", [
    ("", "the train data has no usable example: it is empty"),
    ("text,label\n", "the train data has no usable example: it is empty"),
    ("text,label\nfine\n", "the train data has no usable example: 1 row skipped; the first problem: "),
    ("words,label\nfine,1\n", "no column 'text'"),
])  # fmt: skip
def test_an_empty_data_set(content: str, wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.csv").write_text(content)
    rows = CSV(path=str(tmp_path / "rows.csv"))
    assert wrong in error_of(tmp_path, capsys, rows, Classify(labels=LABELS), encoder(labels=LABELS))
