"""Claims of experiments on made-up rows: a claim holds if it is true, and does not hold if one part of it is false."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from anyformer import families
from anyformer.counting import count
from anyformer.evaluate.regression import curves as errors
from anyformer.evaluate.regression import gaussian_process, smoother
from anyformer.lab import scale
from anyformer.lab.scale import Law, Point
from anyformer.lab.trials import Place, Row
from anyformer.models.construct import build
from anyformer.objectives.regress import Regress
from anyformer.objectives.sentences import FOLLOWS
from anyformer.tasks.each.play import answer
from anyformer_course.data import drawings
from anyformer_course.experiments import (
    batch_or_layer_norm,
    batch_size,
    electra,
    few_shot,
    frozen_or_full_fine_tuning,
    images_by_data,
    larger_learn_from_fewer,
    low_rank,
    masking_rate,
    neighbours,
    next_sentence,
    return_asked_and_reached,
    scaling_laws,
    sharing,
    speech_from_few_labels,
    switch_scaling,
    what_tuning_changes,
    windows_and_pixels,
    words_and_pictures,
)
from anyformer_course.lab import drawn_scenes
from anyformer_course.lab.english import documents
from anyformer_course.lab.runs import reader, texts
from anyformer_course.lab.tuning import best_rates

SEEDS = range(3)


def switch(last: float = 1.5, cost: int = 101, middle: float = 1.8, guessing: float = 2.3) -> list[Row]:
    losses = {1: 2.0, 4: middle, 16: 1.6}
    return [
        {"experts": n, "seed": seed, "step": 1, "loss": last if (n, seed) == (16, 2) else loss, "parameters": 9 * n,
         "flops": cost if n > 1 else 100, "busiest": 0.3, "dropped": 0.1, "guessing": guessing}
        for n, loss in losses.items() for seed in SEEDS
    ]  # fmt: skip


def looked_up(line: float = 0.9, bayes: float = 0.01, smooth: float = 0.5) -> list[Row]:
    """Parameters: distances of ridge from the smooth model, of Bayes, and of the smoother from the linear model."""
    far = {"linear": {"neighbours": 0.5, "smoother": smooth, "ridge": bayes, "bayes": bayes},
           "smooth": {"neighbours": 0.2, "smoother": 0.3, "ridge": line, "bayes": bayes}}  # fmt: skip
    return [
        {"functions": functions, "name": name, "seed": seed, "pairs": pairs, "error": 0.1,
         **({} if name == "model" else {"distance": far[functions][name] if pairs > 1 else 9.0})}
        for functions in far for name in ("model", *far[functions]) for seed in SEEDS for pairs in range(4)
    ]  # fmt: skip


def shared(
    size: int = 40,
    loss: float = 1.2,
    dropped: float = 1.4,
    steps: tuple[float, ...] = (0.3, 0.3, 0.2),
    guessing: float = 2.0,
) -> list[Row]:
    found: list[Row] = []
    for (kind, dropout), seed in product(sharing.SETTINGS, SEEDS):
        own, last = kind == "own", seed == 2
        row = {"kind": kind, "dropout": dropout, "seed": seed, "parameters": 100 if own else size}
        value = 1.0 if own else (dropped if last else 1.4) if dropout else (loss if last else 1.2)
        found.append({**row, "loss": value, "guessing": guessing})
        distances = (0.5, 0.2, 0.5) if own else steps
        found += [{**row, "layer": i, "distance": each, "angle": 20.0} for i, each in enumerate(distances)]
    return found


def sizes(falls: float = 0.5, start: float = 4.0, guessing: float = 5.0) -> list[Row]:
    """Losses of three sizes by step; cost is proportional to size. `falls`: per step, largest size, last seed."""
    speed = {1e3: 0.2, 4e3: 0.35, 16e3: 0.5}
    return [
        {"parameters": N, "seed": seed, "step": step, "steps": 8, "tokens": 8000, "flops": 6 * N * 8000,
         "guessing": guessing,
         "loss": (start if N > 1e3 else 4.0) - (falls if (N, seed) == (16e3, 2) else fall) * step**0.5}
        for N, fall in speed.items() for seed in SEEDS for step in range(1, 9)
    ]  # fmt: skip


def images(cheaper: float = 0.9, **powers: float) -> list[Row]:
    """Costs as powers of the number of patches; `cheaper` is the Swin's share of the ViT's operations at first."""
    own = {"vit_flops": 2.0, "swin_flops": 1.0, "vit_bytes": 1.0, "swin_bytes": 1.0, "vit_bytes with scores": 2.0,
           "swin_bytes with scores": 1.0, "vit_seconds": 2.0, "swin_seconds": 1.0} | powers  # fmt: skip
    return [
        {"model": name, "side": side, "tokens": side**2,
         **{field: (cheaper if (name, field) == ("swin", "flops") else 1.0) * (side / 8) ** (2 * own[f"{name}_{field}"])
            for field in (*windows_and_pixels.COSTS, "seconds")}}
        for name in windows_and_pixels.MODELS for side in (8, 16, 32)
    ]  # fmt: skip


def played(slope: float = 0.9, short: float = 0.0, cloned: float = 100.0) -> list[Row]:
    """Parameters: slopes of the reached by the requested return (long and short window), and the clone's return."""
    slopes = {
        **{(seed, 20): 0.9 for seed in SEEDS},
        **{(seed, 1): 0.0 for seed in SEEDS},
        (2, 20): slope,
        (2, 1): short,
    }
    return [
        {"kind": kind, "seed": seed, "window": window, "asked": asked,
         "reached": cloned if kind == "cloned" else 100 + slopes[seed, window] * (asked - 100)}
        for kind, seed, window in product(return_asked_and_reached.KINDS, SEEDS, return_asked_and_reached.WINDOWS)
        for asked in return_asked_and_reached.ASKED
    ]  # fmt: skip


def named(last: float = 0.6, seen: float = 0.95) -> list[Row]:
    """Parameter: share of unseen pairs named correctly with the last seed."""
    return [{"pairs": part, "seed": seed, "name": last if (part, seed) == ("unseen", 2) else seen, "colour": 0.9,
             "shape": 0.9} for part, seed in product(words_and_pictures.PARTS, SEEDS)]  # fmt: skip


def by_data(few: float = 0.3, many: float = 0.95) -> list[Row]:
    """Parameters: accuracies of the ViT with the last seed, with the fewest and with the most images."""
    right = {"resnet": {100: 0.5, 400: 0.8, 1600: 1.0}, "vit": {100: 0.3, 400: 0.6, 1600: 0.95}}
    last = {("vit", 100): few, ("vit", 1600): many}
    return [
        {"kind": kind, "images": size, "seed": seed, "best step": 9, "on training images": 1.0, "parameters": 9,
         "flops": 9, "accuracy": last.get((kind, size), each) if seed == 2 else each}
        for kind, own in right.items() for size, each in own.items() for seed in SEEDS
    ]  # fmt: skip


def heard(last: float = 0.5, most: float = 1.0) -> list[Row]:
    """Parameter: share transcribed by the pretrained model with the last seed and the fewest labels."""
    right = {("pretrained", 50): 0.6, ("scratch", 50): 0.4, ("pretrained", 200): 0.9, ("scratch", 200): 0.95}
    return [{"kind": kind, "labels": labels, "seed": seed,
             "right": min(last if (kind, labels, seed) == ("pretrained", 50, 2) else each, most)}
            for (kind, labels), each in right.items() for seed in SEEDS]  # fmt: skip


def shown(large: float = 0.9, small: float = 0.3) -> list[Row]:
    """Parameters: accuracy of the largest and of the smallest model with many shots; without shots it is 0.2."""
    right = {8: small, 24: 0.4, 64: large}
    return [
        {"width": width, "parameters": width**2, "letters": 4, "shots": n,
         "accuracy": each if n > 7 else 0.2 + 0.01 * n}
        for width, each in right.items() for n in range(few_shot.SHOTS)
    ]  # fmt: skip


def ranked(quarter: float = 1.009, shuffled: float = 1.03, without: float = 1.3) -> list[Row]:
    """Parameters: losses at a quarter of the rank, plain and shuffled, and without attention, with the last seed."""
    losses = {"attention": {0.0: 1.4, 0.25: 1.0}, "shuffled": {0.0: 1.4, 0.25: 1.1}}
    last = {("attention", 0.0): without, ("attention", 0.25): quarter, ("shuffled", 0.25): shuffled}
    ranks = [{"kind": kind, "seed": seed, "rank": rank,
              "loss": last.get((kind, rank), own.get(rank, 1.0)) if seed == 2 else own.get(rank, 1.0)}
             for kind, own in losses.items() for seed in SEEDS for rank in low_rank.SHARES]  # fmt: skip
    return ranks + [{"kind": kind, "seed": seed, "share": share, "sum": share**0.5}
                    for kind in low_rank.KINDS for seed in SEEDS for share in (0.25, 1.0)]  # fmt: skip


def hidden(least: float = 2.0, most: float = 2.0, worst: float = 1.5, pieces: float = 1.0) -> list[Row]:
    """Parameters: losses at the lowest and the highest masking rate, the worst rate between, and dynamic in pieces."""
    first, *middle, last = masking_rate.RATES
    losses = {first: least, **dict.fromkeys(middle, 1.0), middle[-1]: worst, last: most}
    rows = [{"masking": "dynamic", "rate": rate, "loss": loss} for rate, loss in losses.items()]
    return [*rows, {"masking": "static", "rate": 0.15, "loss": 1.2},
            {"masking": "dynamic pieces", "rate": 0.15, "loss": pieces}]  # fmt: skip


def followed(full: float = 0.7, sentences: float = 0.6, control: float = 0.3) -> list[Row]:
    """Parameters: scores of full sentences and of sentence pairs with the last seed, and score without pretraining."""
    usual = dict.fromkeys(next_sentence.FORMATS, 0.7) | {"sentence pairs with NSP": 0.6, "no pretraining": control}
    last = usual | {"sentence pairs with NSP": sentences, "full sentences": full}
    return [
        {"format": name, "seed": seed, "tuning": {"wnut17": 9, "sst2": 9}, "loss": 1.0,
         **dict.fromkeys(("wnut17", "sst2"), (last if seed == 2 else usual)[name])}
        for name in next_sentence.FORMATS for seed in SEEDS
    ]  # fmt: skip


def replaced(last: float = 0.9, control: float = 0.3) -> list[Row]:
    """Parameters: score of ELECTRA with the last seed, and score without pretraining."""
    right = {"none": control, "bert": 0.7, "electra": 0.8}
    return [{"kind": kind, "seed": seed, "flops": 1e6, "tuning": {"sst2": 9, "cola": 9},
             **dict.fromkeys(("sst2", "cola"), last if (kind, seed) == ("electra", 2) else each)}
            for kind, each in right.items() for seed in SEEDS]  # fmt: skip


def norms(least: float = 0.01, exact: float = 0.0, large: float = 0.01, gap: float = 0.1) -> list[Row]:
    """Parameters: smallest change with BatchNorm, change with LayerNorm, and changes and gap in the largest batch."""
    rows: list[Row] = []
    for norm, batch, seed in product(batch_or_layer_norm.NORMS, (2, 8), SEEDS):
        own = {"norm": norm, "batch": batch, "seed": seed}
        rows.append({**own, "gap": 0.0 if norm == "layer" else gap if batch == 8 else 0.2})
        for mode, change in product(batch_or_layer_norm.MODES, batch_or_layer_norm.CHANGES):
            value = least if (change, seed) == ("padding", 2) else large if batch == 8 else 0.1
            dependent = (norm, mode) == ("batch", "training")
            rows.append({**own, "mode": mode, "change": change, "moved": value if dependent else exact})
    return rows


def tuned(classifier: float = 0.88, moved: float = 0.02, every: float = 0.9) -> list[Row]:
    """Parameters: with the last seed, accuracies of a trained classifier and of full tuning, and how far a layer moves.
    A second rate has a higher test accuracy, but validation does not choose it."""
    right = {"classifier": classifier, "last layer": 0.89, "all": every}
    rows: list[Row] = []
    for (kind, last), seed, rate in product(right.items(), SEEDS, (1, 2)):
        own = {"kind": kind, "seed": seed, "lr": rate}
        score = last if seed == 2 else 0.9
        rows.append({**own, "valid": 0.8 / rate, "test": score if rate == 1 else 1.0})
        rows += [{**own, "part": "layer 0", "moved": moved if seed == 2 else 0.01}]
        rows += [{**own, "part": part, "moved": 0.5} for part in what_tuning_changes.HEAD]
    return rows


def glue(worst: float = 0.6, spread: float = 0.01) -> list[Row]:
    """Parameters: score of full tuning on one task, and the spread of the seeds on two others."""
    rows: list[Row] = []
    for number, task in enumerate(frozen_or_full_fine_tuning.STEPS):
        for kind, seed in product(frozen_or_full_fine_tuning.FROZEN, SEEDS):
            score = 0.5 if kind == "frozen" else worst if number == 0 else 0.6
            score += (seed - 1) * (spread if number in (1, 2) else 0.01)
            rows.append({"task": task, "kind": kind, "seed": seed, "lr": 1, "valid": 0.5, "test": score})
    return rows


def batches(larger: float = 0.9, best: float = 4e-3, guessing: float = 2.0) -> list[Row]:
    """Parameters: loss of the larger batch with the last seed, and best rate of the largest batch."""
    return [
        {"batch": batch, "lr": lr, "seed": seed, "steps": 800 // batch, "guessing": guessing,
         "loss": (larger if batch == 32 and seed == 2 else {8: 1.0, 32: 0.9, 128: 1.1}[batch])
         + (0.5 if lr != (best if batch == 128 else 2e-3) else 0.0)}
        for batch in (8, 32, 128) for lr in (1e-3, 2e-3, 4e-3) for seed in SEEDS
    ]  # fmt: skip


@pytest.mark.parametrize(("experiment", "rows", "false"), [
    (electra, replaced, [{"last": 0.3}]),
    (few_shot, shown, [{"large": 0.45}, {"small": 0.85}]),
    (low_rank, ranked, [{"quarter": 1.011}, {"shuffled": 1.019}, {"without": 1.19}]),
    (masking_rate, hidden, [{"least": 1.4}, {"most": 1.4}, {"worst": 2.1}, {"pieces": 1.3}]),
    (next_sentence, followed, [{"full": 0.6}, {"sentences": 1.0}]),
    (switch_scaling, switch, [{"last": 2.1}, {"cost": 106}, {"middle": 2.05}, {"middle": 1.5}]),
    (batch_or_layer_norm, norms, [{"least": 9e-4}, {"exact": 1e-8}, {"large": 0.2}, {"gap": 0.3}]),
    (what_tuning_changes, tuned, [{"classifier": 0.8}, {"moved": 0.06}, {"every": 0.5}]),
    (frozen_or_full_fine_tuning, glue, [{"worst": 0.49}, {"spread": 0.2}]),
    (neighbours, looked_up, [{"line": 0.25}, {"bayes": 0.6}, {"smooth": 0.001}]),
    (sharing, shared, [
        {"size": 51}, {"loss": 0.9}, {"dropped": 1.1}, {"steps": (0.9, 0.1, 0.9)}, {"steps": (0.3, 0.2, 0.01)}
    ]),
    (batch_size, batches, [{"larger": 1.01}, {"best": 2e-3}]),
    (larger_learn_from_fewer, sizes, [{"falls": 0.3}, {"falls": 0.0}, {"start": 9.0}]),
    (return_asked_and_reached, played, [{"slope": -0.1}, {"short": 0.9}, {"cloned": 470.0}]),
    (windows_and_pixels, images, [
        {"cheaper": 1.1}, {"vit_flops": 1.8}, {"swin_flops": 1.1}, {"vit_bytes": 1.1}, {"swin_bytes": 1.1},
        {"vit_bytes with scores": 1.8}, {"swin_bytes with scores": 1.1},
    ]),
    (images_by_data, by_data, [{"few": 0.5}, {"many": 0.85}]),
    (speech_from_few_labels, heard, [{"last": 0.4}, {"last": 0.3}]),
    (words_and_pictures, named, [{"last": 0.49}]),
], ids=lambda value: getattr(value, "__name__", "").rpartition(".")[2])  # fmt: skip
def test_a_false_claim_fails(experiment: Any, rows: Callable[..., list[Row]], false: list[dict[str, Any]]) -> None:
    usual = experiment.claim(rows())
    assert usual.holds and usual.learned
    for change in false:
        assert not experiment.claim(rows(**change)).holds, change
    for axis in experiment.plot(rows()).axes:
        points = [line.get_xydata() for line in axis.lines] + [bar.get_xy() for bar in axis.patches]
        assert points and all(len(each) and np.isfinite(each).all() for each in points)  # no panel is empty
        assert axis.get_title() or axis.get_ylabel()


# -- measurements -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [8, 64])
def test_spectra(length: int) -> None:
    """If all singular values are equal, a fraction p has the share p of the sum; at rank 1 the first has all."""
    alike, one = (
        low_rank.spectrum(each.expand(2, 3, -1, -1)) for each in (torch.eye(length), torch.ones(length, length))
    )
    assert [share for share, _ in alike] == sorted(share for share, _ in one) and alike[-1][0] == 1
    assert all(held == pytest.approx(share) for share, held in alike) and alike[7][0] == max(0.25, 1 / length)
    assert all(held == pytest.approx(1, abs=1e-5) for _, held in one)


def test_maps_are_cut_to_a_rank() -> None:
    """The rank is the share of the full rank. Shuffled rows lose more of a map of low rank, and nothing of their sum of
    squares beyond the cut."""
    random = torch.Generator().manual_seed(0)
    low = (torch.rand(2, 3, 16, 2, generator=random) @ torch.rand(2, 3, 2, 16, generator=random)).softmax(-1)
    full = torch.rand(2, 3, 16, 16, generator=random).softmax(-1)
    assert torch.linalg.matrix_rank(low_rank.cut(full, 0.25)).unique().tolist() == [4]
    assert torch.equal(low_rank.cut(full, 1.0), full) and not low_rank.cut(full, 0.0).any()
    values = torch.linalg.svdvals(full)
    missing = (full - low_rank.cut(full, 0.25)).square().sum((-2, -1))
    assert torch.allclose(missing, values[..., 4:].square().sum(-1), rtol=1e-3)  # the best approximation
    plain, shuffled = ((low - low_rank.cut(low, 0.25, mixed)).norm() for mixed in (False, True))
    assert shuffled > 10 * plain
    almost = low_rank.cut(full, 15 / 16, shuffled=True)  # the entries return to their columns
    assert (almost - full).norm() < 0.2 * (full.roll(1, -1) - full).norm()


def test_experts_beyond_their_capacity_are_counted() -> None:
    chosen = torch.tensor([[0], [0], [0], [1], [2], [2], [2], [2]])  # two experts; 2 means dropped
    assert switch_scaling.load(chosen, 2) == {"busiest": 3 / 8, "dropped": 0.5}
    costs = [trial.values["flops"] for trial in switch_scaling.trials(**switch_scaling.FORMS["small"].values)]
    assert max(costs) < 1.05 * min(costs)


def test_only_batch_norm_depends_on_other_texts(tmp_path: Path) -> None:
    """The claim holds for real models, but not if the rows of both norms are exchanged."""
    values = {"depth": 1, "width": 16, "batches": [2, 8]}
    rows = [{**own, **row} for norm, seed in product(batch_or_layer_norm.NORMS, SEEDS)
            for own in ({"norm": norm, "seed": seed},)
            for row in batch_or_layer_norm.work({**values, **own}, Place(tmp_path, tmp_path, "cpu"))]  # fmt: skip
    other = {"layer": "batch", "batch": "layer"}
    assert batch_or_layer_norm.claim(rows).holds
    assert not batch_or_layer_norm.claim([{**row, "norm": other[row["norm"]]} for row in rows]).holds


def test_languages_differ_in_what_follows_two_tokens() -> None:
    """At most two letters follow two tokens of a language, and other languages have other letters."""
    after: dict[tuple[str, str, str], set[str]] = {}
    written = switch_scaling.language_texts(800, 4)
    for text in written:
        mark = text[0]
        assert mark in switch_scaling.MARKS[:4] and len(text) == switch_scaling.TEXT
        plain = text.replace(mark, "_")
        for first, second, third in zip("__" + plain[1:], "_" + plain[1:], plain[1:]):
            if third != "_":
                after.setdefault((mark, first, second), set()).add(third)
    assert max(map(len, after.values())) == 2 and len(after) > 0.8 * 4 * 17 * 17
    pairs = {key[1:] for key in after}
    shared = [len(set.union(*(after.get((mark, *pair), set()) for mark in switch_scaling.MARKS[:4]))) for pair in pairs]
    assert sum(shared) / len(shared) > 5  # of the 8 that four languages could have
    marks = sum(text.count(text[0]) for text in written) / len(written) / switch_scaling.TEXT
    assert abs(marks - switch_scaling.MARKED) < 0.01


def test_a_scene_is_one_picture() -> None:
    """A shorter list is the beginning of a longer one, a scene always gives the same picture, and the shapes of
    data/drawings.py are where and as large as the scene says."""
    scenes, painter = drawn_scenes.draw_scenes(400, 3), drawn_scenes.Painter("cpu")
    assert torch.equal(drawn_scenes.draw_scenes(50, 3), scenes[:50])
    pictures = painter.draw(scenes)
    assert pictures.shape == (400, 3, drawings.SIDE, drawings.SIDE)
    assert torch.allclose(painter.draw(scenes[7:9]), pictures[7:9], atol=1e-5)
    assert sorted(painter.labels(scenes).unique().tolist()) == [*range(len(drawings.SHAPES))]
    sizes = scenes[:, :24].unflatten(-1, (3, 8))[..., 3]
    assert (sizes[:, 0] > sizes[:, 1:].amax(1)).all()
    for number, (name, mask) in enumerate(drawings.SHAPES.items()):
        x, y, size, turn = 0.3, -0.2, 0.5, 0.0 if name in ("heart", "circle", "ring") else 0.4
        values = torch.tensor([[float(number), x, y, size, turn]]).unbind(-1)
        drawn = painter.place(values[0].long(), *values[1:], drawings.SIDE * drawings.FINER)[0, 0]
        assert (drawn - torch.from_numpy(mask(x, y, size, turn)).float()).abs().mean() < 0.01, name


@pytest.mark.parametrize(("wrong", "holds"), [({}, True), ({"error": 1.05}, False), ({"ahead": 7.0}, False)])
def test_a_law_predicts_a_run_of_eight_times_the_compute(
    wrong: dict[str, float], holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that follow a law exactly, except for the largest run of the last seed or its compute."""
    monkeypatch.setattr(scale, "intervals", partial(scale.intervals, number=3))  # they decide nothing
    law = Law(E=0.5, A=20.0, a=0.3, B=30.0, b=0.3)
    sizes = [(N, D) for N in (1e5, 2e5, 4e5, 8e5) for D in (1e6, 2e6, 4e6)]
    largest = (32e5, 4e6 * wrong.get("ahead", 8.8) / 4)
    rows = [{"trial": f"{N}-{D}-{seed}", "seed": seed, "parameters": N, "tokens": D, "flops": 6 * N * D, "step": 1,
             "steps": 1, "loss": law(N, D) * (wrong.get("error", 1.0) if largest == (N, D) and seed == 2 else 1)}
            for N, D in [*sizes, largest] for seed in SEEDS]  # fmt: skip
    verdict = scaling_laws.claim(rows)
    assert verdict.holds is holds
    assert verdict.figures["compute / the next run's"] == pytest.approx(wrong.get("ahead", 8.8))
    assert abs(verdict.figures["off by, seed 0"]) < 1e-3
    assert verdict.figures["off by, seed 2"] == pytest.approx(1 / wrong.get("error", 1.0) - 1, abs=1e-3)
    runs = {trial.values["flops"] for trial in scaling_laws.trials(**scaling_laws.FORMS["full"].values)}
    *_, second, first = sorted(runs)
    assert first >= scaling_laws.LEAST * second
    assert scaling_laws.plot(rows).axes


def test_rates_rise_and_fall() -> None:
    shares = [images_by_data.rate_share(step, 100) for step in range(100)]
    assert shares[4] == 1 and shares == sorted(shares[:5]) + sorted(shares[5:], reverse=True) and shares[-1] < 0.01


def test_distances_of_weights_are_relative_to_each_part() -> None:
    model = build(reader("bert", "BertForSequenceClassification", 16, 2, 4, 32), seed=0)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    grows = {"embedding": 1.0, "layer 0": 1.1, "layer 1": 1.2, "pooler": 1.3, "classifier": 1.4}
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.mul_(grows[what_tuning_changes.part_of(name)])
    moved = what_tuning_changes.distances(before, model)
    assert moved == {part: pytest.approx(factor - 1) for part, factor in grows.items()}


def test_validation_chooses_the_rate() -> None:
    rows = [{"kind": "a", "lr": lr, "seed": seed, "valid": valid, "test": lr}
            for lr, valids in ((1, (0.5, 0.5)), (2, (0.9, 0.2))) for seed, valid in enumerate(valids)]  # fmt: skip
    assert [row["test"] for row in best_rates(rows, "kind")["a",]] == [2, 2]
    rows[-1]["valid"] = 0.0
    assert [row["test"] for row in best_rates(rows, "kind")["a",]] == [1, 1]


def test_pairs_of_single_sentences() -> None:
    """The second sentence follows the first, or is a sentence of another document, as the label says."""
    objective, draw, labels = next_sentence.SentencePairs(length=32), np.random.default_rng(0), []
    own, other = ({"input_ids": np.arange(9) + begin, "ends": np.array([2, 5, 9]), "document": np.int64(begin)}
                  for begin in (0, 100))  # fmt: skip
    for _ in range(400):
        first, second, label = objective.pair(own, other, draw)
        assert first.tolist() in ([0, 1], [2, 3, 4])
        assert second[0] == first[-1] + 1 if label == FOLLOWS else second.tolist()[0] in (100, 102, 105)
        labels.append(label == FOLLOWS)
    assert 0.4 < sum(labels) / len(labels) < 0.6
    assert {objective.pair(own, own, draw)[2] for _ in range(20)} == {FOLLOWS}


def test_both_kinds_of_pretraining_cost_the_same() -> None:
    flops = {trial.values["kind"]: trial.values["flops"] for trial in electra.trials(**electra.FORMS["full"].values)}
    assert flops["electra"] == pytest.approx(flops["bert"], rel=0.01) and flops["none"] < 0.01 * flops["bert"]
    values = electra.FORMS["full"].values
    model, generator = electra.model_specs("electra", values["width"], values["depth"], values["vocab"])
    assert 13e6 < count(model).parameters < 15e6 and count(generator).parameters < 2e6


@pytest.mark.parametrize(("experiment", "rows"), [
    (switch_scaling, switch(guessing=2.2)), (sharing, shared(guessing=1.1)), (batch_size, batches(guessing=0.99)),
    (larger_learn_from_fewer, sizes(guessing=3.8)), (speech_from_few_labels, heard(most=0.19)),
    (words_and_pictures, named(seen=0.89)), (electra, replaced(control=0.75)), (next_sentence, followed(control=0.65)),
], ids=["switch", "sharing", "batches", "sizes", "speech", "pictures", "electra", "sentences"])  # fmt: skip
def test_a_form_that_learns_too_little_is_not_judged(experiment: Any, rows: list[Row]) -> None:
    assert not experiment.claim(rows).learned


def test_batches_train_for_equal_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sizes are timed once; steps are the seconds divided by the time of a step."""
    timed: list[int] = []

    class Timed(Place):
        def train(self, run: Any, *callbacks: Any, name: str = "run") -> Any:
            timed.append(run.batch.examples)
            return SimpleNamespace(folder=run.batch.examples, scores={"loss": 1.0})

    clock = (3, 6, 9, 12, 13, 14, 15, 16)  # slow first steps do not count
    lines = [{"step": i, "loss": 1.0, "seconds": seconds} for i, seconds in enumerate(clock)]
    monkeypatch.setattr(batch_size, "texts", lambda *given: texts(*given[:-1], number=9))
    monkeypatch.setattr(batch_size, "guessing_loss", lambda trainer: 2.0)
    monkeypatch.setattr(batch_size, "read_metrics", lambda size: [
        {**line, "seconds": line["seconds"] * size / 8} for line in lines
    ])  # fmt: skip
    rows = [batch_size.work(trial.values | {"seconds": 64}, Timed(tmp_path / trial.name, tmp_path, "cpu"))[0]
            for trial in batch_size.trials(**batch_size.FORMS["small"].values)]  # fmt: skip
    assert {row["steps"] for row in rows} == {64, 16, 4} and len(timed) == 3 + len(rows)


def test_articles_are_split_at_their_titles(tmp_path: Path) -> None:
    (tmp_path / "wikitext2_valid_test").mkdir()
    first, second = "one two three four five six seven eight .", "a b c d e f g h ."
    text = f" \n = First = \n \n {first} \n = = Part = = \n more \n \n = Second = \n {second} \n"
    for part in ("valid", "test"):
        path = tmp_path / "wikitext2_valid_test" / f"wiki.{part}.raw.gz"
        path.write_bytes(gzip.compress((text if part == "valid" else "").encode()))
    assert sorted(documents(str(tmp_path), ("wikitext",))) == [second, f"{first} more"]


def test_one_layer_runs_as_often_as_all_others() -> None:
    own, one = (sharing.layers_model(kind, 0.0, 16, 3) for kind in sharing.KINDS)
    assert count(own).flops(8) == count(one).flops(8) and count(one).parameters < count(own).parameters
    with torch.no_grad():
        rows = sharing.steps_between(build(one, seed=0).eval(), torch.ones(1, 4, dtype=torch.long))
    assert [row["layer"] for row in rows] == [0, 1, 2] and all(row["distance"] > 0 for row in rows)


def test_tokens_needed_lie_between_two_evaluations() -> None:
    curve = [Point(1, tokens, tokens, loss) for tokens, loss in ((10, 4.0), (100, 3.0), (1000, 2.0))]
    needed = larger_learn_from_fewer.tokens_needed
    assert needed(curve, 2.5) == pytest.approx(10**2.5) and needed(curve, 5.0) == 10
    assert needed(curve, 1.9) == float("inf")


def test_a_pole_is_balanced_for_as_long_as_in_gymnasium() -> None:
    """The same actions from the same start states balance the pole for as long in gymnasium's CartPole-v1."""
    gymnasium: Any = pytest.importorskip("gymnasium")
    config = {**return_asked_and_reached.CONFIG, "hidden_size": 16, "n_layer": 1}
    model = build(families.find("decision_transformer").read(config), seed=0).eval()
    asked, states = np.array([20.0, 500.0, 100.0]), np.random.default_rng(1000).uniform(-0.05, 0.05, (3, 4))
    world, reached = gymnasium.make("CartPole-v1").unwrapped, []
    for row, request in enumerate(asked):
        world.reset(seed=0)
        world.state, ended, now = tuple(states[row]), False, 0
        seen: dict[str, list[np.ndarray]] = {"states": [], "actions": [], "returns_to_go": []}
        while not ended:
            seen["states"].append(np.array(world.state)[None])
            seen["actions"].append(np.zeros((1, 2)))
            seen["returns_to_go"].append(np.array([[(request - now) / 500]]))
            taken = answer(model, {name: each[-20:] for name, each in seen.items()}, now).argmax(-1)
            seen["actions"][-1] = np.eye(2)[taken]
            ended, now = world.step(int(taken[0]))[2], now + 1
        reached.append(now)
    assert return_asked_and_reached.balance(model, asked, 20, 500.0, 500).tolist() == reached


def test_a_name_is_right_if_colour_and_shape_are() -> None:
    rows = [
        {"colour": "red", "shape": "star", "unseen": 1},
        {"colour": "red", "shape": "ring", "unseen": 1},
        {"colour": "blue", "shape": "ring", "unseen": 1},
        {"colour": "blue", "shape": "star", "unseen": 0},
    ]
    unseen, seen = words_and_pictures.shares_right(["red star", "red star", "red star", "blue star"], rows)
    assert seen == {"pairs": "seen", "name": 1.0, "colour": 1.0, "shape": 1.0}
    assert [unseen[what] for what in ("name", "colour", "shape")] == pytest.approx([1 / 3, 2 / 3, 1 / 3])


def test_a_window_sees_its_own_patches(tmp_path: Path) -> None:
    """The claim holds for the real counts of four sizes, but not if the Swin costs as much as the ViT."""
    place = Place(tmp_path, tmp_path, "cpu")
    rows = [{**trial.values, **row} for trial in windows_and_pixels.trials(sides=[224, 448, 896], timed=0)
            for row in windows_and_pixels.work(trial.values, place)]  # fmt: skip
    assert windows_and_pixels.claim(rows).holds
    same = {row["side"]: row for row in rows if row["model"] == "vit"}
    assert not windows_and_pixels.claim([{**same[row["side"]], "model": row["model"]} for row in rows]).holds


# -- smooth functions -------------------------------------------------------------------------------------------------


def test_smooth_functions_are_of_their_gaussian_process() -> None:
    """Two points at a distance of one length scale have covariance exp(-1/2); Bayes beats all other estimators."""
    objective = Regress(width=1, context=8, noise=0.1, scale=0.7)
    made = objective.draw(torch.arange(20_000))
    apart = (made["points"][:, 0, 0] - made["points"][:, 1, 0]).abs()
    near = (apart > 0.65) & (apart < 0.75)
    assert float((made["values"][near, 0] * made["values"][near, 1]).mean()) == pytest.approx(0.607, abs=0.06)
    found = errors(None, objective, count=4000)
    assert found["bayes"][0] == pytest.approx(1.01, rel=0.05)
    assert all(found["bayes"][n] < min(found["neighbours"][n], found["least squares"][n]) for n in range(1, 9))


def test_estimators_are_those_of_others() -> None:
    processes = pytest.importorskip("sklearn.gaussian_process")
    made = Regress(width=2, context=6, noise=0.3, scale=0.7).draw(torch.arange(3))
    points, values = made["points"].double(), made["values"].double()
    posterior, mean = gaussian_process(points, values, 0.7, 0.3), smoother(points, values, 0.4)
    assert not posterior[:, 0].any() and not mean[:, 0].any()
    for row, n in product(range(3), range(1, 7)):
        kernel = processes.kernels.RBF(0.7, "fixed")
        theirs = processes.GaussianProcessRegressor(kernel, alpha=0.09, optimizer=None)
        theirs.fit(points[row, :n].numpy(), values[row, :n].numpy())
        assert float(posterior[row, n]) == pytest.approx(theirs.predict(points[row, n : n + 1].numpy())[0], abs=1e-9)
        weights = (-(points[row, :n] - points[row, n]).square().sum(-1) / 0.32).exp()
        assert float(mean[row, n]) == pytest.approx(float((weights * values[row, :n]).sum() / weights.sum()))
