"""Experiments on residuals, objectives, writing encoders, pixels, languages and reading at once, on made-up rows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from anyformer.counting import count
from anyformer.lab.trials import Row
from anyformer.models.construct import build
from anyformer.objectives.vocabulary_info import VocabularyInfo
from anyformer_course.experiments import (
    all_at_once,
    encoders_generate_badly,
    many_to_many,
    objectives,
    pixel_attention_or_convolution,
    residuals_and_norms,
)
from anyformer_course.lab.language_family import ENGLISH, LanguageFamily, ask, word_accuracy

SEEDS = range(3)


def depths(deep: float = 2.0, shallow: float = 2.0, none: float = 2.95) -> list[Row]:
    """Losses at the better rate with the last seed: of the deepest and shallowest with both, of the deepest with none.
    Token frequencies have 3.0. The worse rate diverges."""
    last = {("both", 64): deep, ("both", 2): shallow, ("none", 64): none}
    usual = {"both": 2.0, "residuals only": 2.1, "norms only": 2.5, "none": 2.95}
    rows: list[Row] = []
    for kind, depth, seed in product(usual, (2, 64), SEEDS):
        row = {"kind": kind, "depth": depth, "seed": seed}
        loss = last.get((kind, depth), usual[kind]) if seed == 2 else usual[kind]
        rows += [{**row, "lr": 1e-2, "failed": "NaN"}, {**row, "lr": 1e-3, "loss": loss, "frequencies": 3.0}]
    return rows


def tuned(span: float = 1.0, other: float = 1.2, masked: float = 1.0, right: float = 0.4) -> list[Row]:
    """Losses after span corruption, deshuffling and masked tokens; seeds differ by 0.01."""
    own = {"span corruption": span, "masked tokens": masked, "deshuffling": other}
    return [
        {"objective": name, "seed": seed, "loss": own.get(name, 1.2) + 0.01 * seed, "right": right}
        for name, seed in product(objectives.OBJECTIVES, SEEDS)
    ]


def written(one: float = 1.5, every: float = 1.8, known: float = 0.6, filled: float = 0.8) -> list[Row]:
    """The judge's losses of the masked model's two ways with the last seed, its known 4-grams, its single masks."""
    losses = {"real": 1.0, "gpt": 1.1, "one mask": 1.5, "all masks": 1.8}
    last = {"one mask": one, "all masks": every}
    rows: list[Row] = []
    for seed in SEEDS:
        for name, loss in losses.items():
            judge = last.get(name, loss) if seed == 2 else loss
            share = known if name in last and seed == 2 else 0.6 if name in last else 0.9
            rows.append({"writer": name, "seed": seed, "judge": judge, "known": share})
        rows.append({"seed": seed, "filled": filled if seed == 2 else 0.8, "next byte": 1.0})
    return rows


def pixels(gain: float = 0.0, times: float = 2.0, operations: float = 1.05, right: float = 0.9) -> list[Row]:
    """Gain of the local relation, its time and its operations as multiples of the convolution's."""
    return [
        {"kind": kind, "seed": seed, "accuracy": right + (gain if kind == "local relation" else 0.0), "parameters": 9,
         "labels": 10, "seconds": {"convolution": 1.0, "local relation": times}.get(kind, 2.0),
         "operations": operations if kind == "local relation" else 1.0}
        for kind, seed in product(pixel_attention_or_convolution.KINDS, SEEDS)
    ]  # fmt: skip


def translated(
    many: float = 0.9, own: float = 0.9, direct: float = 0.1, pivot: float = 0.8, centric: float = 0.91
) -> list[Row]:
    """Right words with the last seed, if English is complete."""
    cases = {("many-to-many", "others", "direct"): (0.9, many), ("many-to-many", "with English", "direct"): (0.9, own),
             ("English-centric", "others", "direct"): (0.1, direct),
             ("English-centric", "others", "through English"): (0.8, pivot),
             ("English-centric", "with English", "direct"): (0.91, centric)}  # fmt: skip
    return [
        {"english": english, "kind": kind, "directions": group, "way": way, "seed": seed,
         "words": last if (english, seed) == ("complete", 2) else usual, "sentences": 0.5}
        for english in many_to_many.ENGLISHES for (kind, group, way), (usual, last) in cases.items() for seed in SEEDS
    ]  # fmt: skip


def timed(one: float = 20.0, lstm: float = 8.0, difference: float = 1e-5, gpu: bool = True) -> list[Row]:
    """Times with the last seed as multiples of all at once: one by one at 16 tokens, the LSTM at 32."""
    rows: list[Row] = []
    for seed, tokens in product(SEEDS, (8, 16, 32)):
        ratios = {"all at once": 1.0, "one by one": one if seed == 2 else 20.0, "lstm": lstm if seed == 2 else 8.0}
        rows += [
            {"kind": kind, "seed": seed, "tokens": tokens, "seconds": ratio * tokens, "parameters": 9, "gpu": gpu}
            for kind, ratio in ratios.items() if kind != "one by one" or tokens < 32
        ]  # fmt: skip
        rows[-1]["difference"] = difference
    return rows


@pytest.mark.parametrize(("experiment", "rows", "false"), [
    (residuals_and_norms, depths, [{"deep": 2.91}, {"shallow": 1.6}, {"none": 2.89}, {"deep": 2.31}]),
    (objectives, tuned, [{"span": 1.21}, {"other": 0.99}, {"masked": 0.98}]),
    (encoders_generate_badly, written, [{"one": 1.39}, {"every": 1.39}, {"known": 0.95}]),
    (pixel_attention_or_convolution, pixels, [{"gain": 0.011}, {"times": 1.4}, {"operations": 1.11}]),
    (many_to_many, translated, [{"many": 0.79}, {"own": 0.88}, {"direct": 0.91}, {"pivot": 0.91}]),
    (all_at_once, timed, [{"one": 9.0}, {"lstm": 2.9}, {"difference": 2e-3}]),
], ids=lambda value: getattr(value, "__name__", "").rpartition(".")[2])  # fmt: skip
def test_a_false_claim_fails(experiment: Any, rows: Callable[..., list[Row]], false: list[dict[str, Any]]) -> None:
    usual = experiment.claim(rows())
    assert usual.holds and usual.learned
    for change in false:
        assert not experiment.claim(rows(**change)).holds, change
    for axis in experiment.plot(rows()).axes:
        assert axis.lines and all(len(line.get_xdata()) for line in axis.lines)
        assert axis.get_title() or axis.get_ylabel()


@pytest.mark.parametrize(("experiment", "rows"), [
    (objectives, tuned(right=0.09)), (encoders_generate_badly, written(filled=1.1)),
    (pixel_attention_or_convolution, pixels(right=0.54)), (many_to_many, translated(centric=0.79)),
], ids=["objectives", "encoders", "pixels", "languages"])  # fmt: skip
def test_a_form_that_learns_too_little_is_not_judged(experiment: Any, rows: list[Row]) -> None:
    assert not experiment.claim(rows).learned


def test_an_lstm_is_not_judged_on_a_cpu() -> None:
    assert all_at_once.claim(timed(lstm=0.5, gpu=False)).holds


# -- models -----------------------------------------------------------------------------------------------------------


def test_layers_without_residual_connection_pass_on_only_their_branch() -> None:
    """With no residual and no norm a feed-forward layer of zero weights returns zeros; with a residual, its input."""
    ids = torch.ones(1, 4, dtype=torch.long)
    for kind, zero in (("none", True), ("residuals only", False)):
        model = build(residuals_and_norms.model_spec(kind, 16, 1), seed=0).eval()
        for p in model.decoder.parameters():
            torch.nn.init.zeros_(p)
        assert bool((model(input_ids=ids).logits == 0).all()) is zero
    names = [name for name, _ in build(residuals_and_norms.model_spec("none", 16, 1), seed=0).named_parameters()]
    assert not any("norm" in name for name in names)


def test_frequency_loss() -> None:
    assert residuals_and_norms.frequency_loss(torch.tensor([[0, 1], [2, 3]])) == pytest.approx(np.log(4))
    assert residuals_and_norms.frequency_loss(torch.tensor([[5, 5, 5]])) == pytest.approx(0)


def test_all_positions_at_once_give_the_loss_and_gradients_of_one_by_one() -> None:
    model = build(all_at_once.model_spec(False, 16, 1, 8), seed=0)
    ids = torch.randint(250, (2, 6), generator=torch.Generator().manual_seed(0))
    ours, theirs = all_at_once.learn_at_once(model, ids), all_at_once.learn_one_by_one(model, ids)
    assert all_at_once.difference(ours, theirs) < 1e-4
    assert all_at_once.difference((1.1 * ours[0], ours[1]), theirs) == pytest.approx(0.1, abs=1e-3)
    sizes = [count(all_at_once.model_spec(recurrent, 64, 2, 8)).parameters for recurrent in (False, True)]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.1)


def test_networks_take_as_many_operations() -> None:
    sizes = 16, 1, 32, 3, 8
    plain, *others = (pixel_attention_or_convolution.matched_network(kind, *sizes)
                      for kind in pixel_attention_or_convolution.KINDS)  # fmt: skip
    for other in others:
        assert count(other).flops(1) == pytest.approx(count(plain).flops(1), rel=0.1)
        assert count(other).parameters < count(plain).parameters  # no kernels
    images = torch.zeros(2, 3, 32, 32)
    assert {build(spec, seed=0).eval()(images).logits.shape for spec in (plain, *others)} == {(2, 8)}


def test_masked_models_write_at_the_first_mask() -> None:
    """A model that counts up, at the first mask or else at the last token, writes 3, 4, 5 after 1, 2 in every way."""
    mask, prompt, draw = 9, torch.tensor([[1, 2]]), torch.Generator().manual_seed(0)
    seen: list[list[int]] = []

    def scores(ids: torch.Tensor) -> torch.Tensor:
        row = ids[0].tolist()
        seen.append(row)
        at = row.index(mask) if mask in row else len(row) - 1
        predictions = torch.zeros_like(ids)
        predictions[0, at] = max(token for token in row if token != mask) + 1
        return 1e4 * torch.nn.functional.one_hot(predictions, 10).float()

    for options, first in (((), [1, 2]), ((mask,), [1, 2, 9]), ((mask, True), [1, 2, 9, 9, 9])):
        seen.clear()
        assert encoders_generate_badly.write_on(scores, prompt, 3, draw, *options).tolist() == [[1, 2, 3, 4, 5]]
        assert seen[0] == first
    known = encoders_generate_badly.grams(torch.tensor([[1, 2, 3, 4, 5]]))
    assert known == {(1, 2, 3, 4), (2, 3, 4, 5)}
    assert encoders_generate_badly.known_share(torch.tensor([[0, 1, 2, 3, 4]]), known) == 0.5


def test_writers_have_the_same_size() -> None:
    gpt, masked = (encoders_generate_badly.model_spec(16, 2, masked) for masked in (False, True))
    assert count(gpt).parameters == count(masked).parameters
    ids = torch.arange(6)[None]
    for spec, changes in ((gpt, False), (masked, True)):
        model = build(spec, seed=0).eval()
        first = [model(input_ids=each).logits[0, 0] for each in (ids, ids.flip(1).roll(1))]
        assert first[0].allclose(first[1]) is not changes  # the first token sees the last ones, or not


# -- texts ------------------------------------------------------------------------------------------------------------


def test_noises_of_objectives() -> None:
    known, draw = VocabularyInfo(size=50, mask=49, end=48), np.random.default_rng(0)
    ids = np.arange(20)
    shuffled = objectives.ShuffledTokens().damage(ids, draw, known)
    assert sorted(shuffled) == list(ids) and (shuffled != ids).sum() > 10 and ids[0] == 0
    nothing = objectives.OBJECTIVES["language modelling"].replace(known=known).vary({"input_ids": ids}, draw)
    assert nothing["input_ids"].tolist() == [48] and nothing["labels"].tolist() == [*range(20), 48]
    cuts = set()
    for _ in range(50):
        record = objectives.PrefixText(known=known).vary({"input_ids": ids}, draw)
        read, rest = record["input_ids"].tolist(), record["labels"].tolist()
        assert read[-1] == rest[-1] == 48 and read[:-1] + rest[:-1] == list(ids) and len(read) > 1 < len(rest)
        cuts.add(len(read))
    assert len(cuts) > 10


def test_languages_of_a_family() -> None:
    """Languages share no word, a translation has the same meaning, and English merges the concepts that it must."""
    family, draw = LanguageFamily(languages=6, concepts=20), np.random.default_rng(0)
    assert len({word for words in family.words for word in words}) == 120
    meaning = [3, 1, 4, 1, 5]
    where = [{word: i for i, word in enumerate(words)} for words in family.words]
    for language in range(6):
        meanings = [where[language][word] for word in family.sentence(meaning, language).split()]
        assert sorted(meanings) == sorted(meaning)
    assert len({tuple(where[n][w] for w in family.sentence([0, 1, 2, 3, 4, 5, 6], n).split()) for n in range(6)}) == 6
    with_english, others = family.directions(True), family.directions(False)
    assert (len(with_english), len(others)) == (10, 20) and not any(ENGLISH in pair for pair in others)
    rows = family.examples(others, 200, 0)
    assert all(row["source"].split()[0] in {f"<{n}>" for n in range(1, 6)} for row in rows)
    poor = LanguageFamily(languages=3, concepts=20, merged=2)
    assert poor.sentence([0, 2, 4], 0).split() == poor.sentence([1, 3, 4], 0).split()
    assert poor.sentence([4], 0) != poor.sentence([5], 0) and poor.sentence([0], 1) != poor.sentence([1], 1)
    assert 4 <= len(family.draw_meaning(draw)) <= 8 and ask("a b", 2) == "<2> a b"


def test_word_accuracy() -> None:
    assert word_accuracy("a b c", "a x c") == pytest.approx(2 / 3)
    assert word_accuracy("a b c d", "a b") == 0.5 and word_accuracy("", "a") == 0
