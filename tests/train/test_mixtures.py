"""Runs on mixtures: recipes with published figures, reported epochs, and a first phase with short texts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer import cli, families
from anyformer.data import Bytes, Data, First, Mixture, Share, TextFiles
from anyformer.objectives.masked import Masked
from anyformer.planning.compute import epochs
from anyformer.recipes import recipe, recipes
from anyformer.recipes.gpt3 import SIZES, SOURCES, TOKENS
from anyformer.recipes.shared.encoder import vocabulary
from anyformer.specs.codec import override, to_json
from anyformer.train.progress import Metrics, Screen, read_metrics
from anyformer.train.run import Batch, Begin
from anyformer.train.start import setup
from anyformer.train.trainer import Callback
from tiny import encoder

sys.path.insert(0, str(Path(__file__).parent))
import runs

# -- known answers


def test_gpt3s_columns() -> None:
    """Table 2.1: batches in millions of tokens, and learning rates; 300 billion tokens, the lowest rate after 260."""
    wanted = {
        "gpt3-small": (125e6, 0.5, 6e-4), "gpt3-medium": (350e6, 0.5, 3e-4), "gpt3-large": (760e6, 0.5, 2.5e-4),
        "gpt3-xl": (1.3e9, 1, 2e-4), "gpt3-2.7b": (2.7e9, 1, 1.6e-4), "gpt3-6.7b": (6.7e9, 2, 1.2e-4),
        "gpt3-13b": (13e9, 2, 1e-4), "gpt3-175b": (175e9, 3.2, 6e-5),
    }  # fmt: skip
    assert {*wanted} == {*SIZES} == {name for name in recipes() if name.startswith("gpt3-")}
    for name, (size, millions, rate) in wanted.items():
        run = recipe(name)
        tokens = run.batch.examples * run.batch.length
        assert af.count(run.model).parameters == pytest.approx(size, rel=0.02), name
        assert tokens == pytest.approx(millions * 1e6, rel=0.05) and run.optimizer.lr == rate
        assert run.steps * tokens == pytest.approx(300e9, rel=1e-4)
        after = round(260e9 / tokens)
        lowest, first = run.schedule.factor(after, run.steps), run.schedule.factor(round(375e6 / tokens) - 1, run.steps)
        assert lowest == pytest.approx(0.1) and run.schedule.factor(run.steps, run.steps) == lowest and first == 1


def test_gpt3s_epochs() -> None:
    """Table 2.2. Its weights sum to 101 %. The epochs computed from them, cut after two digits, are the printed ones,
    except that WebText2 and Wikipedia are swapped there, and Common Crawl has 0.44."""
    rates = recipe("gpt3-small").data.train.rates({})
    assert sum(rates.values()) == pytest.approx(1)
    found = {name: epochs(TOKENS * rates[name], size * 1e9) for name, (size, _) in SOURCES.items()}
    printed = {"common_crawl": 0.44, "webtext2": 2.9, "books1": 1.9, "books2": 0.43, "wikipedia": 3.4}
    swapped = {**printed, "webtext2": printed["wikipedia"], "wikipedia": printed["webtext2"]}
    assert all(0 <= found[name] - value < 0.1 for name, value in swapped.items() if name != "common_crawl"), found
    assert found["common_crawl"] == pytest.approx(0.44, abs=0.01)


def test_berts_settings() -> None:
    """A million steps of 256 texts of 512 are 1.31e11 words, 39.7 times 3.3e9, as the paper counts; nine tenths of the
    steps see 128, so it is 12.9 times."""
    for name, size in (("bert-base-pretraining", 110e6), ("bert-large-pretraining", 340e6)):
        run = recipe(name)
        batch, begin = run.batch, run.batch.begin
        assert af.count(run.model).parameters == pytest.approx(size, rel=0.03)
        assert (run.steps, batch.examples, batch.length) == (1_000_000, 256, 512)
        assert (begin.steps, begin.length) == (900_000, 128)
        assert run.optimizer.lr == 1e-4 and run.schedule.warmup == 10_000 and run.optimizer.betas == (0.9, 0.999)
        words = run.steps * batch.examples * batch.length
        assert words == pytest.approx(1.31e11, rel=0.001) and epochs(words, 3.3e9) == pytest.approx(39.7, abs=0.05)
        shorter = batch.examples * (begin.steps * begin.length + (run.steps - begin.steps) * batch.length)
        assert epochs(shorter, 3.3e9) == pytest.approx(12.9, abs=0.05)


# -- small forms


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    torch.set_num_threads(1)
    for i, name in enumerate((*SOURCES, "valid", "books", "wikipedia")):
        home = tmp_path / "data" / (name if name in ("books", "wikipedia") and i > 4 else f"gpt3/{name}")
        runs.write_texts(home, seed=i, lines=8 + 3 * i)
        (home / "text.txt").write_text((home / "text.txt").read_text().replace("\n", "\n\n"))
    return tmp_path / "data"


class Enough(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, trainer: Any, done: Any) -> None:
        if done.step == self.step:
            trainer.stop("enough")


def same_after_a_stop(run: Any, folder: Path, stop: int) -> Any:
    """A run that is stopped and resumed ends with the same weights and metrics as an uninterrupted run."""
    whole = setup(run, folder / "whole", callbacks=[Metrics(), Screen()], tell=print).fit()
    setup(run, folder / "parts", callbacks=[Metrics(), Enough(stop)]).fit()
    resumed = setup(run, folder / "parts", callbacks=[Metrics()], resume=True).fit()
    assert resumed.step == whole.step == run.steps
    pairs = zip(whole.model.state_dict().values(), resumed.model.state_dict().values())
    assert all(torch.equal(a, b) for a, b in pairs)

    def lines(name: str) -> list[Any]:
        return [{k: v for k, v in line.items() if k != "seconds"} for line in read_metrics(folder / name)]

    assert lines("whole") == lines("parts")
    return whole


def test_gpt3_in_a_small_form(texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = override(recipe("gpt3-small", str(texts)), {
        "model": runs.model(), "vocabulary": Bytes(), "batch": Batch(examples=6, length=32), "steps": 12,
        "precision": "fp32", "compile": False, "schedule.warmup": 2, "schedule.over": 10, "optimizer.lr": 1e-2,
        "evaluate.every": 6, "keep.every": 6,
    })  # fmt: skip
    whole = same_after_a_stop(run, tmp_path, 7)
    lines = read_metrics(tmp_path / "whole")
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < 0.9 * losses[0]
    epochs = {name: value for name, value in lines[-1].items() if name.startswith("epochs/")}
    assert epochs == {f"epochs/{name}": value for name, value in whole.epochs(12).items()} and len(epochs) == 5
    parts = whole.splits.train.parts
    counts = {name: whole.splits.train.part(name).tokens // 32 for name in parts}
    assert sum(epochs[f"epochs/{name}"] * max(count, 1) for name, count in counts.items()) == pytest.approx(72)
    out = capsys.readouterr().out
    assert "epochs in 12 steps: common_crawl " in out
    assert "epochs after step 12: common_crawl " in out


def test_bert_in_a_small_form(texts: Path, tmp_path: Path) -> None:
    """Eight steps have at most 24 tokens, four have 40; the run stops after the change, and once before it."""
    shares = tuple(Share(name=n, source=TextFiles(path=str(texts / n))) for n in ("books", "wikipedia"))
    run = override(recipe("bert-base-pretraining", str(texts)), {
        "model": encoder("BertForPreTraining", max_position_embeddings=48),
        "vocabulary": vocabulary(300), "objective.length": 40, "steps": 12,
        "data.train": Mixture(shares=shares), "data.valid": shares[0].source, "precision": "fp32",
        "batch": Batch(examples=4, length=48, begin=Begin(steps=8, length=24)), "schedule.warmup": 2,
        "optimizer.lr": 5e-3, "evaluate.every": 12, "keep.every": 5,
    })  # fmt: skip
    whole = same_after_a_stop(run, tmp_path, 10)
    with whole.feed(6) as batches:
        widths = [(ready.step, ready.batches[0]["input_ids"].shape[1]) for ready, _ in zip(batches, range(4))]
    assert [step for step, _ in widths] == [6, 7, 8, 9]
    assert all(width <= 24 for step, width in widths if step < 8)
    assert all(24 < width <= 40 for step, width in widths if step >= 8), widths
    early = same_after_a_stop(run.replace(steps=10), tmp_path / "early", 3)
    before, after = early.epochs(8), early.epochs(10)
    assert after["books"] > before["books"] > 0
    read = sum((after[name] - before[name]) * size for name, size in early.splits.train.parts.items())
    assert read == pytest.approx(2 * 4)  # examples
    with pytest.raises(ValueError, match="Batch.begin.length: 64 is more than Batch.length, 48"):
        Batch(examples=4, length=48, begin=Begin(steps=8, length=64))


def test_packed_rows_begin_short_from_the_same_records(texts: Path, tmp_path: Path) -> None:
    source = TextFiles(path=str(texts / "books"))
    run = runs.run_of(texts / "books/text.txt", data=Data(train=source), steps=4,
                      batch=Batch(examples=4, length=32, begin=Begin(steps=2, length=8)))  # fmt: skip
    trainer = setup(run, tmp_path / "run").fit()
    with trainer.feed(0) as batches:
        assert [r.batches[0]["input_ids"].shape for r, _ in zip(batches, range(4))] == [(4, 8)] * 2 + [(4, 32)] * 2
    assert len([*(tmp_path / "run/data").glob("train-*")]) == 1 and trainer.epochs(4) == {}
    assert Masked().with_max_length(8) == Masked() and Masked(length=32).with_max_length(8).length == 8


def test_six_tasks_in_one_run(tmp_path: Path, shared_data: Path) -> None:
    torch.set_num_threads(1)
    run = recipe("t5-tasks", str(shared_data))
    firsts = [next(share.source.rows(("source", "target"))).example for share in run.data.train.shares]
    prefixes = ["translate", "summarize:", "sst2", "cola", "rte", "mrpc"]
    assert [first["source"].split()[0] for first in firsts] == prefixes
    assert firsts[2]["target"] in ("negative", "positive") and firsts[4]["target"] in ("entailment", "not_entailment")
    t5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4, "vocab_size": 300, "dropout_rate": 0.0,
          "eos_token_id": 0, "pad_token_id": 1, "decoder_start_token_id": 1,
          "architectures": ["T5ForConditionalGeneration"]}  # fmt: skip
    special = {"eos_token": "</s>", "pad_token": "<pad>"}
    changes = {
        "model": families.find("t5").read(t5), "vocabulary": Bytes(special=special, end="eos_token"), "steps": 10,
        "batch": Batch(examples=12), "objective.length": 40, "objective.target_length": 16, "evaluate.every": 10,
        "keep.every": 10, "optimizer.lr": 5e-2,
    }  # fmt: skip
    shares = [s.replace(source=First(source=s.source, count=20 + 5 * i)) for i, s in enumerate(run.data.train.shares)]
    data = Data(train=run.data.train.replace(shares=tuple(shares), limit=30), valid=shares[0].source)
    trainer = setup(override(run, {**changes, "data": data}), tmp_path, callbacks=[Metrics()]).fit()
    lines = read_metrics(tmp_path)
    assert lines[-2]["loss"] < 0.9 * lines[0]["loss"] and lines[-1]["valid/perplexity"] > 1
    seen = {name: trainer.epochs(10)[name] * size for name, size in trainer.splits.train.parts.items()}
    assert sum(seen.values()) == pytest.approx(120) and len(seen) == 6 and min(seen.values()) > 5


def test_two_sources_with_one_name_in_a_file(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    described = json.loads(to_json(recipe("gpt3-small", str(texts))))
    described["data"]["train"]["shares"][1]["name"] = "books1"
    (texts / "run.json").write_text(json.dumps(described))
    assert cli.main(["train", str(texts / "run.json"), "--out", str(texts / "out")]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "run.json: " in err and "two shares have the name 'books1'" in err
    for weight, why in (
        ("-3", "the share 'webtext2' has the weight -3"),
        ("null", "'webtext2' has no weight; give all shares"),
    ):
        path = f"data.train.shares.1.weight={weight}"
        assert cli.main(["train", "gpt3-small", "--data", str(texts), "--set", path, "--show"]) == 2
        assert why in capsys.readouterr().err
