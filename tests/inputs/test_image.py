"""Preprocessing of many kinds of pictures compared with transformers' processors that use PIL, and invalid pictures."""

from __future__ import annotations

import io
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer.families.base.fields import UnknownFieldWarning
from anyformer.inputs.image import Images

transformers = pytest.importorskip("transformers")
Image = pytest.importorskip("PIL.Image")


def bytes_of(*shape: int, seed: int = 0) -> np.ndarray:
    """A random picture that is smooth enough for filters to differ, and sharp enough for them to ring."""
    noise = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    noise[: shape[0] // 2] = noise[: shape[0] // 2] // 4 + np.linspace(0, 190, shape[1], dtype=np.uint8)[None, :, None]
    return noise


# kind of processor, settings that differ from its defaults
SETTINGS = [
    ("ViT", {}), ("DeiT", {}), ("CLIP", {}), ("Siglip", {}), ("Bit", {}),
    ("ViT", {"size": 20}), ("CLIP", {"size": 20, "crop_size": 17}), ("Siglip", {"size": 21}),
    ("ViT", {"size": [13, 22], "image_mean": [0.1, 0.2, 0.3], "image_std": [0.9, 0.8, 0.7]}),
    ("DeiT", {"size": {"shortest_edge": 24}, "crop_size": {"height": 29, "width": 20}, "resample": 1}),
    ("DeiT", {"do_resize": False, "crop_size": {"height": 50, "width": 15}}),
    ("DeiT", {"size": {"shortest_edge": 30, "longest_edge": 34}, "do_center_crop": False, "resample": 5}),
    ("DeiT", {"size": {"shortest_edge": 18, "longest_edge": 90}, "do_center_crop": False}),
    ("ViT", {"size": {"max_height": 19, "max_width": 50}, "resample": 0}),
    ("ViT", {"size": 16, "resample": 4, "do_rescale": False}), ("ViT", {"size": 16, "do_normalize": False}),
    ("ViT", {"size": 16, "rescale_factor": 1 / 127.5, "image_mean": 0.25, "image_std": 0.75}),
    ("CLIP", {"size": 31, "do_center_crop": False, "do_pad": True, "pad_size": {"height": 60, "width": 61}}),
    ("ConvNext", {}), ("ConvNext", {"size": 20}), ("ConvNext", {"size": 22, "crop_pct": 0.6, "do_center_crop": True,
                                                               "crop_size": 17, "do_pad": True}),
    ("Llava", {}), ("Llava", {"size": 20, "crop_size": 18, "do_pad": True, "image_mean": [0.1, 0.5, 0.9]}),
    ("CLIP", {"use_square_size": True, "size": 30}), ("CLIP", {"size": 30, "crop_size": 28, "default_to_square": True}),
    ("ViT", {"size": 20, "default_to_square": False}), ("ViT", {"size": 20, "crop_size": {"shortest_edge": 12}}),
    ("DeiT", {"do_center_crop": None, "do_rescale": None, "crop_size": None, "pad_size": None, "do_pad": None}),
    ("Bit", {"do_normalize": None, "do_resize": None, "do_convert_rgb": None}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "settings"), SETTINGS, ids=str)
def test_pixels_are_those_of_the_published_processor(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps({"image_processor_type": f"{kind}ImageProcessor", **settings}))
    theirs = getattr(transformers, f"{kind}ImageProcessorPil").from_pretrained(tmp_path)
    own = [Images.load(tmp_path), Images.from_config({"feature_extractor_type": f"{kind}FeatureExtractor", **settings})]
    theirs.save_pretrained(tmp_path)
    own.append(Images.load(tmp_path))
    own[0].save(tmp_path)
    again = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    for read in own:
        for shape in ((33, 46, 3), (47, 31, 3), (24, 24, 3)):
            pixels = bytes_of(*shape)
            expected = theirs(Image.fromarray(pixels), return_tensors="pt")["pixel_values"]
            kept = again(Image.fromarray(pixels), return_tensors="pt")["pixel_values"]
            assert kept.shape == expected.shape and float((kept - expected).abs().max()) <= 1e-6
            first = np.ascontiguousarray(pixels.transpose(2, 0, 1))
            for given in (Image.fromarray(pixels), pixels, first, torch.from_numpy(pixels), pixels.astype(np.float32)):
                found = read(given)["pixel_values"]
                assert found.dtype == torch.float32 and found.shape == expected.shape
                assert float((found - expected).abs().max()) <= 1e-6


@pytest.mark.parametrize("mode", ["L", "LA", "P", "1", "RGBA", "CMYK"])
def test_other_modes_become_what_is_read(mode: str) -> None:
    image = Image.fromarray(bytes_of(20, 26, 3)).convert(mode)
    for kind in ("CLIP", "ViT"):
        theirs = getattr(transformers, f"{kind}ImageProcessorPil")(size=18, do_convert_rgb=True)
        read = Images.from_config({"image_processor_type": f"{kind}ImageProcessor", "size": 18})
        expected = theirs(image, return_tensors="pt")["pixel_values"]
        assert float((read(image)["pixel_values"] - expected).abs().max()) <= 1e-6
    grey = Images(size={"height": 9, "width": 9}, image_mean=(0.5,), image_std=(0.5,))
    assert grey(image)["pixel_values"].shape == (1, 1, 9, 9)
    coloured = image.convert("RGB")
    assert torch.equal(grey(np.asarray(coloured))["pixel_values"], grey(coloured.convert("L"))["pixel_values"])


def test_fractions_are_scaled_like_bytes() -> None:
    pixels = bytes_of(20, 26, 3) / 255
    theirs = transformers.ViTImageProcessorPil(size=18, do_rescale=False)
    expected = theirs(pixels, return_tensors="pt")["pixel_values"]
    read = Images(size={"height": 18, "width": 18}, do_rescale=False)
    assert float((read(pixels)["pixel_values"] - expected).abs().max()) <= 1e-6
    with pytest.raises(ValueError, match="already between 0 and 1.* do_rescale=False"):
        Images()(pixels)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Pictures in two folders, one of them rotated, and a file that is not a picture."""
    for name, seed in (("b/two.jpg", 1), ("a/one.png", 0), ("a/three.webp", 2)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(bytes_of(24, 30, 3, seed=seed)).save(tmp_path / name)
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.fromarray(bytes_of(24, 30, 3, seed=3)).save(tmp_path / "b" / "turned.jpg", exif=turned)
    (tmp_path / "a" / "notes.txt").write_text("none")
    return tmp_path


def test_files_and_folders(folder: Path) -> None:
    theirs, read = transformers.ViTImageProcessorPil(size=16), Images(size={"height": 16, "width": 16})
    names = ["a/one.png", "a/three.webp", "b/turned.jpg", "b/two.jpg"]
    loaded = [transformers.image_utils.load_image(str(folder / name)) for name in names]
    expected = theirs(loaded, return_tensors="pt")["pixel_values"]
    for given in (folder, str(folder), [folder / "a", str(folder / "b")], [folder / name for name in names], loaded):
        assert torch.equal(read(given)["pixel_values"], expected)
    assert torch.equal(read([loaded[0], np.asarray(loaded[1])])["pixel_values"], expected[:2])
    assert torch.equal(read(np.stack([np.asarray(loaded[0])] * 2))["pixel_values"], expected[[0, 0]])
    uneven = Images(size={"shortest_edge": 16})
    with pytest.raises(ValueError, match=r"several shapes, \(3, 16, 20\) and \(3, 20, 16\)"):
        uneven(folder)
    padded = Images(size={"shortest_edge": 16}, do_pad=True)(folder)["pixel_values"]
    assert padded.shape == (4, 3, 20, 20) and not padded[0, :, 16:].any()


def deep(numbers: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(numbers).save(stream, "PNG")
    return stream.getvalue()


def test_sixteen_bits_and_moving_pictures(tmp_path: Path) -> None:
    read = Images(size={"height": 8, "width": 8}, resample=0)
    plain = bytes_of(8, 8, 1)[..., 0]
    finer = np.random.default_rng(1).integers(0, 257, plain.shape) * (plain < 255)
    (tmp_path / "deep.png").write_bytes(deep((plain.astype(int) * 257 + finer).astype(np.uint16)))
    Image.fromarray(plain).save(tmp_path / "plain.png")
    assert torch.equal(read(tmp_path / "deep.png")["pixel_values"], read(tmp_path / "plain.png")["pixel_values"])
    frames = [Image.fromarray(bytes_of(8, 8, 3, seed=i)) for i in range(3)]
    frames[0].save(tmp_path / "moving.webp", save_all=True, append_images=frames[1:], lossless=True)
    assert Image.open(tmp_path / "moving.webp").n_frames == 3
    assert torch.equal(read(tmp_path / "moving.webp")["pixel_values"], read(frames[0])["pixel_values"])


def bomb() -> bytes:
    """A PNG of a few bytes whose header claims 30,000 x 30,000 pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_files_that_are_no_pictures(tmp_path: Path) -> None:
    whole = deep(bytes_of(40, 40, 3))
    contents = {
        "empty.png": (b"", "the file is empty"), "text.png": (b"Dear Sir,\n", "not a picture that can be read"),
        "cut.png": (whole[: len(whole) // 2], "trunc"), "bomb.png": (bomb(), r"more than 89,478,485 pixels"),
    }  # fmt: skip
    for name, (raw, match) in contents.items():
        (tmp_path / name).write_bytes(raw)
        with pytest.raises(ValueError, match=f"{name}: .*{match}") as error:
            Images()(tmp_path / name)
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="no such file"):
        Images()(tmp_path / "nothing.png")
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="no pictures in this folder"):
        Images()(tmp_path / "none")


WRONG = [
    (np.zeros((8, 8, 5), np.uint8), r"shape \(8, 8, 5\) is not a picture with 1, 3 or 4 channels"),
    (np.zeros((2, 2, 3, 8, 8), np.uint8), "is not a picture"), (np.zeros((0, 8, 3), np.uint8), "is not a picture"),
    (np.full((8, 8, 3), 300, np.uint16), "range from 300 to 300"), (-np.ones((8, 8, 3)), "range from -1 to -1"),
    (np.full((8, 8, 3), np.nan), "not finite"), (np.zeros((8, 8, 3), complex), "dtype complex128"),
    (7, "expected a picture: .* got int"), (b"PNG", "got bytes"), ([], "images is empty"), ({"image": 1}, "got dict"),
    ([np.zeros((8, 8, 3), np.uint8), np.zeros((8, 8, 3)) / 0.5 + 700], "picture 2: its numbers range from 700"),
    (np.zeros((2, 90_000, 3), np.uint8), "224 x 10,080,000 pixels are more than"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "match"), WRONG, ids=[match for _, match in WRONG])
def test_wrong_pictures_are_refused_in_a_line(given: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match) as error:
        Images(size={"shortest_edge": 224})(given)
    assert "\n" not in str(error.value)


def test_pixels_that_are_not_bytes_name_their_file(tmp_path: Path) -> None:
    read = Images(size={"height": 4, "width": 4})
    kinds = (("f.tiff", np.float32, "floating-point numbers"), ("i.tiff", np.int32, "more than 16 bits"))
    for name, dtype, match in kinds:
        Image.fromarray(np.full((8, 8), 1e6, dtype)).save(tmp_path / name)
        for given in (tmp_path / name, [str(tmp_path / name)], Image.open(tmp_path / name)):
            with pytest.raises(ValueError, match=f"^{tmp_path / name}: its pixels .*{match}.*; convert it to 8 bits"):
                read(given)
        for call in (read.one, read.resize):  # as tasks and training read them
            with pytest.raises(ValueError, match=f"^{tmp_path / name}: its pixels"):
                call(tmp_path / name)
    with pytest.raises(ValueError, match=f"^{tmp_path / 'gone.png'}: no such file$"):
        read.one(tmp_path / "gone.png")


def test_wrong_files_of_settings(tmp_path: Path) -> None:
    for config, match in (
        ({"image_processor_type": "Mask2FormerImageProcessor"}, "image processor 'Mask2Former' is not supported"),
        ({"size": {"longest_edge": 20}}, "height and width, shortest_edge"), ({"size": "big"}, "number of pixels"),
        ({"image_std": [0.5, 0.0, 0.5]}, "none of its numbers may be 0"), ({"resample": 9}, "from 0 to 5"),
        ({"do_center_crop": True}, "crop_size needs height and width"), ({"crop_size": 10**9}, "are more than"),
        ({"size": {"height": -1, "width": 3}}, "size is"), ({"rescale_factor": {}}, "rescale_factor"),
        ({"image_mean": [0.5, {}]}, "image_mean"), ({"do_resize": "yes"}, "do_resize"),
    ):  # fmt: skip
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match=match) as error:
            Images.load(tmp_path)
        assert "preprocessor_config.json: " in str(error.value)
    for mean, match in (((0.5, 0.5), "3 channels, but the model reads 2"), ((0.5,) * 3, "image_mean 3, image_std 2")):
        with pytest.raises(ValueError, match=match):
            Images(image_mean=mean, image_std=(0.5, 0.5))(np.zeros((8, 8, 3), np.uint8))
    with pytest.raises(ValueError, match=r"no preprocessor_config.json with settings for pictures"):
        Images.load(tmp_path / "elsewhere")
    with pytest.warns(UnknownFieldWarning, match="crop_pct"):
        Images.from_config({"crop_pct": 0.9})


def test_without_pillow_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "PIL", None)
    (tmp_path / "a.png").write_bytes(b"1")
    with pytest.raises(ValueError, match=r"pictures need Pillow: pip install 'anyformer\[image\]'"):
        Images()(tmp_path / "a.png")


def test_settings_travel_with_the_model(tmp_path: Path) -> None:
    """Saved settings can be read here and in transformers, and af.save copies them."""
    read = Images(size={"height": 12, "width": 10}, resample=3, image_mean=(0.1, 0.2, 0.3), do_convert_rgb=True)
    config = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8,
              "image_size": [12, 10], "patch_size": 2}  # fmt: skip
    af.save(af.build(af.families.find("vit").read(config)), tmp_path / "a")
    read.save(tmp_path / "a")
    af.save(af.load(tmp_path / "a"), tmp_path / "b", format="hf")
    assert Images.load(tmp_path / "b") == read
    theirs = transformers.ViTImageProcessorPil.from_pretrained(tmp_path / "b")
    pixels = bytes_of(30, 20, 3)
    expected = theirs(pixels, return_tensors="pt")["pixel_values"]
    assert float((Images.load(tmp_path / "b")(pixels)["pixel_values"] - expected).abs().max()) <= 1e-6


@pytest.mark.parametrize("model_type", ["vit", "deit", "swin", "swinv2", "resnet", "clip", "llava"])
def test_settings_that_name_no_kind_are_of_the_models(model_type: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"size": 300, "rescale_factor": 0.01}))
    picture = Image.fromarray(bytes_of(33, 46, 3))
    theirs = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    expected = theirs(picture, return_tensors="pt")["pixel_values"]
    found = af.processor(tmp_path)(images=picture)["pixel_values"]
    assert found.shape == expected.shape and float((found - expected).abs().max()) <= 1e-6


def test_a_file_with_no_more_than_its_kind(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text('{"image_processor_type": "ViTImageProcessor"}')
    assert af.processor(tmp_path)(images=bytes_of(9, 9, 3))["pixel_values"].shape == (1, 3, 224, 224)


# -- pictures as colours (ImageGPT)


@pytest.mark.parametrize("settings", [{"size": 6}, {"size": {"height": 5, "width": 7}, "do_normalize": False}], ids=str)
def test_colours_are_those_of_the_published_processor(settings: dict[str, Any], tmp_path: Path) -> None:
    low = 0 if "do_normalize" in settings else -1
    clusters = np.random.default_rng(1).uniform(low, 1, (40, 3)).round(4).tolist()
    theirs = transformers.ImageGPTImageProcessorPil(clusters=clusters, **settings)
    pictures = [Image.fromarray(bytes_of(33, 46, 3, seed=seed)) for seed in range(3)]
    expected = theirs(pictures, return_tensors="pt")["input_ids"]
    theirs.save_pretrained(tmp_path)
    old = {"feature_extractor_type": "ImageGPTFeatureExtractor", "clusters": clusters, **settings}
    (tmp_path / "again").mkdir()
    Images.from_config(old).save(tmp_path / "again")
    for read in (af.processor(tmp_path), af.processor(tmp_path / "again")):
        assert torch.equal(read(images=pictures)["input_ids"], expected)
        drawn = read.decode(expected)
        assert drawn.dtype == np.uint8 and drawn.shape[0] == 3 and drawn.shape[1:] == read.decode(expected[0]).shape
    again = transformers.ImageGPTImageProcessorPil.from_pretrained(tmp_path / "again")
    assert torch.equal(again(pictures, return_tensors="pt")["input_ids"], expected)
    # a picture that has only these colours does not change
    assert torch.equal(af.processor(tmp_path)(images=drawn)["input_ids"], expected)


def test_mistakes_about_colours() -> None:
    kind = {"image_processor_type": "ImageGPTImageProcessor"}
    for clusters in (None, [], [[0.1, 0.2]]):
        with pytest.raises(ValueError, match="clusters must be a list of colours, three numbers each"):
            Images.from_config({**kind, "clusters": clusters})
    read = Images.from_config({**kind, "clusters": [[0, 0, 0], [1, 1, 1]], "size": 2})
    assert read.decode_colours([0, 1, 1, 0])[0, 1].tolist() == [255] * 3
    with pytest.raises(ValueError, match="a picture of 2 x 2 colours needs 4 ids"):
        read.decode_colours([0, 1, 1])
    with pytest.raises(ValueError, match="colours are numbered from 0 to 1, got 0 to 2"):
        read.decode_colours([0, 1, 1, 2])
