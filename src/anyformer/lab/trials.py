"""Many pieces of work, each in a folder of its own: several go on at once, and what is done is not done again.

A trial is a name and plain values; what is done with them is a function that gives rows. They are written to the
trial's folder when it ends, and results.jsonl has the rows of all trials that are done, in the order of the trials, so
that it is the same file however they were dealt out. On a CPU a trial has one thread, for the same reason.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import math
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple

import torch
from filelock import FileLock

from anyformer.checkpoint import check_free
from anyformer.data import TextFiles
from anyformer.kernels.hardware import need
from anyformer.runtime.processes import end_with_parent
from anyformer.train.progress import Metrics
from anyformer.train.run import Run
from anyformer.train.start import setup
from anyformer.train.trainer import Callback, Trainer

Values = dict[str, Any]  # plain ones: numbers, texts, lists
Row = dict[str, Any]
ERROR = "error.txt"  # of a trial that could not be done
TIMES = 3  # that a trial is begun anew whose process was killed


class Trial(NamedTuple):
    """One piece of work."""

    name: str  # of its folder
    values: Values


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a trial works: a folder of its own, one that all trials share, and a device."""

    folder: Path
    shared: Path
    device: str

    def train(self, run: Run, *callbacks: Callback, name: str = "run") -> Trainer:
        """An ordinary training, which goes on where it was left when the trial was begun before."""
        folder = self.folder / name
        begun = (folder / "run.json").is_file()
        return setup(
            run,
            folder,
            resume=begun,
            device=self.device,
            callbacks=[Metrics(), *callbacks],
            records=self.shared,
        ).fit()

    def texts(self, name: str, make: Callable[[], Sequence[str]]) -> TextFiles:
        """Texts that are made up, a line each, in a file that whichever trial is first writes."""
        path = self.shared / f"{name}.txt"
        self.shared.mkdir(parents=True, exist_ok=True)
        with FileLock(self.shared / f".{name}.lock"):
            if not path.is_file():
                write(path, "\n".join(make()) + "\n")
        return TextFiles(path=str(path), unit="line")


Work = Callable[[Values, Place], list[Row]]  # known by name to other processes: a function of a module


# -- one --------------------------------------------------------------------------------------------------------------


def one(work: Work, values: Values, place: Place) -> None:
    """Does a trial and writes its rows; a training whose numbers are not finite any more is a result too. Any other
    error is written beside them, and the other trials go on."""
    threads = torch.get_num_threads()
    if not place.device.startswith("cuda"):
        torch.set_num_threads(1)
    (place.folder / ERROR).unlink(missing_ok=True)
    try:
        rows = work(values, place)
    except FloatingPointError as error:
        rows = [{"failed": str(error)}]
    except Exception:
        write(place.folder / ERROR, traceback.format_exc())
        return
    finally:
        torch.set_num_threads(threads)
    write(place.folder / "rows.jsonl", "".join(line(row) for row in rows))


def line(row: Row) -> str:
    return json.dumps({name: plain(value) for name, value in row.items()}) + "\n"


def plain(value: Any) -> Any:
    """What every reader of JSON takes: null for what is no number."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write(path: Path, text: str) -> None:
    """The file is there when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, "utf-8")
    os.replace(temporary, path)


def read(path: Path) -> list[Row]:
    return [json.loads(text) for text in path.read_text("utf-8").splitlines()]


# -- all --------------------------------------------------------------------------------------------------------------


class Trials:
    """The trials of one folder, some of which may be done."""

    def __init__(self, trials: Sequence[Trial], work: Work, folder: Path, device: str) -> None:
        self.trials, self.work, self.folder, self.device = list(trials), work, folder, device
        check_free(folder, "--out DIR names one", marks=("trials",))
        names = [trial.name for trial in trials]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two trials are called {twice}; each needs a name of its own")
        for trial in trials:
            path = self.place(trial).folder / "trial.json"
            if path.is_file() and json.loads(path.read_text("utf-8")) != json.loads(line(trial.values)):
                raise ValueError(f"{path.parent} holds a trial with other values; --out DIR starts anew")

    def place(self, trial: Trial) -> Place:
        return Place(self.folder / "trials" / trial.name, self.folder / "shared", self.device)

    def done(self, trial: Trial) -> bool:
        return (self.place(trial).folder / "rows.jsonl").is_file()

    @property
    def left(self) -> list[Trial]:
        return [trial for trial in self.trials if not self.done(trial)]

    def rows(self) -> list[Row]:
        """Of all that are done: a trial's name and values, and what was measured."""
        return [
            {"trial": trial.name, **trial.values, **row}
            for trial in self.trials
            if self.done(trial)
            for row in read(self.place(trial).folder / "rows.jsonl")
        ]

    def perform(
        self,
        jobs: int = 1,
        on: str = "here",
        until: float = math.inf,
        tell: Callable[[str], object] = lambda line: None,
    ) -> list[Row]:
        """Does what is left, `jobs` at once, in processes of this machine or `on` "ray"; after `until` (of
        time.monotonic()) nothing more is begun."""
        for trial in self.left:
            write(self.place(trial).folder / "trial.json", line(trial.values))
        left, begin, wrong = len(self.left), time.monotonic(), list[str]()
        for number, trial in enumerate(WAYS[on](self, max(jobs, 1), until), 1):
            self.write()
            ended = "done"
            if not self.done(trial):
                ended = (self.place(trial).folder / ERROR).read_text("utf-8").strip().splitlines()[-1]
                wrong.append(f"{trial.name}: {ended.partition(': ')[2] or ended}")
            tell(f"{trial.name}: {ended}, {number} of {left}, {time.monotonic() - begin:.0f} s")
        self.write()
        if wrong:
            more = f" (and {len(wrong) - 1} more; each has an {ERROR})" if len(wrong) > 1 else ""
            raise ValueError(f"{wrong[0]}{more}")
        return self.rows()

    def write(self) -> None:
        write(self.folder / "results.jsonl", "".join(map(line, self.rows())))


Way = Callable[[Trials, int, float], Iterator[Trial]]  # gives each trial when it is done


def here(trials: Trials, jobs: int, until: float) -> Iterator[Trial]:
    """In this process one after another, or in several others."""
    if jobs > 1 and len(trials.left) > 1:
        yield from processes(trials, jobs, until)
        return
    for trial in trials.left:
        if time.monotonic() < until:
            one(trials.work, trial.values, trials.place(trial))
            yield trial


def dealt(
    trials: Trials, jobs: int, until: float, begin: Callable[[Trial], Any], ended: Callable[[list[Any]], Sequence[Any]]
) -> Iterator[Trial]:
    """`jobs` trials at once: `begin` gives a handle, `ended` waits and gives those that are done."""
    waiting, under_way = list(trials.left), dict[Any, Trial]()
    while waiting or under_way:
        while waiting and len(under_way) < jobs and time.monotonic() < until:
            trial = waiting.pop(0)
            under_way[begin(trial)] = trial
        if not under_way:
            return
        for handle in ended(list(under_way)):
            yield under_way.pop(handle)


def processes(trials: Trials, jobs: int, until: float) -> Iterator[Trial]:
    """A process that is killed takes the others with it: what they were at is begun anew."""

    def begin(trial: Trial) -> Any:
        return pool.submit(one, trials.work, trial.values, trials.place(trial))

    def ended(handles: list[Any]) -> list[Any]:
        done = concurrent.futures.wait(handles, return_when="FIRST_COMPLETED").done
        for handle in done:
            handle.result()
        return list(done)

    for _ in range(TIMES + 1):
        with concurrent.futures.ProcessPoolExecutor(
            jobs, multiprocessing.get_context("spawn"), initializer=end_with_parent, initargs=(os.getpid(),)
        ) as pool:
            try:
                yield from dealt(trials, jobs, until, begin, ended)
                return
            except BrokenProcessPool:
                continue
    raise ValueError(f"processes of these trials were killed {TIMES + 1} times; is there too little memory for {jobs}?")


def ray(trials: Trials, jobs: int, until: float) -> Iterator[Trial]:
    """Workers of Ray, on this machine or on a cluster (RAY_ADDRESS) that shares the folder; it begins anew what a
    killed worker was at."""
    engine = need("ray", "ray", "--on ray")
    own = not engine.is_initialized()
    if own:
        start(engine, jobs)
    try:
        gpus = 1.0 / jobs if trials.device.startswith("cuda") else 0
        task = engine.remote(max_retries=TIMES, num_cpus=1, num_gpus=gpus)(one)

        def begin(trial: Trial) -> Any:
            return task.remote(trials.work, trial.values, trials.place(trial))

        def ended(handles: list[Any]) -> list[Any]:
            done, _ = engine.wait(handles)
            engine.get(done)
            return done

        yield from dealt(trials, jobs, until, begin, ended)
    finally:
        if own:
            engine.shutdown()


def start(engine: Any, jobs: int) -> None:
    """Ray gives its processes 30 seconds to begin, which a busy machine may not have: then once more."""
    address = os.environ.get("RAY_ADDRESS")
    sizes = {} if address else {"num_cpus": jobs, "include_dashboard": False}
    for left in reversed(range(TIMES)):
        try:
            engine.init(address=address, log_to_driver=False, logging_level="error", **sizes)
            return
        except Exception as error:  # its own kinds, and plain ones
            engine.shutdown()
            if address or not left:
                raise OSError(f"Ray did not start: {str(error).splitlines()[0]}") from error


WAYS: dict[str, Way] = {"here": here, "ray": ray}
