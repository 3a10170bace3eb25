"""Diffusion: records, random noise and labels, the loss, and generated images that match their labels."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer import families
from anyformer.data import IDX, Arrays, Beside, Data, Loader, Plan, prepare
from anyformer.generation.diffusion import denoise
from anyformer.objectives.diffuse import Diffuse
from anyformer.specs.codec import decode, encode

OBJECTIVE = Diffuse(labels=("left", "top"), image_size=(8, 8), mean=(0.5,), std=(0.5,), unlabelled=0.25)
CONFIG: dict[str, Any] = {
    "num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 1, "in_channels": 1, "sample_size": 8,
    "patch_size": 4, "num_embeds_ada_norm": 2, "per_layer": False,
}  # fmt: skip


def model(**changes: Any) -> Any:
    return af.build(families.find("dit").read({**CONFIG, **changes}), seed=0)


def halves(labels: np.ndarray) -> np.ndarray:
    """Return bytes (N, 8, 8) with a bright left or upper half."""
    pictures = np.zeros((len(labels), 8, 8), np.uint8)
    pictures[labels == 0, :, :4] = 255
    pictures[labels == 1, :4] = 255
    return pictures


@pytest.fixture
def source(tmp_path: Path) -> Arrays:
    labels = np.arange(24, dtype=np.uint8) % 2
    np.savez(tmp_path / "some.npz", image=halves(labels), label=labels)
    return Arrays(path=str(tmp_path / "some.npz"))


def test_what_chance_does_and_the_loss_by_hand(source: Arrays, tmp_path: Path) -> None:
    """Noise, step and dropped labels differ each time; micro-batches add up to the batch."""
    assert decode(json.loads(json.dumps(encode(OBJECTIVE)))) == OBJECTIVE
    split = prepare(Data(train=source), OBJECTIVE, None, tmp_path / "data").train
    plan = Plan(split, seed=3, examples=24, length=None)
    whole, parts = (Loader(plan, OBJECTIVE, micro=micro).make(0).batches for micro in (None, 7))
    batch = whole[0]
    for name, value in batch.items():
        assert torch.equal(torch.cat([part[name] for part in parts]), value)
    assert not torch.equal(Loader(plan, OBJECTIVE).make(1).batches[0]["noise"], batch["noise"])
    assert 0 < (batch["class_labels"] == 2).sum() < 16 and set(batch["class_labels"].tolist()) == {0, 1, 2}
    assert float(batch["noise"].std()) == pytest.approx(1, abs=0.1) and batch["moment"].min() >= 0
    learner = model().eval()
    with torch.no_grad():
        learner.head.out.weight.normal_(0, 0.1)
        step = (batch["moment"] * 1000).long()
        left = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64), 0)[step][:, None, None, None]
        mixed = (left.sqrt() * batch["pixel_values"] + (1 - left).sqrt() * batch["noise"]).float()
        predicted = learner(hidden_states=mixed, timestep=step, class_labels=batch["class_labels"]).sample
        found = OBJECTIVE.losses(OBJECTIVE.module(learner), batch)["loss"]
        split_up = sum(OBJECTIVE.losses(learner, part)["loss"] for part in parts)
    expected = 24 * (predicted - batch["noise"]).square().mean()
    assert OBJECTIVE.weights(batch) == {"loss": 24.0}
    assert float(found) == pytest.approx(float(expected), rel=1e-5) == pytest.approx(float(split_up), rel=1e-5)


def test_models_that_cannot_learn_this_are_told() -> None:
    vit = {"image_size": 8, "patch_size": 4, "num_channels": 1, "hidden_size": 8, "num_hidden_layers": 1,
           "num_attention_heads": 2, "intermediate_size": 8}  # fmt: skip
    for other, line in (
        (af.build(families.find("vit").read(vit)), "diffusion needs a model with a NoiseHead.*ClassifyHead"),
        (model(in_channels=3), "channels=1"),
        (model(num_embeds_ada_norm=5), "2 labels, but the model knows 5"),
        (model(out_channels=2), "head.out_channels is 2.*set it to 1"),
    ):
        with pytest.raises(ValueError, match=line):
            OBJECTIVE.module(other)
    for wrong in ({"labels": ()}, {"labels": ("a", "a")}, {"unlabelled": 1.5}):
        with pytest.raises(ValueError, match="Diffuse|unlabelled"):
            OBJECTIVE.replace(**wrong)


@pytest.mark.slow
def test_what_is_asked_for_is_drawn() -> None:
    """A tiny model trained from scratch generates only images of the requested half."""
    torch.set_num_threads(1)
    learner, random = model(attention_head_dim=16, patch_size=2, num_layers=2).train(), torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(learner.parameters(), lr=5e-3, weight_decay=0.0)
    steps = 700
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 5e-3 * min((step + 1) / 20, 1.05 - step / steps)
        labels = torch.randint(0, 2, (64,), generator=random)
        x = torch.from_numpy(halves(labels.numpy())).float().div(127.5).sub(1)[:, None]
        asked = torch.where(torch.rand(64, generator=random) < 0.1, 2, labels)
        noise, moment = torch.randn(x.shape, generator=random), torch.rand(64, generator=random)
        batch = {"pixel_values": x, "noise": noise, "moment": moment, "class_labels": asked}
        (OBJECTIVE.losses(learner, batch)["loss"] / 64).backward()
        optimizer.step()
        optimizer.zero_grad()
    labels = torch.arange(8) % 2
    nothing = {"class_labels": torch.full((8,), 2)}
    drawn = denoise(learner.eval(), {"class_labels": labels}, nothing, seeds=range(8), steps=20, guidance=4.0, clip=1.0)
    wanted = torch.from_numpy(halves(labels.numpy())).float().div(127.5).sub(1)[:, None]
    right, wrong = ((drawn - each).square().mean((1, 2, 3)) for each in (wanted, wanted.flip(0)))
    assert (right < wrong).all() and right.median() < 0.1, (right, wrong)


def test_the_files_of_mnist(tmp_path: Path) -> None:
    """Images and labels in two files, as published; damaged files raise an error."""
    pictures, labels = np.arange(24, dtype=np.uint8).reshape(4, 3, 2), np.arange(4, dtype=np.uint8)
    for name, array in (("images-idx3-ubyte.gz", pictures), ("labels-idx1-ubyte.gz", labels)):
        header = bytes((0, 0, 8, array.ndim)) + np.asarray(array.shape, ">u4").tobytes()
        (tmp_path / name).write_bytes(gzip.compress(header + array.tobytes()))
    images = IDX(path=str(tmp_path / "images-idx3-ubyte.gz"), name="image")
    source = Beside(sources=(images, IDX(path=str(tmp_path / "labels-idx1-ubyte.gz"), name="label")))
    rows = list(source.rows(("image", "label")))
    assert len(rows) == 4 and rows[2].example is not None and rows[2].place.endswith("images-idx3-ubyte.gz:3")
    assert np.array_equal(rows[2].example["image"], pictures[2]) and rows[2].example["label"] == 2
    whole = gzip.decompress((tmp_path / "images-idx3-ubyte.gz").read_bytes())
    for damaged in (whole[:-1], whole[:9], b"", b"text", bytes((0, 0, 13)) + whole[3:], whole + b"x"):
        (tmp_path / "bad").write_bytes(damaged)
        with pytest.raises(ValueError, match="bad: not an IDX file"):
            list(IDX(path=str(tmp_path / "bad"), name="image").raw())
    (tmp_path / "bad.gz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"bad\.gz"):
        list(IDX(path=str(tmp_path / "bad.gz"), name="image").raw())
