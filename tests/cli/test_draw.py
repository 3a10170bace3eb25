"""`anyformer draw`: a picture in a file, or one clear line if it cannot be drawn."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import anyformer as af
from anyformer.specs.codec import to_json

VERB = ("draw",)
SMALL = {"decoder.depth": 2, "width": 24, "decoder.layers.attention.op.num_heads": 3,
         "decoder.layers.attention.op.head_width": 8}  # fmt: skip


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_picture_in_each_form(run, tmp_path: Path) -> None:
    assert run("gpt2", "-o", "a.svg") == (0, "a.svg\n", "")
    picture = ElementTree.parse(tmp_path / "a.svg").getroot()
    assert picture.tag.endswith("svg") and "gpt2" in "".join(picture.itertext())
    assert run("gpt2", "--out", "b.html", "--theme", "dark")[0] == 0
    page = (tmp_path / "b.html").read_text()
    assert page.startswith("<!doctype html>") and page.count("<svg") == 1 and "af-dark" in page
    assert run("gpt2") == (0, "gpt2.svg\n", "") and (tmp_path / "gpt2.svg").is_file()


def test_a_default_name_replaces_no_file_of_others(run, tmp_path: Path) -> None:
    (tmp_path / "gpt2.svg").write_text("<svg>drawn by hand</svg>")
    code, _, err = run("gpt2")
    assert code == 2 and "gpt2.svg exists and was not written by anyformer; choose another file with -o FILE" in err
    assert (tmp_path / "gpt2.svg").read_text() == "<svg>drawn by hand</svg>"
    assert run("gpt2", "-o", "gpt2.svg")[0] == 0 and run("gpt2")[0] == 0  # with -o, then over our own file


def test_a_png(run, tmp_path: Path) -> None:
    pytest.importorskip("cairosvg", exc_type=ImportError)
    from PIL import Image

    assert run("gpt2", "-o", "a.png")[0] == 0
    image = Image.open(tmp_path / "a.png").convert("RGB")
    assert image.width > 1000 and image.getpixel((1, 1)) == (255, 255, 255)
    assert len(image.resize((200, 200)).getcolors(40_000)) > 20, "colours reach a reader that knows little CSS"
    assert run("gpt2", "-o", "b.png", "--theme", "dark")[0] == 0
    assert Image.open(tmp_path / "b.png").convert("RGB").getpixel((1, 1)) == (0x14, 0x18, 0x1F)


def test_files_folders_and_other_values(run, tmp_path: Path) -> None:
    spec = af.override(af.spec("gpt2"), SMALL)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "spec.json").write_text(to_json(spec))
    assert run("mine/spec.json", "-o", "a.svg")[0] == 0 and "× 2" in (tmp_path / "a.svg").read_text()
    af.save(af.build(spec), tmp_path / "model")
    assert run("model")[1] == "model.svg\n" and ">model<" in (tmp_path / "model.svg").read_text()
    assert run("gpt2", "--set", "decoder.depth=7", "-o", "b.svg")[0] == 0 and "× 7" in (tmp_path / "b.svg").read_text()


def test_two(run, tmp_path: Path) -> None:
    assert run("gpt2", "llama3-8b") == (0, "gpt2-llama3-8b.svg\n", "")
    text = (tmp_path / "gpt2-llama3-8b.svg").read_text()
    assert "marked: differs from the other model" in text and "RMSNorm" in text and "LayerNorm" in text


def test_a_png_without_its_converter(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cairosvg", None)
    code, out, err = run("gpt2", "-o", "x.png")
    assert code == 2 and out == "" and err.count("\n") == 1 and "pip install 'anyformer[draw]'" in err
    assert not (tmp_path / "x.png").exists()
