"""`anyformer fetch`: every recipe names its data and their origin, and can read what was fetched. A table replaces the
hub, and local files the web."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyformer import cli
from anyformer.data.source import Source
from anyformer.data.web import WebFile
from anyformer.recipes import recipe, recipes
from anyformer.recipes.shared.sources import ORIGINS, fetch, folders_of, models_of, origin_of, origins, runs_of
from anyformer.specs.codec import to_json
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


# in the format of SciTLDR-A; the last line has no newline
PAPER: dict[str, Any] = {
    "source": ["We study trees.", "They are tall."], "source_labels": [0, 1], "rouge_scores": [0.1, 0.5],
    "paper_id": "p1", "target": ["Trees are tall.", "Tall trees."], "title": "Trees",
}  # fmt: skip
PAPERS = "\n".join(json.dumps({**PAPER, "paper_id": f"p{i}"}) for i in range(2)).encode()


def put_on_web(
    monkeypatch: pytest.MonkeyPatch, web: Path, contents: dict[str, bytes], folder: str = "summ_scitldr"
) -> None:
    """Files on the web whose addresses are replaced by local files with `contents`; their checksums are unchanged."""
    web.mkdir(exist_ok=True)
    files = dict(ORIGINS[folder].files)
    for name, content in contents.items():
        (web / name).write_bytes(content)
        file = files[name]
        assert isinstance(file, WebFile)
        files[name] = dataclasses.replace(file, url=(web / name).as_uri())
    monkeypatch.setitem(ORIGINS, folder, dataclasses.replace(ORIGINS[folder], files=files))


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Record the calls of `datasets`, which returns these rows."""
    files = {name: WebFile("", hashlib.sha256(PAPERS).hexdigest()) for name in ORIGINS["summ_scitldr"].files}
    monkeypatch.setitem(ORIGINS, "summ_scitldr", dataclasses.replace(ORIGINS["summ_scitldr"], files=files))
    put_on_web(monkeypatch, tmp_path_factory.mktemp("web"), {name: PAPERS for name in files})
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
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
            assert origins()[folder].about, f"{name} reads {folder}, and nothing says where that is from"
            known = origins()[folder].available or origins()[folder].page.startswith("https://")
            assert known, f"{name} reads {folder}, and nothing says where it is published"
    assert folders_of("quickstart") == [] and folders_of("squad-scratch") == ["qa_squad11_part", "qa_xquad"]


def test_every_published_model_is_fetched() -> None:
    """Return all texts in a recipe that look like a hub id and are neither data nor a run."""
    models = {}
    for name in recipes():
        named = re.findall(r'"([\w.-]+/[\w.-]+)"', to_json(recipe(name, "DATA")))
        models[name] = models_of(name)
        assert {*models[name]} == {each for each in named if not each.startswith(("DATA/", "runs/", "./"))}, name
    assert models["scitldr"] == ["facebook/bart-base"] and models["distilbert"] == ["google-bert/bert-base-uncased"]
    assert not models["sst2"] and not models["gpt3-small"]


@pytest.mark.parametrize("name", recipes())
def test_what_is_fetched_is_what_the_recipe_reads(name: str, played: list[str], tmp_path: Path) -> None:
    folders = [each for each in folders_of(name) if not origin_of(each).model and not origin_of(each).generate]
    for folder in folders:
        if not origin_of(folder).available:
            with pytest.raises(ValueError, match=f"cannot be fetched: .*published at {origin_of(folder).page}"):
                fetch(folder, tmp_path)
            return
        assert fetch(folder, tmp_path) == tmp_path / folder
    if not folders:
        return
    run = recipe(name, str(tmp_path))
    for split in filter(None, (run.data.train, run.data.valid, run.data.test)):
        rows = [row for row in split.rows(run.objective.columns)]
        assert rows and all(row.example is not None for row in rows), rows
        assert any(isinstance(part, Source) for _, part in walk(split))
    assert {*played} <= {origin.page for origin in ORIGINS.values()} | {"SetFit/sst2"}


def rows_of(source: Source | None) -> list[Mapping[str, Any]]:
    """Under the names that the objective knows."""
    assert source is not None
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


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that allows the network: no HF_HUB_OFFLINE."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


def test_papers_come_back_as_they_were(played: list[str], tmp_path: Path) -> None:
    fetch("summ_scitldr", tmp_path)
    papers = rows_of(recipe("scitldr", str(tmp_path)).data.test)
    assert papers == [{**PAPER, "paper_id": "p0"}, {**PAPER, "paper_id": "p1"}]
    page = "https://github.com/allenai/scitldr"
    assert page in (tmp_path / "summ_scitldr" / "SOURCE.md").read_text().split()


def test_checksums_are_those_of_the_published_papers(
    shared_data: Path, online: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of the pinned commit; only their addresses are changed."""
    stored = {name: gzip.decompress((shared_data / "summ_scitldr" / name).read_bytes())
              for name in ORIGINS["summ_scitldr"].files}  # fmt: skip
    put_on_web(monkeypatch, tmp_path / "web", stored)
    fetch("summ_scitldr", tmp_path)
    data = recipe("scitldr", str(tmp_path)).data
    assert [len(rows_of(split)) for split in (data.train, data.valid, data.test)] == [1992, 619, 618]


def test_a_file_that_is_another_or_none(
    online: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["fetch", "scitldr", "--data", str(tmp_path / "data")]
    for name, contents, why in (
        ("other", {"train.jsonl.gz": PAPERS}, "train.jsonl.gz has changed: its SHA-256 is "),
        ("none", {"train.jsonl.gz": b""}, "train.jsonl.gz cannot be reached: "),
    ):
        put_on_web(monkeypatch, tmp_path / name, contents)
        if name == "none":
            (tmp_path / name / "train.jsonl.gz").unlink()
        assert cli.main(call) == 2
        assert why in (line := capsys.readouterr().err) and line.count("\n") == 1
    assert cli.main([*call, "--offline"]) == 2
    assert "is not in a cache; fetch it without offline" in capsys.readouterr().err
    assert not [*(tmp_path / "data").rglob("*")]  # nothing half done


def test_the_verb(
    played: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["fetch"]) == 0
    listed = capsys.readouterr().out
    alone = {"quickstart", "regression"}  # need no data
    assert {name for name in recipes() if name not in listed} == alone and "nyu-mll/glue" in listed
    assert "google-t5/t5-small" in listed
    assert "runs/digits-wav2vec" in listed and "runs/fashion-vae" in listed and "runs/fashion-kl" in listed
    assert cli.main(["train", "shakespeare"]) == 2
    assert "data/tiny_shakespeare is missing: `anyformer fetch shakespeare` gets it" in capsys.readouterr().err
    assert cli.main(["fetch", "shakespeare"]) == 0
    assert "`anyformer train shakespeare --data data` trains with it" in capsys.readouterr().out
    assert cli.main(["fetch", "shakespeare"]) == 0 and played == ["karpathy/tiny_shakespeare"]
    assert "is there" in capsys.readouterr().out


def test_a_recipe_that_reads_the_run_of_another_says_so(
    played: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = "`anyformer train fashion-vae --data data` must be run first: fashion-dalle reads its run\n"
    assert cli.main(["fetch", "fashion-dalle"]) == 0 and first in capsys.readouterr().out
    Path("runs", "fashion-vae").mkdir(parents=True)
    assert cli.main(["fetch", "fashion-dalle"]) == 0 and first not in capsys.readouterr().out
    assert all({*runs_of(name)} <= {*recipes()} for name in recipes())


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
    (tmp_path / "data" / "dialogue").mkdir(parents=True)  # its data is present, its model is missing
    assert cli.main(["fetch", "dialogue", "--data", str(tmp_path / "data")]) == 2
    assert "'HuggingFaceTB/SmolLM2-135M-Instruct' is not in the cache" in capsys.readouterr().err
    with pytest.raises(ValueError, match="speech_fsdd cannot be fetched: 3,000 recordings"):
        fetch("speech_fsdd", tmp_path)


def test_offline_asks_no_server_for_data_sets(tmp_path: Path) -> None:
    """`datasets` reads the variable only once, so this test needs a new process."""
    pytest.importorskip("datasets")
    others = {name: value for name, value in os.environ.items() if name not in ("HF_HUB_OFFLINE", "ANYFORMER_OFFLINE")}
    command = [
        sys.executable,
        "-m",
        "anyformer",
        "fetch",
        "mrpc-scratch",
        "--offline",
        "--data",
        str(tmp_path / "data"),
    ]
    done = subprocess.run(
        command, env={**others, "HF_HOME": str(tmp_path)}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 2
    assert "OfflineModeIsEnabled" in done.stderr and "Retrying" not in done.stderr


def test_a_seed_that_makes_nothing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["fetch", "shapes", "--data", str(tmp_path)]
    assert cli.main([*call, "--seed", "-1"]) == 2
    assert "--seed is -1" in capsys.readouterr().err
    (tmp_path / "shapes").mkdir()
    assert cli.main([*call, "--seed", "4"]) == 0
    assert "shapes is there, generated with its first seed" in capsys.readouterr().out
