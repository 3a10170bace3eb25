"""Worked examples of lecture 2: numbers that follow from a formula, and one-line errors."""

import pytest

from anyformer_course import show


def rows(shown, table=0):
    return [list(row) for row in shown.tables[table].rows]


def test_a_causal_mask_shows_half_of_the_pairs_and_keeps_weights_normalized():
    shown = show("mask", "a b c d e")
    assert sum(sum(row[1:]) for row in rows(shown)) == 5 * 6 // 2
    weights = rows(shown, 2)
    assert all(sum(row[1:]) == pytest.approx(1, abs=1e-6) for row in weights)
    assert all(weight == 0 for i, row in enumerate(weights) for weight in row[i + 2 :])


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


def test_a_switch_router_drops_words_beyond_the_capacity_and_learns_only_through_p():
    shown = show("switch", capacity=0.5)
    assert all(gets == min(wanted, room) for _, wanted, gets, room in rows(shown, 1))
    (_, with_p), (_, without) = rows(shown, 2)
    assert with_p > 0 == without


@pytest.mark.parametrize(
    "call",
    [
        ("dogs", "no word twice"), ("mask", "a b", {"mask": "causl"}), ("heads", "a b", {"heads": 3}),
        ("norm", "one text"),
        ("scale", "four"), ("patches", "", {"patch": 0}), ("windows", "gpt2"), ("spectrogram", "missing.wav"),
        ("decisions", "much"), ("clip", "a dog / a cat"), ("cost", "fast"), ("count", "gpt22"), ("draw", "a b c"),
        ("scaling", "lots"), ("matmul", "5"), ("switch", "a b", {"experts": 0}), ("gail", 9), ("chain", ""),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(call):
    name, text, *options = call
    with pytest.raises(ValueError) as error:
        show(name, text, **(options[0] if options else {}))
    assert "\n" not in str(error.value)
