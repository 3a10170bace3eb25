"""Measure scaling laws: train decoders of several widths, in the proportions of NAME, on several numbers of tokens,
and fit L(N), L(D), L(C) and L(N, D) to the losses. The largest run (--largest; default: twice the largest width and
tokens) is left out of the fits and predicted.

The plan and the expected time are shown first. The trainings start if you confirm on a terminal, or with --run.

N: parameters without embedding tables and head; C: FLOPs. The same command continues where it was stopped."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from anyformer.cli import Mistake, tell
from anyformer.cli.lab import check
from anyformer.cli.settings import device_flag
from anyformer.specs.messages import amount


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("name", metavar="NAME", nargs="?", default="gpt2", help="a decoder of the zoo (default: gpt2)")
    add("--widths", metavar="A,B,...", help="widths of the models (default: by the budget)")
    add("--tokens", metavar="A,B,...", help="training tokens for each width")
    add("--largest", metavar="WIDTH,TOKENS", help="width and tokens of the run that is predicted")
    add("--batch", type=int, metavar="N", help="texts of 128 tokens per step")
    add("--run", action="store_true", help="start the trainings without asking")
    add("--budget", type=float, metavar="MINUTES", help="time limit; chooses the number of runs")
    add("--data", metavar="PATH", help="text files (default: Python's documentation and library)")
    add("--jobs", type=int, metavar="N", help="trainings at once (default: one per core, 8 on a GPU)")
    add("--on", metavar="WAY", default="here", help="here (processes of this machine) or ray")
    add("--out", metavar="DIR", help="folder of the results (default: runs/scale/NAME)")
    device_flag(parser)


def numbers(flag: str, text: str) -> list[int]:
    try:
        values = [int(float(value)) for value in text.split(",")]
    except (ValueError, OverflowError):
        raise ValueError(f"--{flag} takes whole numbers separated by commas, got {text!r}") from None
    if min(values) < 1:
        raise ValueError(f"--{flag}: values must be positive, got {min(values)}")
    return values


def show_plan(trials: Any, minutes: float, jobs: int, kind: str) -> None:
    """Print what will be trained and about how long it takes."""
    from anyformer.cli.terminal import short_number, table

    rows = [
        (
            str(values["width"]),
            short_number(values["parameters"]),
            short_number(values["tokens"]),
            f"{values['steps']:,}",
            short_number(values["flops"]),
            "to do" if trial in trials.remaining else "done",
        )
        for trial in trials.trials
        for values in (trial.values,)
    ]
    table(("width", "parameters", "tokens", "steps", "FLOPs", ""), rows, right=range(5))
    duration = f"{minutes / 60:.1f} hours" if minutes >= 120 else f"{max(minutes, 2):.0f} minutes"
    where = "a GPU" if kind == "cuda" else amount(jobs, "core")
    print(f"{len(trials.remaining)} trainings to do, {jobs} at once: about {duration} on {where}")


def confirm(number: int) -> None:
    """Raise Mistake unless the user confirms on a terminal."""
    if not sys.stdin.isatty():
        raise Mistake(f"nothing was started; add --run to start these {number} trainings")
    if input(f"Start {number} trainings? [y/N] ").strip().lower() not in ("y", "yes"):
        raise Mistake("nothing was started")


def run(options: argparse.Namespace) -> None:
    check(options)
    if options.batch is not None and options.batch < 1:
        raise ValueError(f"--batch is {options.batch}; it must be at least 1")
    given = {
        name: numbers(name, text)
        for name in ("widths", "tokens", "largest")
        if (text := getattr(options, name)) is not None
    }
    if len(given.get("largest", (1, 1))) != 2:
        raise ValueError("--largest takes a width and a number of tokens: --largest 512,24000000")

    from anyformer.cli.terminal import table
    from anyformer.kernels import hardware
    from anyformer.lab import scale
    from anyformer.lab.experiment import check_data, choose_form, default_jobs, draw
    from anyformer.lab.trials import Trials

    device = hardware.device(options.device)
    form = choose_form("scale", scale.FORMS, device.type, options.budget)
    values = {**scale.FORMS[form].values, **given, "name": options.name, "data": options.data}
    values |= {} if options.batch is None else {"batch": options.batch}
    if ("widths" in given or "tokens" in given) and "largest" not in given:
        values["largest"] = [max(values["widths"]) * 2, max(values["tokens"]) * 2]
    folder = Path(options.out or f"runs/scale/{options.name}")
    largest, *others = scale.trials(**values)  # the most expensive first
    scale.check_number([(trial.values["parameters"], trial.values["tokens"]) for trial in others])
    if options.data is not None:
        check_data(options.data)
    trials = Trials([largest, *others], scale.work, folder, str(device))
    jobs = default_jobs(device.type, options.jobs)
    if trials.remaining:
        show_plan(trials, scale.minutes(trials.remaining, device.type, jobs), jobs, device.type)
        if not options.run:
            confirm(len(trials.remaining))
    tell(f"{len(trials.trials)} trainings in {folder}; sizes and budgets of the {form} form unless given")
    until = float("inf") if options.budget is None else time.monotonic() + 60 * options.budget
    rows = trials.perform(jobs, options.on, until, tell)
    if trials.remaining:
        print(f"time limit reached with {len(trials.remaining)} trainings to do: the same command continues")
        return
    found = scale.fit_results(rows)
    lines = []
    for name, value in found.exponents.items():
        low, high = found.between[name]
        lines.append((name, f"{value:.3f}", f"{low:.3f} to {high:.3f}", f"{scale.PUBLISHED[name]:.3f}"))
    table(("exponent", "here", "95 %", "published"), lines, right=(1, 2, 3))
    law = found.law
    print(f"\nL(N, D) = {law.E:.3f} + {law.A:.3g} / N^{law.a:.3f} + {law.B:.3g} / D^{law.b:.3f}")
    N, D = law.best(found.largest.C)
    spent = f"{N:.3g} parameters and {D:.3g} tokens, {D / N:.3g} per parameter"
    print(f"the compute of the largest run, {found.largest.C:.3g} FLOPs, is best spent on {spent}")
    print(f"the largest run: {found.largest.L:.4f}, predicted {found.predicted:.4f}, off by {100 * found.error:.1f} %")
    draw(scale.plot, rows, folder / "plot.png", tell)
    print(f"written: {folder}, results.jsonl, plot.png")
