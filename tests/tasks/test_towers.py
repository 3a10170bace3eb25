"""zero-shot-image and search-images: compared with the model's scores; the index file; mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

import anyformer as af
from anyformer.data import TrainedBPE
from anyformer.inputs.image import Images
from anyformer.tasks import towers

Image = pytest.importorskip("PIL.Image")
CONFIG = {
    "text_config": {
        "vocab_size": 258, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "max_position_embeddings": 30, "eos_token_id": 0,
    },
    "vision_config": {
        "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8,
        "patch_size": 4,
    },
    "projection_dim": 8,
}  # fmt: skip
LABELS = ["cat", "dog", "house"]


def saved(folder: Path, seed: int = 0) -> Path:
    af.save(af.build(af.families.find("clip").read(CONFIG), seed=seed), folder)
    TrainedBPE(size=258).make(iter(["cat dog house"]), folder)
    Images(size={"height": 8, "width": 8}, do_convert_rgb=True).save(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("clip"))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    (tmp_path / "pictures").mkdir()
    for i in range(4):
        pixels = np.random.default_rng(i).integers(0, 256, (9, 11, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "pictures" / f"{i}.png")
    return tmp_path / "pictures"


def scores(folder: Path, texts: list[str], files: list[Path]) -> Any:
    """Return the model's scores (pictures, texts) of all pairs."""
    model, read = af.load(folder), af.processor(folder)
    ids = [[*read.tokenizer.encode(text), 0] for text in texts]
    width = max(map(len, ids))
    rows = torch.tensor([row + [1] * (width - len(row)) for row in ids])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in ids])
    pixels = Images.load(folder)([*files])["pixel_values"]
    with torch.no_grad():
        return model(input_ids=rows, attention_mask=mask, pixel_values=pixels).logits_per_image


def test_names_that_fit_a_picture(folder: Path, pictures: Path) -> None:
    files = sorted(pictures.iterdir())
    right = scores(folder, [f"a photo of a {label}." for label in LABELS], files).softmax(-1)
    found = af.tasks.zero_shot_image(folder, str(pictures), labels=LABELS)
    for row, file, each in zip(right, files, found, strict=True):
        assert {one["file"] for one in each} == {str(file)}
        assert [one["label"] for one in each] == [LABELS[i] for i in row.argsort(descending=True)]
        assert {one["label"]: one["score"] for one in each} == pytest.approx(dict(zip(LABELS, row.tolist())), abs=1e-5)
    assert len(af.tasks.zero_shot_image(folder, str(files[0]), labels=LABELS, top_k=1, template="{}")) == 1


def test_pictures_that_fit_a_text(folder: Path, pictures: Path, tmp_path: Path, monkeypatch: Any) -> None:
    index, files = tmp_path / "index", sorted(pictures.iterdir())
    first = af.tasks.search_images(folder, ["cat", "dog"], folder=pictures, index=index, top_k=2)
    right = scores(folder, ["cat", "dog"], files).t().argsort(descending=True)[:, :2]
    assert [[one["file"] for one in each] for each in first] == [[str(files[i]) for i in row] for row in right]
    read: list[int] = []
    original = towers.image_vectors
    monkeypatch.setattr("anyformer.tasks.each.search_images.image_vectors",
                        lambda asked: read.append(len(asked.rows)) or original(asked))  # fmt: skip
    assert af.tasks.search_images(folder, ["cat", "dog"], folder=pictures, index=index, top_k=2) == first
    assert read == []  # all vectors come from the index
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(pictures / "new.png")
    files[0].unlink()
    assert len(af.tasks.search_images(folder, "cat", folder=pictures, index=index)) == 4
    assert read == [1]


def test_a_deleted_picture_leaves_the_index(folder: Path, pictures: Path, tmp_path: Path) -> None:
    index, files = tmp_path / "index", sorted(pictures.iterdir())

    def kept() -> list[str]:
        with safe_open(index, "pt") as file:
            assert file.get_slice("vectors").get_shape() == [len(json.loads(file.metadata()["files"])), 8]
            return [*json.loads(file.metadata()["files"])]

    af.tasks.search_images(folder, "cat", folder=pictures, index=index)
    assert kept() == [*map(str, files)]
    unchanged = index.stat().st_mtime_ns
    af.tasks.search_images(folder, "cat", folder=pictures, index=index)
    assert index.stat().st_mtime_ns == unchanged  # nothing to write
    files[1].unlink()
    found = af.tasks.search_images(folder, "cat", folder=pictures, index=index)
    assert kept() == [str(file) for file in files if file != files[1]] == sorted(one["file"] for one in found)


def test_vectors_of_one_thing_alone(folder: Path, pictures: Path) -> None:
    """Normalized vectors, and raw vectors as the towers output them."""
    files = sorted(map(str, pictures.iterdir()))
    vectors = af.tasks.embed(folder, ["cat", "dog"]), af.tasks.embed_image(folder, files)
    texts, images = map(torch.stack, vectors)
    found = scores(folder, ["cat", "dog"], [Path(file) for file in files])
    assert torch.allclose(images @ texts.t() * torch.tensor(2.6592).exp(), found, atol=1e-5)
    raw = af.tasks.embed_image(folder, files[0], raw=True)
    assert raw.shape == (8,) and torch.allclose(raw / raw.norm(), images[0], atol=1e-6)
    for function, given in ((af.tasks.embed, "cat"), (af.tasks.embed_image, files[0])):
        with pytest.raises(ValueError, match="vector; leave pool out"):
            function(folder, given, pool="mean")
    with pytest.raises(ValueError, match="takes at most 30"):
        af.tasks.embed(folder, "cat " * 60)


def test_mistakes(folder: Path, pictures: Path, tmp_path: Path) -> None:
    for labels in (["cat"], ["cat", "cat"], "cat"):
        with pytest.raises(ValueError, match="two or more different names"):
            af.tasks.zero_shot_image(folder, str(pictures), labels=labels)
    with pytest.raises(ValueError, match="for the name"):
        af.tasks.zero_shot_image(folder, str(pictures), labels=LABELS, template="a photo")
    with pytest.raises(ValueError, match="no such folder of pictures"):
        af.tasks.search_images(folder, "cat", folder=tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no pictures in this folder"):
        af.tasks.search_images(folder, "cat", folder=tmp_path / "empty")
    index = tmp_path / "index"
    af.tasks.search_images(folder, "cat", folder=pictures, index=index)
    with pytest.raises(ValueError, match="written with a different model"):
        af.tasks.search_images(saved(tmp_path / "other", seed=1), "cat", folder=pictures, index=index)
    index.write_bytes(b"no index")
    with pytest.raises(ValueError, match="is not an index of pictures"):
        af.tasks.search_images(folder, "cat", folder=pictures, index=index)
