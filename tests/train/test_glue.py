"""GLUE: its nine tasks from files in its own layout, their metrics compared with sklearn and scipy, and its score."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer import cli
from anyformer.inputs.tokenizer import Tokenizer
from anyformer.objectives.examples import label_of
from anyformer.recipes.glue import TASKS, run_of, score, table
from anyformer.recipes.shared.encoder import vocabulary
from anyformer.train.run import Pretrained

transformers = pytest.importorskip("transformers")
sklearn = pytest.importorskip("sklearn.metrics")
scipy = pytest.importorskip("scipy.stats")

MNLI = ("index", "promptID", "pairID", "genre", "sentence1_binary_parse", "sentence2_binary_parse", "sentence1_parse",
        "sentence2_parse", "sentence1", "sentence2")  # fmt: skip
STSB = ("index", "genre", "filename", "year", "old_index", "source1", "source2", "sentence1", "sentence2", "score")
# folder -> its files, the header (none in CoLA) and which columns hold texts and labels, as GLUE's download has them
LAYOUT: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "CoLA": (("dev",), ("", "label", "", "sentence"), ("sentence",), ("0", "1")),
    "SST-2": (("dev",), ("sentence", "label"), ("sentence",), ("0", "1")),
    "MRPC": (("dev",), ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"), ("#1 String", "#2 String"), ("0", "1")),
    "STS-B": (("dev",), STSB, ("sentence1", "sentence2"), ("0.5", "4.200", "2", "3.8")),
    "QQP": (("dev",), ("id", "qid1", "qid2", "question1", "question2", "is_duplicate"), ("question1", "question2"),
            ("0", "1")),
    "MNLI": (("dev_matched", "dev_mismatched"), (*MNLI, "label1", "gold_label"), ("sentence1", "sentence2"),
             ("entailment", "neutral", "contradiction")),
    "QNLI": (("dev",), ("index", "question", "sentence", "label"), ("question", "sentence"),
             ("entailment", "not_entailment")),
    "RTE": (("dev",), ("index", "sentence1", "sentence2", "label"), ("sentence1", "sentence2"),
            ("entailment", "not_entailment")),
    "WNLI": (("dev",), ("index", "sentence1", "sentence2", "label"), ("sentence1", "sentence2"), ("0", "1")),
}  # fmt: skip
NUMBERS = {"entailment": 0, "not_entailment": 1, "neutral": 1, "contradiction": 2}
WORDS = ("fox", "dog", '"cat', "river", "house", "tree")


def write(folder: Path, kind: str, name: str, count: int, seed: int) -> None:
    files, header, texts, labels = LAYOUT[kind]
    draw = torch.Generator().manual_seed(seed)

    def text() -> str:
        return " ".join(WORDS[i] for i in torch.randint(len(WORDS), (5,), generator=draw))

    dev = name.startswith("dev") and kind == "MNLI"
    header = (*header[:-1], "label2", "label3", "label4", "label5", header[-1]) if dev else header
    lines = [] if kind == "CoLA" else ["\t".join(header)]
    for _ in range(count):
        label = labels[int(torch.randint(len(labels), (), generator=draw))]
        cells = [text() if column in texts else "x" for column in header]
        cells[{"CoLA": 1, "MRPC": 0}.get(kind, -1)] = label
        lines.append("\t".join(cells))
    if kind == "QQP":
        lines.insert(3, "1\t2\t3\tcut short")  # some published lines are like this
    (folder / kind).mkdir(parents=True, exist_ok=True)
    encoding = "utf-8-sig" if kind == "MRPC" else "utf-8"  # with a mark before its first column, as published
    (folder / kind / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding=encoding)


@pytest.fixture(scope="module")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("glue")
    for seed, (kind, (files, *_)) in enumerate(LAYOUT.items()):
        for place, name in enumerate(("train", *files)):
            write(folder, kind, name, 18 if name == "train" else 12, 10 * seed + place)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    config = transformers.BertConfig(
        vocab_size=300, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=96, initializer_range=0.6,  # so that predictions depend on the text
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.BertModel(config).save_pretrained(folder)
    vocabulary().replace(size=300).make(["some words"], folder)
    return folder


@pytest.fixture(autouse=True)
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # plotting takes longer than the run


def ran(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    torch.set_num_threads(1)
    assert cli.main(["glue", *map(str, arguments), "--device", "cpu", "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def answers(run: Path, file: Path, kind: str) -> tuple[list[float], list[float]]:
    """Return a tuned model's predictions for a file, which is parsed independently here, and the right labels."""
    _, header, texts, labels = LAYOUT[kind]
    lines = [line.split("\t") for line in file.read_text("utf-8-sig").splitlines()]
    names = list(header) if kind == "CoLA" else lines.pop(0)
    lines = [line for line in lines if len(line) == len(names)]
    columns = [[line[names.index(name)] for line in lines] for name in texts]
    label = {"CoLA": 1, "MRPC": 0}.get(kind, -1)
    wanted = [NUMBERS[line[label]] if line[label] in NUMBERS else float(line[label]) for line in lines]
    tokenizer = Tokenizer.load(run)
    with torch.no_grad():
        logits = af.load(run)(**tokenizer.batch(*columns, max_length=96)).logits
    return (logits[:, 0] if kind == "STS-B" else logits.argmax(-1)).tolist(), wanted


def test_nine_tasks_and_their_score(
    glue: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = ("steps=2", "schedule.warmup=0", "optimizer.lr=0.003", "keep.every=2")
    settings = [word for change in changes for word in ("--set", change)]
    found = ran(capsys, model, "--data", glue, "--out", tmp_path, *settings)
    assert list(found["tasks"]) == list(TASKS) and found["missing"] == []
    expected: dict[str, dict[str, float]] = {}
    for name, task in TASKS.items():
        right = {}
        for file in task.valid:
            predicted, wanted = answers(tmp_path / name, glue / task.folder / f"{file}.tsv", task.folder)
            kind = file.replace("dev_", ", ") if len(task.valid) > 1 else ""
            if task.folder == "STS-B":
                right |= {
                    "pearson": scipy.pearsonr(predicted, wanted)[0],
                    "spearman": scipy.spearmanr(predicted, wanted)[0],
                }
            elif task.folder == "CoLA":
                right["matthews"] = sklearn.matthews_corrcoef(wanted, predicted)
            else:
                if task.folder in ("MRPC", "QQP"):
                    right["f1"] = sklearn.f1_score(wanted, predicted, zero_division=0)
                right[f"accuracy{kind}"] = sklearn.accuracy_score(wanted, predicted)
            assert len(set(predicted)) > 1
        metrics = {metric: value for metric, value in found["tasks"][name].items() if metric != "lr"}
        assert metrics == pytest.approx(right, abs=1e-4), name
        expected[name] = right
    assert set(found["tasks"]["mnli"]) == {"accuracy, matched", "accuracy, mismatched", "lr"}
    each = [sum(metrics.values()) / len(metrics) for metrics in expected.values()]
    assert found["glue"] == found["mean"] == pytest.approx(100 * sum(each) / 9, abs=0.01)


@pytest.mark.parametrize("name", TASKS)
def test_texts_pairs_and_labels_are_found(name: str, glue: Path) -> None:
    task = TASKS[name]
    files, header, texts, labels = LAYOUT[task.folder]
    assert files == task.valid
    run = run_of(name, glue / task.folder, Pretrained(path="x"), 18)
    assert run.steps == 2 and run.objective.pair == (len(texts) == 2)
    row = next(run.data.train.rows(run.objective.columns))
    lines = (glue / task.folder / "train.tsv").read_text("utf-8-sig").splitlines()
    line = lines[0 if name == "cola" else 1].split("\t")
    columns = (*texts, {"CoLA": "label", "MRPC": "Quality"}.get(task.folder, header[-1]))
    assert row.example is not None
    assert [row.example[column] for column in run.objective.columns] == [line[header.index(c)] for c in columns]
    if task.labels:
        assert task.labels == labels or (labels == ("0", "1") and len(task.labels) == 2)


def test_the_columns_are_those_of_real_files(shared_data: Path) -> None:
    """Other copies of GLUE with the same columns: the published number of examples, each with a label."""

    def labels(name: str, folder: str, file: str) -> list[int]:
        task = TASKS[name]
        found = [row.example for row in table(task, shared_data / folder, file).rows(("text", "label"))]
        assert all(example is not None and example["text"] for example in found)
        return [label_of(example, "label", task.labels) for example in found if example is not None]

    dev = labels("rte", "glue_rte", "dev")
    assert len(labels("rte", "glue_rte", "train")) == 2490 and (dev.count(0), dev.count(1)) == (146, 131)
    assert len(labels("cola", "glue_cola", "train")) == 8551
    paraphrases = labels("mrpc", "glue_mrpc", "test")
    assert (len(paraphrases), sum(paraphrases)) == (1725, 1147)


def test_the_score_is_the_one_of_the_leaderboard() -> None:
    """BERT-large's row there, and 80.5 before it."""
    row = {
        "cola": {"matthews": 0.605}, "sst2": {"accuracy": 0.949}, "mrpc": {"f1": 0.893, "accuracy": 0.854},
        "stsb": {"pearson": 0.876, "spearman": 0.865}, "qqp": {"f1": 0.721, "accuracy": 0.893},
        "mnli": {"accuracy, matched": 0.867, "accuracy, mismatched": 0.859}, "qnli": {"accuracy": 0.927},
        "rte": {"accuracy": 0.701}, "wnli": {"accuracy": 0.651},
    }  # fmt: skip
    assert round(score(row), 1) == 80.5


@pytest.mark.slow
def test_some_tasks_several_rates_and_going_on(
    glue: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = tmp_path / "few"
    for kind in ("RTE", "CoLA"):
        shutil.copytree(glue / kind, few / kind)
    command = (model, "--data", few, "--out", tmp_path / "out", "--set", "steps=2", "--lr", "1e-4", "--lr", "5e-3")
    found = ran(capsys, *command)
    assert found["missing"] == ["sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "wnli"] and "glue" not in found
    runs = {path.name for path in (tmp_path / "out").iterdir()}
    assert runs == {"rte-0.0001", "rte-0.005", "cola-0.0001", "cola-0.005"}
    rte, cola = found["tasks"]["rte"]["accuracy"], found["tasks"]["cola"]["matthews"]
    assert found["mean"] == pytest.approx(100 * (rte + cola) / 2)
    assert cli.main(["glue", *map(str, command), "--json"]) == 2
    assert "already has a run" in capsys.readouterr().err
    kept = sorted((tmp_path / "out/cola-0.005/checkpoints").glob("*/model.safetensors"))
    written = kept[0].stat().st_mtime_ns
    shutil.rmtree(tmp_path / "out/rte-0.005")
    assert ran(capsys, *command, "--resume") == found
    assert cli.main(["glue", *map(str, command), "--resume", "--task", "rte"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ["task", "rate", "metric", "value"] and out[1].split()[0] == "RTE" and len(out) == 4
    assert out[3].startswith("GLUE's score is the mean of nine tasks, and CoLA, SST-2, ")
    assert kept[0].stat().st_mtime_ns == written  # a finished run is not repeated


@pytest.mark.parametrize("arguments, line", [
    (("--task", "colla"), "no task 'colla'; did you mean 'cola'?"),
    (("--task", "wnli"), "no folder WNLI"),
    (("--data", "nowhere"), "nowhere has none of GLUE's folders (CoLA, SST-2,"),
    (("--set", "stepps=1"), "a run has no 'stepps'"),
    (("--task", "cola"), "dev.tsv: no such file or folder; valid: train.tsv"),
    (("--task", "rte"), "train.tsv: no such file"),
], ids=str)  # fmt: skip
def test_mistakes(
    arguments: tuple[str, ...], line: str, glue: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "CoLA").mkdir()
    (tmp_path / "RTE").mkdir()
    shutil.copy(glue / "CoLA/train.tsv", tmp_path / "CoLA/train.tsv")
    assert cli.main(["glue", str(model), "--data", str(tmp_path), *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and line in err
