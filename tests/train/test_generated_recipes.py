"""Every recipe whose data are generated: `fetch`, then `train`, from an empty folder and without a network."""

from __future__ import annotations

import dataclasses
import socket
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from anyformer import cli
from anyformer.data.generated import speech
from anyformer.recipes import recipes
from anyformer.recipes.shared import sources
from anyformer.recipes.shared.sources import ORIGINS, folders_of

GENERATED = [name for name in recipes() if folders_of(name) and all(ORIGINS[f].generate for f in folders_of(name))]
SMALLER: dict[str, dict[str, Any]] = {  # the same writers, for fewer examples
    "offline_rl_expert": {"count": 30}, "spoken_digits": {"takes": 8}, "shapes": {"count": 60},
    "drawn_emoji": {"most": 60},
}  # fmt: skip
FEW_STRINGS = {"data.train.count": 4, "data.valid.count": 2, "batch.examples": 2}
SMALL: dict[str, dict[str, Any]] = {  # smaller models, and fewer examples of them
    "cartpole": {"model.decoder.depth": 1, "batch.examples": 4},
    "digits": {**FEW_STRINGS, "data.test": "null", "model.encoder.depth": 1},
    "digits-seq2seq": {**FEW_STRINGS, "data.test": "null", "model.encoder.depth": 1},
    "digits-wav2vec": FEW_STRINGS,
    "digits-wav2vec-tenth": {**FEW_STRINGS, "data.test": "null"},
    "digits-scratch-tenth": {**FEW_STRINGS, "data.test": "null", "model.encoder.depth": 1},
    "emoji": {"batch.examples": 8, "model.text.encoder.depth": 1},
    "shapes": {"batch.examples": 8},
}


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all recipes: those that read the same data share it, and one begins from another's run."""
    return tmp_path_factory.mktemp("empty")


def test_all_of_them_are_here() -> None:
    assert {"cartpole", "digits", "emoji", "shapes"} <= {*GENERATED} == {*SMALL}


@pytest.mark.parametrize("name", sorted(GENERATED, key=lambda name: name == "digits-wav2vec-tenth"))
def test_fetch_and_train(
    name: str, empty: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def blocked(*given: Any, **options: Any) -> Any:
        raise AssertionError("a socket was opened")

    for each in ("socket", "getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, each, blocked)
    monkeypatch.chdir(empty)
    torch.set_num_threads(1)
    monkeypatch.setattr(speech, "SPEAKERS", {name: speech.SPEAKERS[name] for name in ("ada", "ben")})
    for folder, less in SMALLER.items():
        origin: Any = ORIGINS[folder]
        monkeypatch.setitem(
            sources.ORIGINS, folder, dataclasses.replace(origin, generate=partial(origin.generate, **less))
        )
    assert cli.main(["fetch", name]) == 0
    assert f"`anyformer train {name} --data data` trains with it" in capsys.readouterr().out
    changes = {"steps": 2, "evaluate.every": 2, "evaluate.batches": 1, "keep.every": 2, **SMALL[name]}
    sets = [word for path, value in changes.items() for word in ("--set", f"{path}={value}")]
    if name == "digits-wav2vec-tenth":
        assert (empty / "runs" / "digits-wav2vec").is_dir()
    assert cli.main(["train", name, "--device", "cpu", *sets]) == 0, capsys.readouterr().err
    assert list((empty / "runs" / name / "checkpoints").iterdir())
    assert not [path for path in empty.rglob(".saving-*")], "nothing half done is left"
