"""Scaling laws: fits recover the law that generated the losses; scaled models keep the proportions of their base."""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import anyformer as af
from anyformer import cli
from anyformer.lab.scale import (
    Law,
    Point,
    fit_exponents,
    fit_law,
    fit_power,
    fit_results,
    frontier,
    intervals,
    scale_model,
    trials,
)
from anyformer.lab.trials import Trials

CHINCHILLA = Law(1.69, 406.4, 0.34, 410.7, 0.28)


def made(law: Law, noise: float = 0.0) -> list[Point]:
    draw = np.random.default_rng(0)
    return [
        Point(N, D, 6 * N * D, float(law(N, D)) * (1 + noise * draw.standard_normal()))
        for N in (1e5, 4e5, 2e6, 1e7) for D in (1e6, 4e6, 2e7, 1e8)
    ]  # fmt: skip


def test_the_law_is_found_again() -> None:
    found = fit_law(made(CHINCHILLA))
    for name, value in dataclasses.asdict(CHINCHILLA).items():
        assert getattr(found, name) == pytest.approx(value, rel=0.03), name
    assert fit_power([1, 10, 100], [3, 1.5, 0.75]).a == pytest.approx(np.log10(2))
    none = fit_law(made(dataclasses.replace(CHINCHILLA, E=0.0)))
    assert none.E < 0.05 and none.a == pytest.approx(0.34, rel=0.03)


def test_intervals_hold_what_was_put_in() -> None:
    """With 1 % noise most exponents are in their interval; less noise makes the interval narrower."""
    wide, narrow = (intervals(made(CHINCHILLA, noise), number=60)["L(N,D) of N"] for noise in (0.01, 0.001))
    assert wide[0] < 0.34 < wide[1] and narrow[1] - narrow[0] < wide[1] - wide[0]


def test_best_spent() -> None:
    """No other N and D with the same compute have a lower loss."""
    N, D = CHINCHILLA.best(1e21)
    assert pytest.approx(1e21) == 6 * N * D
    assert all(CHINCHILLA(N, D) < CHINCHILLA(N * f, D / f) for f in (0.8, 0.95, 1.05, 1.2))


def test_frontier_and_fits() -> None:
    found = made(CHINCHILLA)
    edge = frontier(found)
    assert all(a.C < b.C and a.L > b.L for a, b in pairwise(edge)) and len(edge) < len(found)
    for point in found:
        assert point in edge or any(other.C <= point.C and other.L <= point.L for other in edge)
    by_C = fit_exponents(found)["L(C)"]
    assert 0.01 < by_C < 0.34 and by_C == fit_power([p.C for p in edge], [p.L for p in edge]).a


def test_the_largest_is_predicted() -> None:
    rows = [
        {"trial": str(i), "parameters": p.N, "tokens": p.D, "flops": p.C, "loss": loss}
        for i, p in enumerate(made(CHINCHILLA)) for loss in (9.0, p.L)
    ]  # fmt: skip
    found = fit_results(rows)
    assert found.largest.N == 1e7 and found.largest.D == 1e8 and abs(found.error) < 1e-3
    with pytest.raises(ValueError, match="two sizes and two numbers of tokens"):
        fit_results(rows[:8])


@pytest.mark.parametrize("name", ["gpt2", "llama3.2-1b"])
def test_scaled(name: str) -> None:
    spec = scale_model(af.spec(name), 64)
    ratio = af.spec(name).decoder.layers.steps["feedforward"].op.width / af.spec(name).width
    assert spec.width == 64 and spec.decoder.layers.steps["feedforward"].op.width == round(64 * ratio)
    assert spec.decoder.layers.steps["attention"].op.num_heads == 2 and spec.decoder.depth == 2
    sizes = [trial.values["parameters"] for trial in trials(name, [32, 64], [1024])]
    wanted = sum(size for address, size in af.count(spec).parts.items() if address.startswith("decoder."))
    assert sizes[0] == wanted > sizes[1]  # the most expensive first


@pytest.mark.parametrize("arguments, line", [
    (("--widths", "0"), "--widths: values must be positive, got 0"),
    (("--tokens", "many"), "--tokens takes whole numbers separated by commas, got 'many'"),
    (("--largest", "5"), "--largest takes a width and a number of tokens"),
    (("--budget", "0"), "--budget: 0 minutes"),
    (("bert-base",), "scaling needs a decoder-only model"),
    (("t5-small",), "scaling needs a decoder-only model"),
    (("--widths", ""), "--widths takes whole numbers separated by commas, got ''"),
    (("--widths", "16", "--tokens", "4e4"), "a fit needs at least two sizes and two numbers of tokens"),
    (("--widths", "16,32", "--tokens", "1000,2000"), "have 2,048 tokens, 1 steps of 16 texts of 128"),
    (("--data", "nothing.txt"), "nothing.txt: no such file or folder"),
    (("--on", "rays"), "did you mean 'ray'?"),
], ids=lambda value: " ".join(value) if isinstance(value, tuple) else "")  # fmt: skip
def test_mistakes(arguments: tuple[str, ...], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["scale", *arguments, "--out", str(tmp_path / "here")]) == 2
    err = capsys.readouterr().err
    assert line in err and err.count("\n") == 1


def test_a_plan_comes_before_any_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command shows ten trainings and their expected time; without --run or a yes it starts nothing."""
    started: list[int] = []
    monkeypatch.setattr(Trials, "perform", lambda trials, *options: started.append(len(trials.remaining)) or [])
    command = ["scale", "--device", "cpu", "--jobs", "2", "--out", str(tmp_path / "here")]
    assert cli.main(command) == 2
    out, err = capsys.readouterr()
    assert "10 trainings to do" in out and "about 2 minutes" in out and out.count("to do\n") == 10
    assert err == "anyformer: nothing was started; add --run to start these 10 trainings\n"
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: "")
    assert cli.main(command) == 2 and not started and not (tmp_path / "here").exists()
    monkeypatch.setattr("builtins.input", lambda question: "y")
    for more in ([], ["--run"]):
        assert cli.main([*command, *more]) == 0
    assert started == [10, 10]


@pytest.mark.slow
def test_scale(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text("\n\n".join(f"{i} and {i + 1} make {2 * i + 1}" for i in range(3000)))
    command = ["scale", "--widths", "16,32", "--tokens", "1024,2048", "--batch", "4", "--jobs", "1", "--device", "cpu",
               "--data", str(tmp_path / "text.txt"), "--out", str(tmp_path / "here")]  # fmt: skip
    assert cli.main([*command, "--run"]) == 0
    out, err = capsys.readouterr()
    assert "5 trainings" in err and "L(N, D) = " in out and "off by" in out
    rows = [json.loads(line) for line in (tmp_path / "here/results.jsonl").read_text().splitlines()]
    assert len({row["trial"] for row in rows}) == 5 and (tmp_path / "here/plot.png").stat().st_size > 1000
    assert cli.main(command) == 0 and "done" not in capsys.readouterr().err
