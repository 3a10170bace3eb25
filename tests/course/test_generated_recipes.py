"""Every recipe whose data are generated: `fetch`, then `train`, from an empty folder and without a network."""

from __future__ import annotations

import dataclasses
import socket
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants

import anyformer as af
import vocabularies
from anyformer import cli, families
from anyformer.recipes import distilbert, recipe, recipes
from anyformer.recipes.shared import sources
from anyformer.recipes.shared.sources import folders_of, models_of, origin_of
from anyformer_course.data import speech

GENERATED = [name for name in recipes() if folders_of(name) and all(origin_of(f).generate for f in folders_of(name))]
OTHER_SIZES = {name for name in recipes() if name.startswith("gpt3") and name != "gpt3-small"}  # too large for a test
SMALLER: dict[str, dict[str, Any]] = {  # the same writers, for fewer examples
    "offline_rl_expert": {"count": 30}, "spoken_digits": {"takes": 8}, "shapes": {"count": 60}, "dates": {"most": 80},
    "drawn_emoji": {"most": 60}, "text": {"most": 20}, "books": {"most": 10},
    "wikipedia": {"most": 10}, "gpt3": {"most": 30}, "dialogue": {"most": 40},
}  # fmt: skip
FEW_STRINGS = {"data.train.count": 4, "data.valid.count": 2, "batch.examples": 2}
TEXT = {"vocabulary.size": 300, "model.embedding.tokens.vocab_size": 300, "precision": "fp32", "batch.examples": 2}
BERT = {
    **TEXT,
    "model.head.lm.vocab_size": 300,
    "model.encoder.depth": 1,
    "batch.micro": "null",
    "batch.begin.steps": 1,
    "batch.begin.length": 32,
    "batch.length": 64,
    "objective.length": 64,
}
GPT = {
    **TEXT,
    "model.head.vocab_size": 300,
    "model.decoder.depth": 1,
    "compile": "false",
    "batch.length": 64,
    "batch.micro": "null",
}
SMALL: dict[str, dict[str, Any]] = {  # smaller models, and fewer examples of them
    "cartpole": {"model.decoder.depth": 1, "batch.examples": 4},
    "dates": {"batch.examples": 4},
    "dialogue": {"objective.length": 512, "batch.examples": 2, "batch.micro": 2},
    "digits": {**FEW_STRINGS, "data.test": "null", "model.encoder.depth": 1},
    "digits-seq2seq": {**FEW_STRINGS, "data.test": "null", "model.encoder.depth": 1},
    "digits-wav2vec": FEW_STRINGS,
    "digits-wav2vec-tenth": {**FEW_STRINGS, "data.test": "null"},
    "digits-scratch-tenth": {**FEW_STRINGS, "data.test": "null", "model.encoder.depth": 1},
    "emoji": {"batch.examples": 8, "model.text.encoder.depth": 1},
    "emoji-dit": {"batch.examples": 8, "model.encoder.depth": 1, "model.decoder.depth": 1},
    "shapes": {"batch.examples": 8},
    "bert-base-pretraining": BERT,
    "bert-large-pretraining": BERT,
    "distilbert": {
        "model.embedding.tokens.vocab_size": 300,
        "model.head.vocab_size": 300,
        "model.encoder.depth": 1,
        "objective.layers": "[1]",
        "precision": "fp32",
        "batch.examples": 2,
        "batch.micro": "null",
        "batch.length": 64,
    },
    "gpt2-124m": GPT,
    "gpt3-small": GPT,
}
NAMES: list[Any] = [name for name in SMALL if name != "bert-large-pretraining"]
NAMES += [pytest.param("bert-large-pretraining", marks=pytest.mark.slow)]  # BERT's other size


TEMPLATE = "{% for each in messages %}<{{ each.role }}> {{ each.content }}{{ eos_token }}\n{% endfor %}"
CHAT = {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 512, "vocab_size": 360}
TEACHER = {"num_hidden_layers": 2, "vocab_size": 300}


def publish(cache: Path) -> None:
    """Puts small models of the published names into the hub's cache, as if they had been fetched."""
    chat, teacher = (
        cache / f"models--{name.replace('/', '--')}"
        for name in ("HuggingFaceTB/SmolLM2-135M-Instruct", distilbert.TEACHER)
    )
    for home, family, config, vocabulary in (
        (chat, "gpt2", {**CHAT, "architectures": ["GPT2LMHeadModel"]}, vocabularies.whole),
        (teacher, "bert", {**TEACHER, "architectures": ["BertForMaskedLM"]}, vocabularies.bert),
    ):
        folder = home / "snapshots" / "main"
        af.save(af.build(families.find(family).read(config), seed=0), folder, format="hf")
        vocabulary(folder)
        vocabularies.write(home / "refs", "main", "main")
    vocabularies.write(chat / "snapshots" / "main", "chat_template.jinja", TEMPLATE)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all recipes: those that read the same data share it, and one begins from another's run."""
    return tmp_path_factory.mktemp("empty")


def test_all_of_them_are_here() -> None:
    assert {"cartpole", "digits", "emoji", "shapes"} <= {*GENERATED}
    assert {*GENERATED} == {*SMALL} | OTHER_SIZES
    small = recipe("gpt3-small")  # stands for the other sizes
    for name in OTHER_SIZES:
        assert (recipe(name).vocabulary, recipe(name).data) == (small.vocabulary, small.data)


@pytest.mark.parametrize("name", NAMES)
def test_fetch_and_train(
    name: str, empty: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def blocked(*given: Any, **options: Any) -> Any:
        raise AssertionError("a socket was opened")

    for each in ("socket", "getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, each, blocked)
    monkeypatch.chdir(empty)
    monkeypatch.setenv("ANYFORMER_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(empty / "cache"))
    if not (empty / "cache").is_dir():
        publish(empty / "cache")
    torch.set_num_threads(1)
    monkeypatch.setattr(speech, "SPEAKERS", {name: speech.SPEAKERS[name] for name in ("ada", "ben")})
    for folder, less in SMALLER.items():
        origin: Any = origin_of(folder)
        monkeypatch.setitem(
            sources.ORIGINS, folder, dataclasses.replace(origin, generate=partial(origin.generate, **less))
        )
    before = "digits-wav2vec"  # whose run another recipe begins from
    if name == f"{before}-tenth" and not (empty / "runs" / before).is_dir():
        fetch_and_train(before, empty, capsys)
    fetch_and_train(name, empty, capsys)
    assert not [path for path in empty.rglob(".saving-*")], "nothing half done is left"


def fetch_and_train(name: str, empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if (empty / "runs" / name).is_dir():
        return
    assert cli.main(["fetch", name]) == 0
    output = capsys.readouterr().out
    assert f"`anyformer train {name} --data data` trains with it" in output
    assert all(f"{model} is in the hub's cache" in output for model in models_of(name))
    changes = {"steps": 2, "evaluate.every": 2, "evaluate.batches": 1, "keep.every": 2, **SMALL[name]}
    sets = [word for path, value in changes.items() for word in ("--set", f"{path}={value}")]
    assert cli.main(["train", name, "--device", "cpu", *sets]) == 0, capsys.readouterr().err
    assert list((empty / "runs" / name / "checkpoints").iterdir())
