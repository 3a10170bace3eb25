"""Labels and vectors of pictures, compared with transformers' classes; from files, folders and the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import anyformer as af
from anyformer import cli

transformers = pytest.importorskip("transformers")
Image = pytest.importorskip("PIL.Image")

SMALL = {
    "image_size": 16, "patch_size": 4, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 24, "id2label": {0: "cat", 1: "dog", 2: "owl"}, "label2id": {"cat": 0, "dog": 1, "owl": 2},
}  # fmt: skip
SWIN = {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}
CLASSES = {
    "ViTForImageClassification": SMALL, "ViTModel": SMALL, "DeiTForImageClassificationWithTeacher": SMALL,
    "SwinForImageClassification": {**SWIN, "problem_type": "multi_label_classification"},
}  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    def make(architecture: str) -> Path:
        folder = tmp_path_factory.getbasetemp() / "pictures" / architecture
        if not folder.exists():
            cls = getattr(transformers, architecture)
            torch.manual_seed(0)
            model = cls(cls.config_class(**CLASSES[architecture])).eval()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn(parameter.shape) * 0.2)
            model.save_pretrained(folder)
            transformers.ViTImageProcessorPil(size=16).save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    for i, shape in enumerate([(20, 30, 3), (16, 16), (40, 12, 3), (9, 9, 4)]):
        Image.fromarray(random.integers(0, 256, shape, dtype=np.uint8)).save(folder / f"{i}.png")
    return folder


@torch.no_grad()
def published_output(folder: Path, files: list[Path], name: str, architecture: str | None = None) -> torch.Tensor:
    """Return transformers' outputs for files."""
    model = getattr(transformers, architecture or folder.name).from_pretrained(folder).eval()
    processor = transformers.ViTImageProcessorPil.from_pretrained(folder)
    loaded = [transformers.image_utils.load_image(str(file)) for file in files]
    return model(**processor(loaded, return_tensors="pt"))[name]


@pytest.mark.parametrize("architecture", [name for name in CLASSES if name != "ViTModel"])
def test_labels_are_those_of_the_published_class(architecture: str, models: Any, photos: Path) -> None:
    folder, files = models(architecture), sorted(photos.iterdir())
    logits = published_output(folder, files, "logits")
    scores = logits.sigmoid() if "Swin" in architecture else logits.softmax(-1)
    found = af.tasks.classify_image(folder, photos, top_k=0, batch=3)
    assert [row[0]["file"] for row in found] == [str(file) for file in files]
    names = ["LABEL_0", "LABEL_1"] if "Swin" in architecture else ["cat", "dog", "owl"]
    for row, expected in zip(found, scores):
        assert {each["label"]: each["score"] for each in row} == pytest.approx(dict(zip(names, expected.tolist())))
        assert [each["score"] for each in row] == sorted((each["score"] for each in row), reverse=True)
    reader = af.tasks.open_model(folder)
    one = af.tasks.classify_image(reader, str(files[0]))
    # one picture or a batch: products are summed in a different order
    assert one == [{"label": found[0][0]["label"], "score": pytest.approx(found[0][0]["score"])}]
    image = Image.open(files[0])
    many = af.tasks.classify_image(reader, [image, np.asarray(image), {"image": files[0]}, files[0]], labels=names)
    assert all(each["score"] == pytest.approx(one[0]["score"]) and len(row) == 1 for row in many for each in row)


def test_vectors_are_those_of_the_published_class(models: Any, photos: Path) -> None:
    folder, files = models("ViTModel"), sorted(photos.iterdir())
    hidden = published_output(folder, files, "last_hidden_state")
    for pool, expected in ((None, hidden[:, 0]), ("cls", hidden[:, 0]), ("mean", hidden[:, 1:].mean(1))):
        found = torch.stack(af.tasks.embed_image(folder, photos, pool=pool, raw=True))
        assert float((found - expected).abs().max()) < 1e-5
    assert torch.allclose(af.tasks.embed_image(folder, files[2]), F.normalize(hidden[2, 0], dim=-1), atol=1e-5)
    swin = models("SwinForImageClassification")
    expected = published_output(swin, files, "pooler_output", "SwinModel")
    assert float((torch.stack(af.tasks.embed_image(swin, photos, raw=True)) - expected).abs().max()) < 1e-5
    with pytest.raises(ValueError, match="no class token; use 'mean'"):
        af.tasks.embed_image(swin, photos, pool="cls")


def test_positions_for_pictures_of_another_size(models: Any, photos: Path, tmp_path: Path) -> None:
    folder = models("ViTForImageClassification")
    af.save(af.load(folder), tmp_path / "m")
    transformers.ViTImageProcessorPil(size=24).save_pretrained(tmp_path / "m")
    with pytest.raises(ValueError, match="interpolate_pos_encoding=True"):
        af.tasks.classify_image(tmp_path / "m", photos)
    assert len(af.tasks.classify_image(tmp_path / "m", photos, interpolate=True)) == 4


def test_on_the_command_line(models: Any, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = models("ViTForImageClassification")
    assert cli.main(["run", "classify-image", str(folder), str(photos), "--json", "--top-k", "2"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == af.tasks.classify_image(folder, photos, top_k=2)
    assert cli.main(["run", "classify-image", str(folder), str(photos / "0.png")]) == 0
    assert "label" in capsys.readouterr().out
    assert cli.main(["run", "embed-image", str(folder), str(photos / "0.png"), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 16


def test_mistakes_are_one_line(models: Any, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, bad = models("ViTForImageClassification"), tmp_path / "bad"
    bad.mkdir()
    (bad / "empty.png").write_bytes(b"")
    for arguments, match in (
        (["classify-image", folder, bad / "empty.png"], "empty.png: the file is empty"),
        (["classify-image", folder, tmp_path / "none.png"], "no such file"),
        (["classify-image", folder, photos, "--labels", "a"], "1 labels given, but the model has 3"),
        (["embed-image", folder, photos, "--pool", "las"], "no pool 'las'"),
        (["classify", folder, "A text."], "classify needs a model that reads text; this one reads pictures"),
    ):
        assert cli.main(["run", *map(str, arguments)]) == 2
        error = capsys.readouterr().err
        assert match in error and len(error.strip().splitlines()) == 1
    with pytest.raises(ValueError, match="classification needs a model with a ClassifyHead"):
        af.tasks.classify_image(models("ViTModel"), photos)
    (tmp_path / "c").mkdir()
    af.save(af.load(folder), tmp_path / "grey")
    transformers.ViTImageProcessorPil(size=16, image_mean=[0.5], image_std=[0.5]).save_pretrained(tmp_path / "grey")
    with pytest.raises(ValueError, match="read with 1 channels; the model takes 3"):
        af.tasks.classify_image(tmp_path / "grey", photos)
