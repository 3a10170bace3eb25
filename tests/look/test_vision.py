"""Pictures of vision models, compared with numpy implementations and with weights and attention of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer import families
from anyformer.look import vision
from anyformer.look.views import Scene
from anyformer_course.pictures import lectures

SWIN = {
    "image_size": (26, 32), "patch_size": 2, "embed_dim": 8, "depths": [2, 3], "num_heads": [2, 4], "window_size": 4,
    "hidden_dropout_prob": 0.0, "drop_path_rate": 0.0, "architectures": ["SwinModel"],
}  # fmt: skip
VIT = {
    "image_size": 24, "patch_size": 4, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 24,
}  # fmt: skip


def described(family: str, config: dict[str, Any], **changes: Any) -> Any:
    return families.find(family).read({**config, **changes})


def swin(family: str, **changes: Any) -> Any:
    return described(family, SWIN, architectures=[f"{'Swinv2' if family == 'swinv2' else 'Swin'}Model"], **changes)


def published(rows: int, columns: int, size: int, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the window and the region of every cell, (rows, columns) each, with the slices of the paper's code."""
    high, wide = -(-rows // size) * size, -(-columns // size) * size
    cells, region = np.full((high, wide), -1), np.zeros((high, wide), int)
    cells[:rows, :columns] = np.arange(rows * columns).reshape(rows, columns)
    if shift:
        cells = np.roll(cells, (-shift, -shift), (0, 1))
        slices = (slice(0, -size), slice(-size, -shift), slice(-shift, None))
        for i, (down, right) in enumerate((down, right) for down in slices for right in slices):
            region[down, right] = i
    window, part = np.empty(rows * columns, int), np.empty(rows * columns, int)
    for row in range(high):
        for column in range(wide):
            if cells[row, column] >= 0:
                window[cells[row, column]] = row // size * (wide // size) + column // size
                part[cells[row, column]] = region[row, column]
    return window.reshape(rows, columns), part.reshape(rows, columns)


@pytest.mark.parametrize("family", ["swin", "swinv2"])
def test_windows_are_those_of_the_program(family: str) -> None:
    """The cases include a padded grid: 13 x 16 cells in windows of 4."""
    found = af.look.windows(swin(family))
    wanted = [(13, 16, 4, 0), (13, 16, 4, 2), (7, 8, 4, 0), (7, 8, 4, 2)]
    assert [(*each.window.shape, each.size, each.shift) for each in found] == wanted
    for each, sizes in zip(found, wanted, strict=True):
        window, part = published(*sizes)
        assert np.array_equal(each.window, window) and np.array_equal(each.part, part)
        several = {int(i) for i in np.unique(window) if len(np.unique(part[window == i])) > 1}
        assert {int(i) for i in each.window[each.joined]} == several and bool(several) == bool(sizes[3])
    assert found[2].addresses == tuple(f"encoder.stages.1.layers.{i}.attention" for i in (0, 2))
    assert (found[1].about, found[2].about) == ("encoder.stages.0, layer 1", "encoder.stages.1, layers 0, 2")
    assert [tuple(each.span) for each in found] == [(2, 2), (2, 2), (4, 4), (4, 4)]


def test_places_of_other_parts_are_those_that_get_no_attention() -> None:
    model = af.build(swin("swin", image_size=32), seed=0).eval()
    with torch.no_grad():
        run = af.trace(model, pixel_values=torch.randn(1, 3, 32, 32))
    weights = af.look.attention(run)
    for each in af.look.windows(model.spec):
        seen = weights[f"{each.addresses[0]}.op.mixer"].weights > 0  # (windows, H, T, T)
        for window in each.window.unique():
            if each.shift and bool(each.joined[each.window == window].any()):  # in the order of the shifted grid
                part = each.part.roll((-each.shift, -each.shift), (0, 1))
                inside = part[each.window.roll((-each.shift, -each.shift), (0, 1)) == window]
                assert torch.equal(seen[window, 0], inside[:, None] == inside[None])
                assert not seen[window].all()
            else:
                assert seen[window].all()


def test_a_changed_description_changes_the_windows() -> None:
    spec, layer = swin("swin", image_size=32), "encoder.stages.0.layers.shifted.attention.op"
    moved = af.look.windows(af.override(spec, {f"{layer}.shift": 1}))[1]
    assert moved.shift == 1 and np.array_equal(moved.window, published(16, 16, 4, 1)[0])
    smaller = af.look.windows(af.override(spec, {f"{layer}.size": 3, f"{layer}.shift": 1}))[1]
    assert np.array_equal(smaller.part, published(16, 16, 3, 1)[1])
    coarse = af.look.windows(swin("swin", image_size=32, patch_size=4))[0]
    assert coarse.window.shape == (8, 8) and tuple(coarse.span) == (4, 4)
    wide = af.look.windows(spec, (32, 48))[0]
    assert wide.window.shape == (16, 24)


def test_what_is_drawn_of_windows() -> None:
    pytest.importorskip("matplotlib")
    spec = swin("swin")
    scene = Scene(af.build(spec, device="meta"), {"pixel_values": torch.rand(1, 3, 26, 32)}, reads="image")
    figure = lectures.windows(scene)
    drawn = {axis.get_title().split("\n")[0]: axis for axis in figure.axes}
    assert drawn.keys() == {each.about for each in af.look.windows(spec)} and len(figure.axes) == 4
    plain, shifted = (drawn[f"encoder.stages.0, layer {i}"] for i in (0, 1))
    pixels = scene.inputs["pixel_values"][0].permute(1, 2, 0)  # the darkest is black, the brightest white
    shades = (pixels - pixels.min()) / (pixels.max() - pixels.min())
    assert np.allclose(plain.images[0].get_array(), shades, atol=1e-6)
    assert not plain.texts and not np.asarray(plain.images[1].get_array())[..., 3].any()
    window, part = published(13, 16, 4, 2)
    each = af.look.windows(spec)[1]
    tinted = np.asarray(shifted.images[1].get_array())
    assert np.array_equal(tinted[..., 3] > 0, each.joined)
    colours = {tuple(colour) for colour in tinted[each.joined.numpy()][:, :3].tolist()}
    assert len(colours) == len(np.unique(part[each.joined.numpy()]))
    for i in np.unique(window[each.joined.numpy()]):  # one number inside every part
        points = [text.get_position() for text in shifted.texts if text.get_text() == str(i)]
        at = {int(part[int(y // 2), int(x // 2)]) for x, y in points if window[int(y // 2), int(x // 2)] == i}
        assert at == set(part[window == i]) and len(points) == len(at)
    lines = [line for collection in shifted.collections[:1] for line in collection.get_segments()]
    for row in range(12):  # there is a line between two cells if they do not attend to each other
        for column in range(16):
            parted = (window[row, column], part[row, column]) != (window[row + 1, column], part[row + 1, column])
            at = (2 * column + 1, 2 * row + 2)
            assert parted == any(a[1] == b[1] == at[1] and a[0] < at[0] < b[0] for a, b in lines)


def test_models_without_windows() -> None:
    for spec, line in ((described("vit", VIT, architectures=["ViTModel"]), "this model has no windows"),
                       (af.spec("clip-b32"), "two towers")):  # fmt: skip
        with pytest.raises(ValueError, match=line):
            af.look.windows(spec)
    model = af.build(swin("swin"), seed=0).eval()
    with torch.no_grad():
        run = af.trace(model, pixel_values=torch.rand(1, 3, 26, 32))
    with pytest.raises(ValueError, match="does not attend from every patch"):
        af.look.attention_distance(run)
    with pytest.raises(ValueError, match="no filters of patches"):
        vision.filters(af.build(af.override(af.spec("gpt2"), {"decoder.depth": 1}), device="meta"))
    assert vision.position_likeness(model) is None


# -- ViT and DeiT -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["vit", "deit"])
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """Return a folder, our model, and the transformers model with eager attention. DeiT has a second class token."""
    transformers = pytest.importorskip("transformers")
    name = {"vit": "ViTModel", "deit": "DeiTModel"}[request.param]
    model = af.build(described(request.param, VIT, architectures=[name]), seed=3).eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    folder = tmp_path_factory.mktemp(request.param)
    af.save(model, folder, format="hf")
    return folder, model, getattr(transformers, name).from_pretrained(folder, attn_implementation="eager").eval()


def test_filters_are_principal_components(seen: Any) -> None:
    _, model, theirs = seen
    weight = theirs.embeddings.patch_embeddings.projection.weight.detach().numpy().reshape(16, -1)  # (D, C h w)
    values, vectors = np.linalg.eigh(np.cov(weight.T))
    found = vision.filters(model, 5)
    assert found.shape == (5, 4, 4, 3)
    for i, component in enumerate(found.permute(0, 3, 1, 2).reshape(5, -1).numpy()):
        assert abs(component @ vectors[:, -1 - i]) == pytest.approx(1, abs=1e-4)
        assert component[np.abs(component).argmax()] > 0
    assert (np.diff(values[-5:]) > 1e-4).all()  # so each component is unique


def test_likeness_of_positions(seen: Any) -> None:
    _, model, theirs = seen
    table = theirs.embeddings.position_embeddings.detach().numpy()[0, -36:]
    found = vision.position_likeness(model)
    assert found is not None and found.shape == (6, 6, 6, 6)
    for a, b in ((0, 0), (7, 20), (35, 2)):
        cosine = table[a] @ table[b] / np.linalg.norm(table[a]) / np.linalg.norm(table[b])
        assert float(found[a // 6, a % 6, b // 6, b % 6]) == pytest.approx(cosine, abs=1e-5)


def test_likeness_of_positions_of_a_wide_image() -> None:
    model = af.build(described("vit", VIT, architectures=["ViTModel"], image_size=[12, 24]), seed=0)
    found = vision.position_likeness(model)
    assert found is not None and found.shape == (3, 6, 3, 6)
    assert torch.allclose(found.flatten(2).flatten(0, 1).diagonal(), torch.ones(18))


def test_how_far_heads_look(seen: Any) -> None:
    _, model, theirs = seen
    pixels = torch.randn(1, 3, 24, 24, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        far = af.look.attention_distance(af.trace(model, pixel_values=pixels))
        attentions = theirs(pixels, output_attentions=True).attentions
    assert list(far) == [f"encoder.layers.{i}.attention" for i in range(2)]
    for found, weights in zip(far.values(), attentions, strict=True):
        for head in range(2):
            given = weights[0, head].numpy()[-36:, -36:]
            total = sum(given[q, k] * ((q // 6 - k // 6) ** 2 + (q % 6 - k % 6) ** 2) ** 0.5
                        for q in range(36) for k in range(36))  # fmt: skip
            assert float(found[head]) == pytest.approx(total / given.sum(), rel=1e-4)


def test_the_map_of_attention(seen: Any) -> None:
    """The map is the attention of the first token in the last layer of transformers' model, averaged over heads."""
    _, model, theirs = seen
    pixels = torch.randn(1, 3, 24, 24, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        address, found = vision.attention_map(af.trace(model, pixel_values=pixels))
        weights = theirs(pixels, output_attentions=True).attentions[-1]
    assert address == "encoder.layers.1.attention"
    assert torch.allclose(found, weights[0, :, 0, -36:].mean(0).view(6, 6), atol=1e-5)


def test_what_is_drawn_of_a_vit(seen: Any) -> None:
    pytest.importorskip("matplotlib")
    _, model, _ = seen
    scene = Scene(model, {"pixel_values": torch.rand(1, 3, 24, 24)}, reads="image")
    figure = lectures.vit(scene)
    picture, attention, filters, alike, far = figure.axes[:5]
    pixels = scene.inputs["pixel_values"][0].permute(1, 2, 0).numpy()
    shades = (pixels - pixels.min()) / (pixels.max() - pixels.min())
    assert np.allclose(picture.images[0].get_array(), shades, atol=1e-5)
    address, share = vision.attention_map(af.trace(model, **scene.inputs))
    assert np.allclose(attention.images[1].get_array(), share) and address in attention.get_title()
    sheet = np.asarray(filters.images[0].get_array())
    assert sheet.shape == (3 * 5 - 1, 7 * 5 - 1, 3)  # 16 filters have 15 components: three rows of up to seven
    assert sheet[:4, :4].min() == 0 and sheet[:4, :4].max() == 1 and (sheet[4] == 1).all()
    drawn, wanted = np.asarray(alike.images[0].get_array()), vision.position_likeness(model)
    assert wanted is not None and drawn.shape == (41, 41)
    assert np.allclose(drawn[7 * 2 : 7 * 2 + 6, 7 * 3 : 7 * 3 + 6], wanted[2, 3])
    with torch.no_grad():
        found = af.look.attention_distance(af.trace(model, **scene.inputs))
    points = [np.asarray(dots.get_offsets()) for dots in far.collections]
    assert np.allclose(points, [[(i, value) for value in each] for i, each in enumerate(found.values())])
