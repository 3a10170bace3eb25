"""Recipes name their data and what fetches it; what is fetched is what they read. A table plays the hub."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyformer import cli
from anyformer.data.source import Source
from anyformer.recipes import recipe, recipes
from anyformer.recipes.shared.sources import ORIGINS, fetch, folders_of
from anyformer.specs.part import walk

ANSWERS = {"text": ["a tree"], "answer_start": [7]}
QUESTION = {"id": "q1", "context": "It was a tree\tand tall.", "question": "What was it?", "answers": ANSWERS}
ROWS: dict[str, list[dict[str, Any]]] = {
    "karpathy/tiny_shakespeare": [{"text": "First Citizen:\nBefore we proceed.\n\n" * 50}],
    "nyu-mll/glue/sst2": [{"sentence": 'a "fine" film ', "label": 1}, {"sentence": "dull", "label": 0}],
    "SetFit/sst2": [{"text": "not bad", "label": 1, "label_text": "positive"}],
    "nyu-mll/glue/cola": [{"sentence": "The cat sat.", "label": 1}, {"sentence": "Sat cat.", "label": 0}],
    "nyu-mll/glue/mrpc": [{"sentence1": f'He said "so" {i}.', "sentence2": "So he said.", "label": i % 2, "idx": i}
                          for i in range(30)],
    "nyu-mll/glue/rte": [{"sentence1": "It rains.", "sentence2": "It is wet.", "label": 0, "idx": 0}],
    "nyu-mll/glue/qnli": [{"question": "Who?", "sentence": "Ada did.", "label": 1, "idx": 0}],
    "mteb/stsbenchmark-sts": [{"sentence1": "A man, a plan.", "sentence2": 'A "plan".', "score": 3.8}],
    "leondz/wnut_17": [{"tokens": ["Ada", "sang"], "ner_tags": [9, 0]}, {"tokens": ["Oslo"], "ner_tags": [7]}],
    "bentrevett/multi30k": [{"en": "A dog.", "de": "Ein Hund."}, {"en": "Two dogs.", "de": "Zwei Hunde."}],
    "rajpurkar/squad": [QUESTION], "google/xquad/xquad.en": [QUESTION],
    "zalando-datasets/fashion_mnist": [{"image": np.full((28, 28), i, np.uint8), "label": i} for i in range(6)],
}  # fmt: skip


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What was asked of `datasets`, which has these rows."""
    datasets = pytest.importorskip("datasets")
    asked: list[str] = []

    def load(name: str, config: str | None, *, split: str, revision: str | None) -> Any:
        asked.append(name)
        return ROWS[f"{name}/{config}" if config else name]

    monkeypatch.setattr(datasets, "load_dataset", load)
    yield asked


def test_every_recipe_names_its_data() -> None:
    for name in recipes():
        for folder in folders_of(name):
            assert ORIGINS[folder].about, f"{name} reads {folder}, and nothing says where that is from"
    assert folders_of("quickstart") == [] and folders_of("squad-scratch") == ["qa_squad11_part", "qa_xquad"]


@pytest.mark.parametrize("name", recipes())
def test_what_is_fetched_is_what_the_recipe_reads(name: str, played: list[str], tmp_path: Path) -> None:
    folders = [each for each in folders_of(name) if not ORIGINS[each].model and not ORIGINS[each].generate]
    private = [folder for folder in folders if not ORIGINS[folder].available]
    for folder in private:
        with pytest.raises(ValueError, match=f"{folder} cannot be fetched: "):
            fetch(folder, tmp_path)
    for folder in folders:
        if folder not in private:
            assert fetch(folder, tmp_path) == tmp_path / folder
    if private or not folders:
        return
    data = recipe(name, str(tmp_path)).data
    for split in filter(None, (data.train, data.valid, data.test)):
        rows = [row for row in split.raw()]
        assert rows and all(row.example is not None for row in rows), rows
        assert any(isinstance(part, Source) for _, part in walk(split))
    assert {*played} <= {origin.page for origin in ORIGINS.values()} | {"SetFit/sst2"}


def rows_of(source: Source) -> list[dict[str, Any]]:
    """Under the names that the objective knows."""
    return [row.example for row in source.rows(()) if row.example is not None]


def test_rows_come_back_as_they_were(played: list[str], tmp_path: Path) -> None:
    for folder in ("glue_sst2", "glue_mrpc", "stsb", "ner_wnut17", "qa_squad11_part", "qa_xquad", "fashion_mnist"):
        fetch(folder, tmp_path)
    here = str(tmp_path)
    train = rows_of(recipe("sst2-scratch", here).data.train)
    assert [(row["text"], row["label"]) for row in train] == [('a "fine" film', "1"), ("dull", "0")]
    (pair,) = rows_of(recipe("stsb", here).data.valid)
    assert (pair["text"], pair["pair"], float(pair["label"])) == ("A man, a plan.", 'A "plan".', 3.8)
    names = rows_of(recipe("wnut17-scratch", here).data.train)
    assert names[0] == {"words": ["Ada", "sang"], "tags": ["B-person", "O"]} and names[1]["tags"] == ["B-location"]
    (answer,) = rows_of(recipe("squad-scratch", here).data.valid)
    assert answer == QUESTION
    pictures = rows_of(recipe("fashion-mnist", here).data.train)
    assert [int(row["label"]) for row in pictures] == [0, 1, 2, 3, 4, 5] and int(pictures[2]["image"].max()) == 2


def test_the_verb(
    played: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["fetch"]) == 0
    listed = capsys.readouterr().out
    alone = {"quickstart", "regression"}  # read nothing that has to be there
    assert {name for name in recipes() if name not in listed} == alone and "nyu-mll/glue" in listed
    assert cli.main(["train", "shakespeare"]) == 2
    assert "data/tiny_shakespeare is not there: `anyformer fetch shakespeare` gets it" in capsys.readouterr().err
    assert cli.main(["fetch", "shakespeare"]) == 0
    assert "`anyformer train shakespeare --data data` trains with it" in capsys.readouterr().out
    assert cli.main(["fetch", "shakespeare"]) == 0 and played == ["karpathy/tiny_shakespeare"]
    assert "is there" in capsys.readouterr().out


def test_without_a_network_or_the_library(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")

    def unreachable(*given: Any, **options: Any) -> Any:
        raise ConnectionError("Couldn't reach 'bentrevett/multi30k' on the Hub (offline)\nand more")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    call = ["fetch", "multi30k-en-de", "--data", str(tmp_path)]
    assert cli.main(call) == 2
    assert "data set bentrevett/multi30k cannot be reached: Couldn't reach" in (line := capsys.readouterr().err)
    assert line.count("\n") == 1 and not any(tmp_path.iterdir())  # nothing half done
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert cli.main(call) == 2
    assert "needs datasets: pip install 'anyformer[data]'" in capsys.readouterr().err
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    assert cli.main(["fetch", "sst2", "--data", str(tmp_path / "data"), "--offline"]) == 2
    assert "'sentence-transformers/all-MiniLM-L6-v2' is not in the cache" in capsys.readouterr().err
    assert cli.main(["fetch", "dialogue", "--data", str(tmp_path)]) == 2
    assert "cannot be fetched: conversations of your own" in capsys.readouterr().err


def test_a_seed_that_makes_nothing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["fetch", "shapes", "--data", str(tmp_path)]
    assert cli.main([*call, "--seed", "-1"]) == 2
    assert "--seed is -1" in capsys.readouterr().err
    (tmp_path / "shapes").mkdir()
    assert cli.main([*call, "--seed", "4"]) == 0
    assert "shapes is there, with the seed it was made with" in capsys.readouterr().out
