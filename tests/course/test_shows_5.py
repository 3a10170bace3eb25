"""Numbers of lecture 5's worked examples, compared with torch or with exact results."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import anyformer as af
from anyformer_course import show
from anyformer_course.shown import Shown
from anyformer_course.shows import count
from anyformer_course.shows.diffusion import denoise, noisy
from anyformer_course.shows.elo import chance, fit
from anyformer_course.shows.languages import FAMILIES

pytestmark = [pytest.mark.xdist_group("course-5"), pytest.mark.usefixtures("shared_show")]


def cell(shown: Shown, table: int, row: str | int, column: str) -> float:
    found = shown.tables[table]
    return next(each for each in found.rows if each[0] == row)[found.columns.index(column)]


@pytest.mark.parametrize(("text", "frames"), [("see", 4), ("see", 6), ("ab", 5)])
def test_paths_add_up_to_the_ctc_loss(text: str, frames: int) -> None:
    shown = show("ctc", text, frames=frames)
    assert cell(shown, 2, "sum of the paths", "number") == pytest.approx(
        cell(shown, 2, "exp(-CTC loss) of torch", "number"), rel=1e-4
    )


def test_equal_letters_need_a_frame_between_them() -> None:
    with pytest.raises(ValueError, match="at least 4 frames"):
        show("ctc", "see", frames=3)


def test_directions_of_a_hundred_languages() -> None:
    assert len({code for codes in FAMILIES.values() for code in codes.split()}) == 100
    shown = show("languages")
    assert [cell(shown, 0, way, "directions") for way in ("english", "all")] == [2 * 99, 100 * 99]


def test_language_layers_add_one_feedforward_layer_per_language() -> None:
    shown = show("language-layers", 1, 10)
    one, ten = (cell(shown, 0, number, "parameters") for number in (1, 10))
    assert ten - one == 9 * (2 * 1024 * 4096 + 1024 + 4096)
    assert cell(shown, 0, 10, "used by a token") == one


def test_an_induction_head_needs_two_layers() -> None:
    text = "a b c a b"
    answers = [next(row for row in show("induction", text, layers=n).tables[0].rows if row[0] == 4) for n in (1, 2)]
    assert [row[4] for row in answers] == ["b", "c"]


def test_one_drawing_is_denoised_exactly() -> None:
    picture, noise = torch.rand(2, 1, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    weights, mean = denoise(noisy(picture[0], noise[0], 0.3), picture, 0.3)
    assert weights.tolist() == [1.0]
    assert torch.equal(mean, picture[0])


def test_ratings_of_expected_votes() -> None:
    """If every pair votes exactly as its ratings say, the fit returns the ratings."""
    ratings = torch.tensor([100.0, 0.0, -100.0])
    wins = torch.zeros(3, 3)
    for i, j in itertools.permutations(range(3), 2):
        wins[i, j] = 1e4 * chance(ratings[i] - ratings[j])
    assert fit(wins).tolist() == pytest.approx(ratings.tolist(), abs=0.01)


def test_whole_answers_are_a_power_of_single_tokens() -> None:
    shown = show("exact", tokens=4)
    for _, loss, token, whole, _ in shown.tables[0].rows:
        assert token == pytest.approx(math.exp(-loss))
        assert whole == pytest.approx(token**4)


def test_the_walk_ends_at_the_prediction_of_the_model() -> None:
    shown = show("walk", "once upon a time")
    assert shown.tables[1].rows[-1][3:] == list(shown.tables[2].rows[0])[::2]


def test_only_positions_from_the_picture_on_can_see_it() -> None:
    rows = show("multimodal", "what is <image> here").tables[0].rows
    assert [row[5] > 1e-6 for row in rows] == [False, False, *[True] * 5]


def test_roles_of_parameters() -> None:
    """LR-Net attends over pixels; convolutions between stages are convolutions too."""
    resnet, lr_net = (count.by_role(af.count(af.spec(name))) for name in ("resnet-50", "lr-net-50"))
    assert resnet["attention"] == 0 < lr_net["attention"]
    assert lr_net["convolution or recurrence"] < resnet["convolution or recurrence"]
    assert resnet["norms and the rest"] < 0.01 * sum(resnet.values())
