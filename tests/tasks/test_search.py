"""`anyformer index` and `search`: what is stored, the closest texts, and errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import anyformer as af
from anyformer import cli

Folders = Callable[..., Path]
TEXTS = ["The quick brown fox", "jumps over", "", "the lazy dog", "naïve café"]


@pytest.fixture
def model(folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    return folders("BertModel")


def test_the_closest_texts(model: Path) -> None:
    errors = af.tasks.index(model, TEXTS, "a.index", batch=2)
    assert errors == [{"row": 2, "error": "text is empty"}]
    texts = [text for text in TEXTS if text]
    vectors = torch.stack(af.tasks.embed(model, texts))
    for query in ("the dog", "naïve café"):
        scores = vectors @ af.tasks.embed(model, query)
        found = af.tasks.search("a.index", query, top_k=3)
        order = scores.argsort(descending=True)[:3].tolist()
        assert [one["text"] for one in found] == [texts[i] for i in order]
        assert [TEXTS[one["row"]] for one in found] == [one["text"] for one in found]
        assert [one["score"] for one in found] == pytest.approx(scores[order].tolist(), abs=1e-5)
    assert found[0]["text"] == "naïve café" and found[0]["score"] == pytest.approx(1, abs=1e-5)
    several = af.tasks.search("a.index", ["the dog", ""], top_k=9)
    assert len(several[0]) == 4 and several[1] == {"error": "text is empty"}


def test_the_pooling_of_an_index_is_that_of_its_queries(model: Path) -> None:
    af.tasks.index(model, ["jumps over", "fox"], "a.index", pool="cls")
    assert af.tasks.search("a.index", "jumps over")[0]["score"] == pytest.approx(1, abs=1e-5)


def test_commands(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["index", str(model), "texts.txt"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("texts.index: 4 texts of texts.txt\n") and "1 row skipped: 1 because the text is empty" in err
    assert cli.main(["search", "texts.index", "the lazy dog", "--json", "--top-k", "1"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["row"] == 4 and found["text"] == "the lazy dog"  # the line of the file
    assert cli.main(["search", "texts.index", "fox", "dog", "--top-k", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["input", "score", "row", "text"] and [line.split()[0] for line in lines[1:]] == [
        *"1122"
    ]
    (tmp_path / "queries.txt").write_text("fox\n\n")
    assert cli.main(["search", "texts.index", "--file", "queries.txt", "--json"]) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[1]) == {"error": "text is empty"}
    (tmp_path / "t.csv").write_text('id,body\n1,"a long\nstory"\n2,\n3,short\n')
    assert cli.main(["index", str(model), "t.csv", "--out", "t.index"]) == 0
    assert load_file("t.index")["rows"].tolist() == [2, 5]
    (tmp_path / "t.jsonl").write_text('{"id": 1, "say": "a"}\n{"id": 2, "say": 3}\n{"id": 4}\n[]\n')
    capsys.readouterr()
    assert cli.main(["index", str(model), "t.jsonl", "--column", "say", "--out", "t.index", "--overwrite"]) == 0
    assert "3 rows skipped: 2 because the column is not a text" in capsys.readouterr().err


@pytest.mark.parametrize("words, line", [
    ("index {model} nowhere.txt", "nowhere.txt: no such file"),
    ("index {model} texts.txt --out texts.txt", "texts.txt exists already"),
    ("index {model} texts.txt --out a.index", "a.index exists already; give another name, or --overwrite"),
    ("index {model} texts.txt --column text", "--column goes with a table"),
    ("index {model} t.csv --column txt", "no column 'txt'; did you mean 'text'?"),
    ("index {model} empty.txt", "empty.txt: no text"),
    ("index {model} texts.txt --pool max", "no pool 'max'"),
    ("search nowhere.index dog", "nowhere.index: no such file"),
    ("search texts.txt dog", "texts.txt is not an index of texts"),
    ("search other.index dog", "other.index is not an index of texts: it lacks model, name, pool, vectors"),
    ("search torn.index dog", "torn.index is not an index of texts: its tensors do not fit together"),
    ("search a.index dog --model {other}", "a.index was written with a different model"),
    ("search moved.index dog", "moved.index: the model of this index is missing"),
    ("search a.index dog --top-k 0", "top_k is 0"),
], ids=str)  # fmt: skip
def test_mistakes(
    words: str, line: str, model: Path, folders: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    af.tasks.index(model, ["one", "two"], "a.index")
    tensors = load_file("a.index")
    about = {"model": "x", "name": str(tmp_path / "gone"), "pool": ""}
    save_file(tensors, "moved.index", about)
    save_file({**tensors, "ends": tensors["ends"][:1]}, "torn.index", about)
    save_file({"rows": tensors["rows"]}, "other.index")
    (tmp_path / "t.csv").write_text("text\na\n")
    (tmp_path / "empty.txt").write_text("\n\n")
    given = words.format(model=model, other=folders("BertForMaskedLM")).split()
    capsys.readouterr()
    assert cli.main(given) == 2
    out, err = capsys.readouterr()
    assert out == "" and line in err and err.count("\n") == 1, err
