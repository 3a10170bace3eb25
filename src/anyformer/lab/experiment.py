"""An experiment is a file with trials, measurements, one plot and one claim that is checked.

It has FORMS of growing cost; `trials(...)`, which takes a form's values; `work(values, place)`, which runs one trial
and returns rows; `claim(rows)` and `plot(rows)`. The first line of its docstring is shown by `anyformer lab list`. The
form "tiny" only shows that the experiment runs: it gets no verdict, nor does a form whose models learn too
little. If a training diverges, its only row has "failed", and the claim is not checked unless the module sets
DIVERGES."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from anyformer.data import TextFiles
from anyformer.kernels.hardware import device as device_of
from anyformer.lab.registry import experiment
from anyformer.lab.trials import Place, Row, Trial, TrialGrid, Trials, Values, plain, write

TINY = "tiny"  # the form that is too small to judge
TOO_SMALL = "too small to judge"  # the verdict of such a form
DEFAULT_BUDGET = {"cpu": 3.0, "cuda": 4.0}  # minutes


@dataclasses.dataclass(frozen=True)
class Form:
    """One size of an experiment: its approximate time in minutes, and the arguments of `trials`."""

    cpu: float  # minutes on two cores
    cuda: float  # minutes on one GPU
    values: Values

    def minutes(self, kind: str) -> float:
        return self.cuda if kind == "cuda" else self.cpu


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether a claim holds, and the figures behind it. If the models have not `learned` their task, as a control of
    the experiment defines it, the form is too small to judge."""

    holds: bool
    figures: Mapping[str, Any]
    learned: bool = True


class Experiment(Protocol):
    """The interface of an experiment's module."""

    __doc__: str
    CLAIM: str
    FORMS: Mapping[str, Form]
    trials: Callable[..., list[Trial]]

    def work(self, values: Values, place: Place) -> list[Row]: ...
    def claim(self, rows: Sequence[Row]) -> Verdict: ...
    def plot(self, rows: Sequence[Row]) -> Any: ...


def choose_form(name: str, forms: Mapping[str, Form], kind: str, budget: float | None = None) -> str:
    """Return the largest form that fits a budget of minutes on this kind of device. `name` is for messages."""
    if budget is not None and not 0 < budget < math.inf:
        raise ValueError(f"--budget: {budget:g} minutes; it must be above 0 and finite")
    least = min(forms.values(), key=lambda form: form.minutes(kind)).minutes(kind)
    if budget is not None and budget < least:
        raise ValueError(f"--budget {budget:g}: the smallest form of {name} takes about {least:g} minutes here")
    fits = [form for form, each in forms.items() if each.minutes(kind) <= (budget or max(DEFAULT_BUDGET[kind], least))]
    return max(fits, key=lambda form: forms[form].minutes(kind))


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of an experiment."""

    name: str
    form: str
    claim: str
    holds: bool | None  # None: no verdict
    verdict: str  # holds, does not hold, or why there is no verdict
    figures: Mapping[str, Any]
    done: int
    trials: int
    seeds: int | None  # None: no trial names its seed
    device: str
    machine: str
    seconds: float  # of this call
    cpu_seconds: float  # of all finished trials
    folder: Path


def perform(
    name: str,
    form: str,
    folder: Path,
    *,
    device: str = "auto",
    jobs: int | None = None,
    on: str = "here",
    budget: float | None = None,
    data: str | None = None,
    tell: Callable[[str], object] = lambda line: None,
) -> Outcome:
    """Run a form of an experiment, or continue it. Writes results.jsonl, claim.json and plot.png into its folder."""
    begin, place = time.monotonic(), device_of(device)
    each = experiment(name)
    if data is not None and not accepts_data(each.trials):
        raise ValueError(f"--data: {name} generates its own data; leave --data out")
    if data is not None:
        getattr(each, "check_data", check_data)(data)
    values = each.FORMS[form].values | ({} if data is None else {"data": data})
    every = Trials(each.trials(**values), each.work, folder, str(place))
    larger = list(each.FORMS)[list(each.FORMS).index(form) + 1 :]
    more = f" (larger: {', '.join(larger)})" if larger else ""
    tell(f"{name}, the {form} form{more}, in {folder}")
    until = begin + 60 * budget if budget is not None else math.inf
    rows = every.perform(default_jobs(place.type, jobs), on, until, tell)
    total = len(every.trials)
    done = total - len(every.remaining)
    failed = {row["trial"]: row["failed"] for row in rows if "failed" in row and not getattr(each, "DIVERGES", False)}
    holds, verdict, figures = None, "unfinished", dict[str, Any]()
    if failed:
        verdict = "not checked: a training diverged"
        figures = {f"diverged: {trial}": why for trial, why in failed.items()}
    elif done == total:
        judged = each.claim(rows)
        figures = dict(judged.figures)
        holds = judged.holds if judged.learned and form != TINY else None
        verdict = TOO_SMALL if holds is None else "holds" if holds else "does not hold"
    outcome = Outcome(
        name=name,
        form=form,
        claim=each.CLAIM,
        holds=holds,
        verdict=verdict,
        figures=figures,
        done=done,
        trials=total,
        seeds=len({trial.values["seed"] for trial in every.trials if "seed" in trial.values}) or None,
        device=place.type,
        machine=torch.cuda.get_device_name(place) if place.type == "cuda" else f"{os.cpu_count()} CPU cores",
        seconds=time.monotonic() - begin,
        cpu_seconds=every.cpu_seconds,
        folder=folder,
    )
    content = {field: value for field, value in dataclasses.asdict(outcome).items() if field != "folder"}
    content["figures"] = {field: plain(value) for field, value in outcome.figures.items()}
    write(folder / "claim.json", json.dumps(content, indent=1) + "\n")
    if done == total and not failed:
        draw(each.plot, rows, folder / "plot.png", tell)
    return outcome


def accepts_data(trials: Callable[..., list[Trial]]) -> bool:
    """Whether the trials of an experiment read the path of --data."""
    return trials.data if isinstance(trials, TrialGrid) else "data" in inspect.signature(trials).parameters


def check_data(path: str) -> None:
    """Raise ValueError if the path contains no text. Experiments that do not read text define their own function."""
    if not any(row.example for row in TextFiles(path=path, unit="paragraph").raw()):
        raise ValueError(f"--data {path}: it contains no text; give a text file or a folder of text files")


def default_jobs(kind: str, jobs: int | None) -> int:
    """Return `jobs`, or if it is None one job per core, at most 8 on a GPU."""
    return jobs or min(os.cpu_count() or 1, 8 if kind == "cuda" else 2**10)


def draw(plot: Callable[[Sequence[Row]], Any], rows: Sequence[Row], path: Path, tell: Callable[[str], object]) -> None:
    """Save the plot if matplotlib is installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        tell("no plot without matplotlib: pip install 'anyformer[look]'")
        return
    plot(rows).savefig(path, dpi=110)
