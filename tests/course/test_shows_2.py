"""Worked examples of lecture 2: numbers that follow from a formula, and one-line errors."""

import pytest
import torch

import anyformer_course.shows.mask  # noqa: F401
from anyformer_course import show, shown

pytestmark = [pytest.mark.xdist_group("course-2"), pytest.mark.usefixtures("shared_show")]


def rows(shown, table=0):
    return [list(row) for row in shown.tables[table].rows]


def test_a_causal_mask_shows_half_of_the_pairs_and_keeps_weights_normalized():
    shown = show("mask", "a b c d e")
    assert sum(sum(row[1:]) for row in rows(shown)) == 5 * 6 // 2
    weights = rows(shown, 2)
    assert all(sum(row[1:]) == pytest.approx(1, abs=1e-6) for row in weights)
    assert all(weight == 0 for i, row in enumerate(weights) for weight in row[i + 2 :])


def test_examples_use_one_thread(monkeypatch):
    threads: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr("anyformer_course.shown.check_ranges", lambda *_: None)
        patch.setattr("anyformer_course.shows.mask.example", lambda: threads.append(torch.get_num_threads()) or 1 / 0)
        before = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            with pytest.raises(ZeroDivisionError):
                shown.show("mask")
            assert threads == [1] and torch.get_num_threads() == 2
        finally:
            torch.set_num_threads(before)


def test_equal_words_get_equal_results_only_without_positions():
    (_, same, *_), (_, different, *_) = rows(show("dogs", "a dog and a dog"))
    assert same < 1e-6 < 0.01 < different


def test_training_takes_three_products_per_linear_layer_and_four_with_recomputation():
    assert [row[3] for row in rows(show("matmul", "24 40", tokens=3))] == [1, 3, 4]


def test_pairs_of_swin_and_of_patches():
    assert rows(show("windows"))[0][4] == 64 * 49**2
    assert [row[1] for row in rows(show("patches"))] == [224 * 224, 14 * 14]


def test_one_pass_gives_the_probabilities_of_word_by_word():
    factors = rows(show("chain", "a b c", steps=2))
    assert factors[-1][2] == pytest.approx(factors[0][1] * factors[1][1] * factors[2][1])


def test_a_prompt_is_read_in_one_pass():
    (*_, mixed) = rows(show("chain", "a b c d", steps=0), 1)
    assert "2 words" in mixed[0] and mixed[1:] == [2, 3 + 4], "the pass over the prompt gives the third word"


def test_a_switch_router_drops_words_beyond_the_capacity_and_learns_only_through_p():
    shown = show("switch", capacity=0.5)
    assert all(gets == min(wanted, room) for _, wanted, gets, room in rows(shown, 1))
    (_, with_p), (_, without) = rows(shown, 2)
    assert with_p > 0 == without


@pytest.mark.parametrize("call", [
    ("dogs", "no word twice"), ("mask", "a b", {"mask": "causl"}), ("heads", "a b", {"heads": 3}),
    ("norm", "one text"),
    ("scale", "four"), ("patches", "", {"patch": 0}), ("windows", "gpt2"), ("spectrogram", "missing.wav"),
    ("decisions", "much"), ("clip", "a dog / a cat"), ("cost", "fast"), ("count", "gpt22"), ("draw", "a b c"),
    ("scaling", "lots"), ("matmul", "5"), ("switch", "a b", {"experts": 0}), ("gail", 9), ("chain", ""),
])  # fmt: skip
def test_mistakes_are_one_line(call):
    name, text, *options = call
    with pytest.raises(ValueError) as error:
        show(name, text, **(options[0] if options else {}))
    assert "\n" not in str(error.value)


def test_the_mlp_reads_each_word_by_itself_and_attention_does_not():
    changes = [row[2] for row in rows(show("pointwise", "a b c d", change=1))]
    assert changes[1] > 0.1 and changes[0] == changes[2] == changes[3] == 0
    assert min(row[2] for row in rows(show("pointwise", "a b c d", change=1, mixing=True))) > 1e-3
    assert all(error < 1e-5 for _, error in rows(show("pointwise"), 3))


def test_a_word_gets_different_vectors_in_different_texts():
    cosines = [row[2] for row in rows(show("contextual"))]
    assert cosines[0] == pytest.approx(1) and cosines[-1] < 0.9


def test_a_translation_is_probable_only_for_its_source():
    right, wrong = (
        rows(show("chain", "le chien a dormi", source=source, steps=40))[-1][2]
        for source in ("the dog slept", "the detective slept")
    )
    assert right > 0.5 > 0.05 > wrong


def test_every_token_has_an_index_and_equal_tokens_have_equal_vectors():
    vectors = rows(show("tokens", "the cat the", merges=10), 1)
    tokens = [row[0] for row in vectors]
    assert len({tuple(row[1:]) for row in vectors}) == len({*tokens}) and "".join(tokens) == "the_cat_the"


def test_the_lowest_loss_of_a_budget_is_in_the_picture_and_its_size_grows():
    shown = show("scaling", "1e18 1e22")
    grid = rows(shown)
    sizes = (1e7, 1e8, 1e9, 1e10, 1e11, 1e12)
    for row in grid:
        nearest = min(range(6), key=lambda i: abs(sizes[i] / row[1] - 1))
        assert row[2 + nearest] <= min(row[2:]) + 0.15
    assert grid[1][1] > 100 * grid[0][1]


def test_positions_that_depend_on_the_distance_keep_the_score_of_moved_words():
    spread = dict(rows(show("moved-text", "we know"), 2))
    assert all(spread[scheme] < 1e-5 for scheme in ("none", "T5", "ALiBi", "rotary"))
    assert min(spread["learned"], spread["sinusoidal"]) > 1
    falls = [row[5] for row in rows(show("moved-text", "we know"), 1)]
    assert falls == sorted(falls, reverse=True) and falls[0] - falls[1] == pytest.approx(0.5)
