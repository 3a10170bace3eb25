"""`anyformer eval` of runs that do not read text, and so have no vocabulary and no tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anyformer import cli, families
from anyformer.data import Arrays, Bytes, Data, Episodes, Recordings
from anyformer.objectives.contrast import Contrast
from anyformer.objectives.decision import Act
from anyformer.objectives.images import ClassifyImage
from anyformer.train.optim import AdamW
from anyformer.train.run import Batch, Run
from anyformer.train.start import setup


def pictures(folder: Path) -> dict[str, Any]:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 6), dtype=np.uint8)
    np.savez(folder / "x.npz", image=pixels, label=np.arange(8, dtype=np.uint8) % 2)
    config = {"image_size": [8, 6], "patch_size": 2, "num_channels": 1, "hidden_size": 12, "num_hidden_layers": 1,
              "num_attention_heads": 2, "intermediate_size": 16}  # fmt: skip
    return {
        "model": families.find("vit").read(config), "data": Arrays(path=str(folder / "x.npz")),
        "objective": ClassifyImage(labels=("a", "b"), image_size=(8, 6), mean=(0.3,), std=(0.4,)),
    }  # fmt: skip


def recordings(folder: Path) -> dict[str, Any]:
    """Pretraining of wav2vec 2.0, which predicts codes of masked frames and uses no text."""
    lengths, rate = [600, 700, 800, 650], 2000
    waves = np.sin(np.arange(sum(lengths)) / 5) + np.random.default_rng(0).normal(size=sum(lengths)) / 9
    np.savez(folder / "x.npz", audio=(8000 * waves).astype(np.int16), rate=rate, offsets=np.cumsum([0, *lengths]))
    config = {
        "architectures": ["Wav2Vec2ForPreTraining"], "hidden_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "intermediate_size": 24, "conv_dim": [8, 12], "conv_kernel": [10, 4],
        "conv_stride": [5, 4], "feat_extract_norm": "layer", "num_conv_pos_embeddings": 4,
        "num_conv_pos_embedding_groups": 2, "do_stable_layer_norm": True, "layerdrop": 0.0, "num_negatives": 7,
        "num_codevectors_per_group": 8, "codevector_dim": 12, "proj_codevector_dim": 10,
    }  # fmt: skip
    return {
        "model": families.find("wav2vec2").read(config), "data": Recordings(path=str(folder / "x.npz")),
        "objective": Contrast(rate=rate, hop=20, reach=25, negatives=7, span=3),
    }  # fmt: skip


def decisions(folder: Path) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    np.savez(folder / "x.npz", obs=draw.normal(size=(11, 3)).astype(np.float32), rewards=np.ones(11, np.float32),
             actions=draw.normal(size=(11, 2)).astype(np.float32), episode_offsets=np.array([0, 4, 11]))  # fmt: skip
    config = {"architectures": ["DecisionTransformerModel"], "state_dim": 3, "act_dim": 2, "hidden_size": 16,
              "n_layer": 1, "n_head": 2, "max_ep_len": 40}  # fmt: skip
    return {
        "model": families.find("decision_transformer").read(config), "objective": Act(steps=4),
        "data": Episodes(path=str(folder / "x.npz")),
    }  # fmt: skip


@pytest.mark.parametrize("make", [pictures, recordings, decisions])
def test_a_run_without_words_is_evaluated(make: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.set_num_threads(1)
    given = make(tmp_path)
    source = given.pop("data")
    data = Data(train=source, valid=source)
    run = Run(name="some", data=data, optimizer=AdamW(lr=1e-3), batch=Batch(examples=4), steps=1, **given)
    trainer = setup(run, tmp_path / "run", device="cpu").fit()
    capsys.readouterr()
    assert cli.main(["eval", str(tmp_path / "run"), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["loss"] == pytest.approx(trainer.scores["loss"], rel=1e-3) and scores["split"] == "valid"


def test_rows_that_are_left_out_are_counted_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = pictures(tmp_path)
    np.savez(tmp_path / "bad.npz", image=np.zeros((30, 8, 6), np.uint8), label=np.arange(30, dtype=np.uint8) % 15)
    data = Data(train=given.pop("data"), valid=Arrays(path=str(tmp_path / "bad.npz")), unfit="skip")
    run = Run(name="some", data=data, optimizer=AdamW(lr=1e-3), batch=Batch(examples=4), steps=1, **given)
    setup(run, tmp_path / "run", device="cpu").fit()
    capsys.readouterr()
    assert cli.main(["eval", str(tmp_path / "run"), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["examples"] == 4 and err.count("\n") == 1
    assert err.startswith(f"skipped 26 of 30 rows (valid 26): {tmp_path / 'bad.npz'}:3: ")


def test_a_run_with_words_still_asks_for_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = pictures(tmp_path)
    data = Data(train=given.pop("data"))
    run = Run(name="some", data=data, optimizer=AdamW(lr=1e-3), batch=Batch(examples=4), steps=1, **given)
    setup(run, tmp_path / "run", device="cpu").fit()
    from anyformer.specs.codec import to_json

    (tmp_path / "words.json").write_text(to_json(run.replace(vocabulary=Bytes())))
    capsys.readouterr()
    assert cli.main(["eval", str(tmp_path / "run"), str(tmp_path / "words.json")]) == 2
    assert "no tokenizer" in capsys.readouterr().err
