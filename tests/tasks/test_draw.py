"""Drawing by label: seeds, files, and impossible options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer import families
from anyformer.cli import main
from anyformer.inputs.contact_sheet import largest_value, to_bytes, write_sheet
from anyformer.inputs.image import Images

LABELS = ("T-shirt", "ankle boot", "bag")
CONFIG: dict[str, Any] = {
    "num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 1, "in_channels": 1, "sample_size": 6,
    "num_embeds_ada_norm": 3, "per_layer": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained DiT with its image processor."""
    path = tmp_path_factory.mktemp("dit")
    model = af.build(families.find("dit").read(CONFIG).with_labels(LABELS), seed=0)
    with torch.no_grad():
        for i, tensor in enumerate(model.parameters()):
            tensor.normal_(0, 0.2, generator=torch.Generator().manual_seed(i))
    af.save(model, path)
    Images(size={"height": 6, "width": 6}, image_mean=(0.5,), image_std=(0.5,)).save(path)
    return path


def pixels(path: Path) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.open(path))


def test_a_label_is_drawn(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One text gives one result, several give a sheet with a row each; the same seed gives the same picture."""
    out = tmp_path / "x.png"
    main(["run", "draw", str(folder), "ankle boot", "-o", str(out), "--steps", "3"])
    first = pixels(out)
    assert first.shape == (6, 6) and first.dtype == np.uint8 and str(out) in capsys.readouterr().out
    main(["run", "draw", str(folder), "bag", "Ankle Boot", "-o", str(out), "--steps", "3", "--count", "2", "--json"])
    sheet = pixels(out)
    assert sheet.shape == (6 + 2 + 6, 6 + 2 + 6)  # a gap of two between pictures
    assert np.array_equal(sheet[8:, :6], first) and (sheet[6:8] == 255).all()
    assert not np.array_equal(sheet[:6, :6], first) and not np.array_equal(sheet[8:, 8:], first)
    assert capsys.readouterr().out.count('"count": 2') == 2
    found = af.tasks.draw(str(folder), ["bag", "ankle boot"], out=None, count=2, steps=3, batch=3)
    assert found[1]["text"] == "ankle boot" and np.array_equal(found[1]["pictures"][0, ..., 0], first)
    other = af.tasks.draw(str(folder), "ankle boot", out=None, steps=3, seed=1)
    assert np.array_equal(other["pictures"][0], found[1]["pictures"][1])  # the second picture of seed 0


def test_labels_without_names_are_asked_for_by_number(folder: Path) -> None:
    model = af.load(folder)
    model.spec = model.spec.replace(source={})
    reader = af.tasks.open_model(model)
    first = af.tasks.draw(reader, "1", out=None, steps=2)
    assert np.array_equal(first["pictures"], af.tasks.draw(str(folder), "ankle boot", out=None, steps=2)["pictures"])
    with pytest.raises(ValueError, match="no label '3'; valid: 0, 1, 2"):
        af.tasks.draw(reader, "3", out=None)


@pytest.mark.parametrize(("arguments", "line"), [
    (["ankle boots"], "the model has no label 'ankle boots'; did you mean 'ankle boot'?"),
    (["violin"], "the model has no label 'violin'; valid: T-shirt, ankle boot, bag"),
    (["bag", "--steps", "0"], "steps is 0; it must be from 1 to 1000"),
    (["bag", "--steps", "5000"], "steps is 5000"),
    (["bag", "--count", "0"], "count is 0"),
    (["bag", "--guidance", "-1"], "guidance is -1.0"),
    (["bag", "--eta", "2"], "eta is 2.0"),
    (["bag", "--temperature", "1"], "temperature is not an option of this kind of model"),
    (["bag", "-o", "no/such/folder/x.png"], "no/such/folder/x.png: no such folder"),
    (["bag", "-o", "x.nothing"], "x.nothing: cannot be written"),
    (["bag", "hat", "--file", "some.txt"], "give INPUT or --file, not both"),
    (["bag", "--step", "3"], "did you mean"),
])  # fmt: skip
def test_wishes_that_cannot_be_fulfilled(
    folder: Path, arguments: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    fast = [] if "--steps" in arguments or "--step" in arguments else ["--steps", "1"]
    code = main(["run", "draw", str(folder), *arguments, *fast])
    err = capsys.readouterr().err
    assert code == 2 and line in err and err.count("\n") == 1


def test_a_text_that_cannot_be_drawn_leaves_its_row_blank(folder: Path, tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.png"
    found = af.tasks.draw(str(folder), ["bag", "hat", " ", "ankle boot"], out=sheet, steps=1)
    assert [one.get("text") for one in found] == ["bag", None, None, "ankle boot"]
    assert "no label 'hat'" in found[1]["error"] and found[2] == {"error": "text is empty"}
    rows = pixels(sheet)
    height = (len(rows) - 3 * 2) // 4  # pictures, with 2 pixels between them
    blank = [bool((rows[i * (height + 2) : i * (height + 2) + height] == 255).all()) for i in range(4)]
    assert blank == [False, True, True, False]
    alone = af.tasks.draw(str(folder), "ankle boot", out=tmp_path / "one.png", steps=1)
    assert alone["count"] == 1 and np.array_equal(pixels(tmp_path / "one.png"), rows[-height:])


def test_a_model_that_draws_nothing_is_told(folder: Path, tmp_path: Path) -> None:
    vit = {"image_size": 6, "patch_size": 2, "num_channels": 1, "hidden_size": 8, "num_hidden_layers": 1,
           "num_attention_heads": 2, "intermediate_size": 8}  # fmt: skip
    af.save(af.build(families.find("vit").read(vit)), tmp_path / "vit")
    Images(size={"height": 6, "width": 6}, image_mean=(0.5,), image_std=(0.5,)).save(tmp_path / "vit")
    with pytest.raises(ValueError, match="draw needs a model that draws.*ClassifyHead"):
        af.tasks.draw(str(tmp_path / "vit"), "bag")


def test_pictures_come_back_as_they_were_read() -> None:
    random = np.random.default_rng(0)
    for channels in (1, 3):
        images = Images(
            do_resize=False, image_mean=(0.3, 0.5, 0.4)[:channels], image_std=(0.2, 0.5, 0.3)[:channels],
            do_convert_rgb=channels == 3,
        )  # fmt: skip
        before = random.integers(0, 256, (2, 5, 4, channels), dtype=np.uint8)
        read = images([each for each in before])["pixel_values"]
        assert np.array_equal(to_bytes(read, images), before)
        whole = np.stack((np.zeros((5, 4, channels), np.uint8), np.full((5, 4, channels), 255, np.uint8)))
        assert largest_value(images) == pytest.approx(float(images([*whole])["pixel_values"].abs().max()), abs=1e-6)


def test_a_sheet_has_rows_of_pictures_of_one_size(tmp_path: Path) -> None:
    black, short = np.zeros((3, 2, 2, 3), np.uint8), np.zeros((1, 2, 2, 3), np.uint8)
    write_sheet(tmp_path / "s.png", [black, short], gap=1)
    sheet = pixels(tmp_path / "s.png")
    assert sheet.shape == (5, 8, 3) and (sheet[3:, 3:] == 255).all() and not sheet[:2, 3:5].any()
    with pytest.raises(ValueError, match="all of one shape"):
        write_sheet(tmp_path / "s.png", [black, np.zeros((1, 3, 3, 3), np.uint8)])
