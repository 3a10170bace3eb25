"""Image classification: records on disk, augmentation, gradients, and settings that are saved with a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import anyformer as af
from anyformer.data import Arrays, Data, ImageFolder, Loader, Plan, prepare
from anyformer.inputs.image import Images
from anyformer.objectives.images import ClassifyImage
from anyformer.specs.codec import decode, encode

GREY = ClassifyImage(labels=("a", "b"), image_size=(8, 6), mean=(0.3,), std=(0.4,))
VIT = {
    "image_size": [8, 6], "patch_size": 2, "num_channels": 1, "hidden_size": 12, "num_hidden_layers": 1,
    "num_attention_heads": 2, "intermediate_size": 16,
}  # fmt: skip


def model(**changes: Any) -> Any:
    return af.build(af.families.find("vit").read({**VIT, **changes}), seed=0).eval()


@pytest.fixture
def source(tmp_path: Path) -> Arrays:
    random = np.random.default_rng(0)
    pixels, labels = random.integers(0, 256, (12, 8, 6), dtype=np.uint8), np.arange(12, dtype=np.uint8) % 2
    np.savez(tmp_path / "some.npz", x=pixels, y=labels, short=labels[:3])
    return Arrays(path=str(tmp_path / "some.npz"), fields={"image": "x", "label": "y"})


def test_micro_batches_are_one_batch_and_the_loss_is_plain(source: Arrays, tmp_path: Path) -> None:
    assert decode(json.loads(json.dumps(encode(GREY)))) == GREY
    split = prepare(Data(train=source), GREY, None, tmp_path / "data", 12).train
    plan, net = Plan(split, examples=8), model()
    assert split.bad == 0 and split.fields["pixels"].parts[0].dtype == np.uint8
    (batch,) = Loader(plan, GREY, pin=False).make(0).batches
    pieces = Loader(plan, GREY, micro=3, pin=False).make(0).batches
    expected = F.cross_entropy(net(batch["pixel_values"]).logits, batch["labels"], reduction="sum")
    found = GREY.losses(GREY.module(net), batch)["loss"]
    assert torch.allclose(found, expected, atol=1e-5)
    assert torch.allclose(sum(GREY.losses(net, piece)["loss"] for piece in pieces), found, atol=1e-5)
    with np.load(source.path) as stored:  # training and inference both use `Images`
        shown = GREY.images(list(stored["x"]))["pixel_values"]
    for record, expected in zip((split.record(i) for i in range(12)), shown):
        assert float((GREY.collate([record], 0)["pixel_values"][0] - expected).abs().max()) <= 1e-6
    smooth = GREY.replace(smoothing=0.1)
    assert smooth.losses(net, batch)["loss"].item() != pytest.approx(found.item())


def test_chance_mirrors_and_moves() -> None:
    record = GREY.encode({"image": np.arange(48, dtype=np.uint8).reshape(8, 6), "label": "b"}, None)
    picture = record["pixels"].reshape(8, 6)
    assert record["label"] == 1

    def seen(**changes: Any) -> set[bytes]:
        plain = GREY.replace(mean=(0.0,), std=(1.0,), **changes)
        batch = plain.collate([plain.vary(record, np.random.default_rng(i)) for i in range(90)], 0)
        return {(each * 255).round().byte().numpy().tobytes() for each in batch["pixel_values"]}

    around = np.pad(picture, 1)
    assert seen() == {picture.tobytes()} and seen(flip=0.5) == {picture.tobytes(), picture[:, ::-1].tobytes()}
    moved = {around[i : i + 8, j : j + 6].tobytes() for i in range(3) for j in range(3)}
    assert seen(shift=1) == moved
    turned = {around[:, ::-1][i : i + 8, j : j + 6].tobytes() for i in range(3) for j in range(3)}
    assert len(seen(shift=1, flip=0.5) - moved) > 5 and seen(shift=1, flip=0.5) <= moved | turned
    again = GREY.replace(shift=1, flip=0.5)
    one, two = (again.collate([again.vary(record, np.random.default_rng(7))], 0)["pixel_values"] for _ in range(2))
    assert torch.equal(one, two)


def test_boxes_of_neighbours_and_empty_ones() -> None:
    """If half of an image is pasted from another, half of the loss is for its label. Evaluation pastes nothing."""
    rows = [GREY.encode({"image": np.full((8, 6), 50 + i, np.uint8), "label": i % 2}, None) for i in range(40)]
    for name in ("cut", "erase"):
        pasting = GREY.replace(**{name: 0.5})
        batch = pasting.collate([pasting.vary(row, np.random.default_rng(i)) for i, row in enumerate(rows)], 0)
        plain, made = batch["pixel_values"], pasting.paste_boxes(batch)
        new = made["pixel_values"] != plain
        touched = new.flatten(1).any(1)
        assert 8 < int(touched.sum()) < 32
        wanted = plain.roll(1, 0) if name == "cut" else torch.zeros_like(plain)
        assert torch.equal(made["pixel_values"][new], wanted[new])
        for box in new[touched][:, 0]:  # the changed pixels are a rectangle
            assert torch.equal(box, box.any(1)[:, None] & box.any(0)[None])
        net = model().train()
        logits, changed = (net(pixels).logits for pixels in (plain, made["pixel_values"]))
        both = (batch["labels"], batch["labels"].roll(1))
        own, other = (F.cross_entropy(changed, labels, reduction="none") for labels in both)
        share = new.flatten(1).float().mean(1) if name == "cut" else torch.zeros(40)
        expected = (1 - share) * own + share * other
        assert torch.allclose(pasting.losses(net, batch)["loss"], expected.sum(), atol=1e-4)
        asked = F.cross_entropy(logits, batch["labels"], reduction="sum")
        assert torch.allclose(pasting.losses(net.eval(), batch)["loss"], asked, atol=1e-4)


def test_an_empty_box_is_where_chance_says() -> None:
    """Random number 4 is the box's share of the image, 5 and 3 are its centre, and 7 decides whether to erase."""
    erasing, pixels = GREY.replace(erase=0.5), torch.ones(4, 1, 8, 6)
    chance = torch.zeros(4, 8)
    chance[:, 3:6] = torch.tensor([[0.5, 0.36, 0.5], [0.5, 0.36, 0.5], [0.1, 0.04, 0.9], [0.9, 0.64, 0.1]])
    chance[:, 7] = torch.tensor([0.4, 0.5, 0.0, 0.1])
    found = erasing.paste_boxes({"pixel_values": pixels, "chance": chance})["pixel_values"][:, 0]
    empty = torch.zeros(4, 8, 6, dtype=torch.bool)
    empty[0, 2:6, 1:5] = True  # 4.8 x 3.6 around (4, 3)
    empty[2, 6:8, 0:1] = True  # 1.6 x 1.2 around (7.2, 0.6)
    empty[3, 0:4, 3:6] = True  # 6.4 x 4.8 around (0.8, 5.4), over two edges
    assert torch.equal(found == 0, empty) and bool((found[~empty] == 1).all())


def test_settings_stay_beside_the_model(source: Arrays, tmp_path: Path) -> None:
    from anyformer.train.optim import AdamW
    from anyformer.train.run import Batch, Evaluate, Run
    from anyformer.train.start import setup

    run = Run(
        name="pictures", model=af.families.find("vit").read(VIT), data=Data(train=source, valid=source), objective=GREY,
        optimizer=AdamW(lr=1e-2), batch=Batch(examples=12), steps=30,
        evaluate=Evaluate(every=30, metrics=("accuracy",)),
    )  # fmt: skip
    torch.set_num_threads(1)
    setup(run, tmp_path / "run").fit()
    assert Images.load(af.load(tmp_path / "run").folder) == GREY.images
    with np.load(source.path) as stored:
        answers = af.tasks.classify_image(tmp_path / "run", list(stored["x"]))
        right = [row[0]["label"] == "ab"[y] for row, y in zip(answers, stored["y"])]
    assert sum(right) >= 10, "a dozen pictures are learnt by heart, and read as they were learnt"


def test_clear_errors() -> None:
    for objective, net, match in (
        (GREY, model(num_channels=3), r"PatchEmbedding\(channels=1\)"),
        (GREY, model(num_labels=3), "2 labels in the objective, 3 in the model"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=match):
            objective.module(net)
    wrong = ({"labels": ("a",)}, "two labels"), ({"std": (0.5, 0.5)}, "mean and std"), ({"shift": -1}, "shift")
    for changes, match in (*wrong, ({"cut": 1.0}, "cut")):
        with pytest.raises(ValueError, match=match):
            GREY.replace(**changes)


def test_folders_of_pictures(tmp_path: Path) -> None:
    Image = pytest.importorskip("PIL.Image")
    for i, label in enumerate("abab"):
        (tmp_path / label).mkdir(exist_ok=True)
        Image.fromarray(np.full((9, 9, 3), 40 * i, np.uint8)).save(tmp_path / label / f"{i}.png")
    split = prepare(Data(train=ImageFolder(path=str(tmp_path))), GREY, None, tmp_path / "data").train
    assert len(split) == 4 and sorted(int(split.record(i)["label"]) for i in range(4)) == [0, 0, 1, 1]
