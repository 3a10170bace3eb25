"""The pictures of the lectures show what the Parts compute."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from anyformer import cli
from anyformer.look.figures import new
from anyformer.look.views import Scene
from anyformer_course.pictures import lectures
from anyformer_course.pictures.points import name_points
from anyformer_course.shown import show
from planted import planted

Text = pytest.importorskip("matplotlib.text").Text


def images(figure: object) -> dict[str, np.ndarray]:
    return {axis.get_title(): np.asarray(axis.images[0].get_array()) for axis in figure.axes if axis.images}  # type: ignore[attr-defined]


def test_masks() -> None:
    found = images(lectures.masks(16))
    assert len(found) == 12 and found["full"].all()
    assert np.array_equal(found["causal"], np.tril(np.ones((16, 16))))
    assert found["blocks"].sum() == 2 * 64 and found["window"][8].sum() == 7


def test_positions_and_experts() -> None:
    found = images(lectures.positions(24, 32))
    assert len(found) == 6
    turned = found["rotary: score of equal vectors"]
    assert np.allclose(np.diag(turned, 3), turned[0, 3], atol=1e-4) and turned.max() - turned[0, 0] < 1e-4
    sent = images(lectures.experts(tokens=40, number=8, capacity=3))
    (went,) = (value for title, value in sent.items() if "dropped" in title)
    assert (went.sum(0) == 1).all() and went[:-1].sum(1).max() <= 3 and went[-1].sum() > 0


def test_a_walk() -> None:
    scene = Scene(planted(), {"input_ids": torch.tensor([[4, 7, 2, 9, 1, 4]])}, words=lambda i: f"$w{i}")
    figure = lectures.walk(scene)
    figure.canvas.draw()
    named = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert named[0] == r"0: \$w4 4" and named[3] == r"3: \$w9 9" and len(named) == 6
    assert figure.axes[3].get_yticklabels()[-1].get_text() == r"\$w7"  # the induction circuit's answer


def test_by_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["look", "--list"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()] == [*lectures.PICTURES]
    for arguments, line in (
        (["--picture", "mask"], "no picture 'mask'; did you mean 'masks'"),
        (["--picture", "masks", "gpt2"], "needs no model"),
        (["--picture", "masks", "-o", "masks.txt"], ".png, .svg or .pdf"),
        (["--picture", "walk"], "give MODEL and INPUT"),
    ):
        assert cli.main(["look", *arguments]) == 2
        assert line in capsys.readouterr().err


def test_alignment() -> None:
    """The maps are the weights of cross-attention; a row is labelled with the token that it predicts."""
    from anyformer.look.inputs import scene
    from anyformer_course import models

    figure = lectures.PICTURES["alignment"].draw(scene(str(models.folder("dates")), "14 July 1789", dtype="float32"))
    assert len(figure.axes) == 2
    for axis, found in zip(figure.axes, images(figure).values()):
        assert found.shape == (11, 13) and np.allclose(found.sum(-1), 1, atol=1e-5)
        assert [label.get_text() for label in axis.get_yticklabels()] == [*"1789-07-14", "end"]
    assert found[:4].argmax(-1).tolist() == [8, 9, 10, 11]  # the digits of the year, one by one
    with pytest.raises(ValueError, match="an encoder and a decoder"):
        lectures.PICTURES["alignment"].draw(Scene(planted(), {"input_ids": torch.tensor([[4, 7, 2]])}, words=str))


def test_the_taxonomy_names_parts_that_exist() -> None:
    import anyformer as af
    from anyformer_course.pictures.taxonomy import TAXONOMY

    parts = [part for variants in TAXONOMY.values() for part in variants.values()]
    assert len(parts) == 25 and all(isinstance(getattr(af.parts, part), type) for part in parts)
    shown = [text.get_text() for text in lectures.PICTURES["taxonomy"].draw().axes[0].texts]
    assert "Linformer 2020\nLinformerAttention" in shown and len(shown) == len(parts) + len(TAXONOMY)


def test_no_text_is_smaller_than_8_points() -> None:
    shown = show("attention", "i like dogs")
    for figure, smallest in ((shown.draw(), 6), (shown.figure(), 8)):
        assert min(text.get_fontsize() for text in figure.findobj(Text) if text.get_text()) == smallest


def test_columns_of_channels_are_not_named_after_words() -> None:
    """A map of six words and six channels is square as well."""
    axis = show("norm", "i like dogs / and cats too").draw().axes[0]
    assert axis.get_yticklabels()[1].get_text() == "like"
    assert not {"i", "like", "dogs"} & {label.get_text() for label in axis.get_xticklabels()}


def test_names_of_points_do_not_overlap() -> None:
    figure, axes = new(1, 1, 5, 4)
    axis, points = axes[0, 0], [(f"model {i}", 1 + 0.01 * (i % 4), 1.0 + i // 4) for i in range(16)]
    axis.plot([x for _, x, _ in points], [y for _, _, y in points], "o")
    name_points(axis, points)
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in axis.texts]
    assert len(boxes) >= 12
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    assert all(axis.get_window_extent().x0 <= box.x0 and box.x1 <= axis.get_window_extent().x1 for box in boxes)
