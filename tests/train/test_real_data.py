"""Recipes on their real data in a small form, from end to end: each ends with a metric that beats a guess which needs
no model. Films, pairs and translations are scored on texts that were not learnt from; names and answers, for which
seconds are too short, on those that were, and on others only that it runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from anyformer import cli, families
from anyformer.data import First, Source
from anyformer.objectives.answer import right_answers
from anyformer.objectives.metrics import ANSWERS, LABELS, TAGS, TEXTS
from anyformer.recipes import recipe
from anyformer.recipes.multi30k_en_de import CONFIG
from anyformer.specs.codec import override, to_json
from anyformer.train.optim import AdamW, Linear
from anyformer.train.run import Batch, Run

for library in ("sklearn", "seqeval", "sacrebleu"):
    pytest.importorskip(library)

# every day test_recipes.py learns from the same data for a few steps, and evaluate/test_eval.py scores every objective
pytestmark = pytest.mark.slow
WIDTH = 64


def small(name: str, data: Path, vocabulary: int, batch: int, train: int, valid: int, **changes: Any) -> Run:
    """The recipe with a one-layer model, a small vocabulary and the first examples."""
    run = recipe(name, str(data))
    labels = getattr(run.objective, "labels", ())
    bert = {
        "hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 2 * WIDTH,
        "vocab_size": vocabulary, "max_position_embeddings": 256, "pad_token_id": 0, "attention_probs_dropout_prob": 0,
        "architectures": [run.model.architecture],
        **({"id2label": {str(i): label for i, label in enumerate(labels)}} if labels else {}),
    }  # fmt: skip
    m2m = {
        **CONFIG, "vocab_size": vocabulary, "d_model": WIDTH, "dropout": 0.0, "init_std": WIDTH**-0.5,
        "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 2 * WIDTH, "decoder_ffn_dim": 2 * WIDTH,
    }  # fmt: skip
    family, config = ("m2m_100", m2m) if run.model.family == "m2m_100" else ("bert", bert)
    values: dict[str, Any] = {
        "model": families.find(family).read(config), "vocabulary.size": vocabulary, "batch": Batch(examples=batch),
        "optimizer": AdamW(lr=3e-3, weight_decay=0.0), "schedule": Linear(warmup=20), "ema": None,
        "data.train": First(source=run.data.train, count=train), "data.test": None,
        "data.valid": First(source=run.data.valid, count=valid), **changes,
    }  # fmt: skip
    values |= {"evaluate.every": values["steps"], "keep.every": values["steps"]}
    return override(run, values)


def scores(run: Run, folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    """Train and evaluate with the commands; both give the same validation scores. Only training smooths labels, so its
    loss is then higher."""
    torch.set_num_threads(1)
    (folder / "run.json").write_text(to_json(run))
    assert cli.main(["train", str(folder / "run.json"), "--out", str(folder / "run"), "--device", "cpu"]) == 0
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    in_training = {name.removeprefix("valid/"): x for line in lines for name, x in line.items() if "valid/" in name}
    capsys.readouterr()
    assert cli.main(["eval", str(folder / "run"), "--json", "--device", "cpu", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    if getattr(run.objective, "smoothing", 0.0):
        assert in_training.pop("loss") > found["loss"]
    assert not options or {name: found[name] for name in in_training} == pytest.approx(in_training, rel=1e-3)
    return found


def examples(source: Source, run: Run, count: int | None = None) -> list[Any]:
    return [row.example for row in islice(source.rows(run.objective.columns), count)]


def best_constant(metric: Any, guesses: Sequence[Any], wanted: Sequence[Any]) -> float:
    """Return the best score of a constant answer."""
    return max(metric([guess] * len(wanted), wanted) for guess in guesses)


def test_films(tmp_path: Path, shared_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = small("sst2-scratch", shared_data, 2000, 32, train=5000, valid=872, steps=150)
    found = scores(run, tmp_path, capsys, "--split", "valid")
    assert run.data.valid is not None
    wanted = [int(example["label"]) for example in examples(run.data.valid, run)]
    baseline = best_constant(LABELS.functions["accuracy"], (0, 1), wanted)
    assert 0.5 < baseline < 0.55 and found["accuracy"] > baseline + 0.08, (baseline, found)


def test_pairs_of_sentences(tmp_path: Path, shared_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("matthews", "accuracy", "f1")
    run = small("mrpc-scratch", shared_data, 2000, 32, train=4000, valid=500, steps=110, **{"evaluate.metrics": names})
    found = scores(run, tmp_path, capsys, "--split", "valid")
    assert run.data.valid is not None
    wanted = [int(example["label"]) for example in examples(run.data.valid, run)]
    baseline = best_constant(LABELS.functions["matthews"], (0, 1), wanted)  # a constant answer scores 0
    assert baseline == 0 and found["matthews"] > 0.05, found


def test_names_in_messages(tmp_path: Path, shared_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = small("wnut17-scratch", shared_data, 1500, 30, train=60, valid=50, steps=120)
    assert 0 <= scores(run, tmp_path, capsys, "--split", "valid")["f1"] <= 1
    capsys.readouterr()
    assert cli.main(["eval", str(tmp_path / "run"), "--split", "train", "--json", "--device", "cpu"]) == 0
    found = json.loads(capsys.readouterr().out)
    sentences = examples(run.data.train, run)
    # every word with a capital is a person
    guess = [["B-person" if word[:1].isupper() else "O" for word in example["words"]] for example in sentences]
    baseline = TAGS.functions["f1"](guess, [list(example["tags"]) for example in sentences])
    assert 0.01 < baseline < found["f1"] - 0.1, (baseline, found)


def test_answers_to_questions(tmp_path: Path, shared_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    objective = recipe("squad").objective.replace(length=128, stride=16, question_length=24)
    run = small("squad-scratch", shared_data, 1500, 16, train=40, valid=12, steps=100, objective=objective)
    elsewhere = scores(run, tmp_path, capsys, "--split", "valid")  # XQuAD
    assert elsewhere["examples"] == 12 and 0 <= elsewhere["exact_match"] <= elsewhere["f1"] <= 100
    assert cli.main(["eval", str(tmp_path / "run"), "--split", "train", "--json", "--device", "cpu"]) == 0
    found = json.loads(capsys.readouterr().out)
    questions = examples(run.data.train, run)
    wanted = [right_answers(example) for example in questions]
    firsts = [[" ".join(example["context"].split()[:n]) for example in questions] for n in (1, 2, 5, 10, 20, 40, 1000)]
    baseline = max(ANSWERS.functions["f1"](guess, wanted) for guess in firsts)  # the first words of the text
    assert 1 < baseline < 20 and found["f1"] > baseline + 20, (baseline, found)


def test_translations(tmp_path: Path, shared_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fast = {"evaluate.num_beams": 2, "optimizer": AdamW(lr=5e-3, betas=(0.9, 0.98), weight_decay=0.0)}
    run = small("multi30k-en-de", shared_data, 800, 32, train=4000, valid=60, steps=260, **fast)
    found = scores(run, tmp_path, capsys, "--split", "valid", "--num-beams", "2")
    assert run.data.valid is not None
    pairs, bleu = examples(run.data.valid, run), TEXTS.functions["bleu"]
    wanted = [example["target"] for example in pairs]
    copied = bleu([example["source"] for example in pairs], wanted)
    one = best_constant(bleu, [example["target"] for example in examples(run.data.train, run, 100)], wanted)
    assert copied < one < found["bleu"], (copied, one, found)
    assert found["perplexity"] < 100 and found["num_beams"] == 2  # 800 tokens to choose from
