"""Trials, each in its own folder. Several run at once, and finished trials are not run again.

A trial is a name and JSON values. A work function returns its rows, which are written to the trial's folder at the end.
results.jsonl contains the rows of all finished trials in the order of the trials, so it does not depend on scheduling.
For the same reason a trial on a CPU uses one thread.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import json
import math
import multiprocessing
import os
import shutil
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
from anyformer.inputs.optional_library import import_optional
from anyformer.runtime.processes import end_with_parent
from anyformer.train.progress import Metrics
from anyformer.train.run import Run
from anyformer.train.start import setup
from anyformer.train.trainer import Callback, Trainer
from anyformer.weights.manifest import atomic_folder

Values = dict[str, Any]  # JSON values
Row = dict[str, Any]
ERROR = "error.txt"  # in the folder of a failed trial
CPU_SECONDS = "cpu_seconds.txt"  # in the folder of a finished trial
RETRIES = 3  # restarts of a trial whose process was killed


class Trial(NamedTuple):
    """The name and the values of a trial."""

    name: str  # also the name of its folder
    values: Values


class TrialGrid:
    """The trials of an experiment as data: one for every combination of some values.

    >>> trials = TrialGrid("{kind}-{seed}", kind=("bert", "gpt"), seed="seeds")
    >>> [trial.name for trial in trials(width=16, seeds=2)]
    ['bert-0', 'bert-1', 'gpt-0', 'gpt-1']
    >>> trials(width=16)[1].values
    {'kind': 'gpt', 'seed': 0, 'width': 16}
    >>> trials = TrialGrid("{size}-{seed}", size="sizes", seed="seeds", where=lambda each: each["size"] > each["seed"])
    >>> [trial.name for trial in trials(sizes=[1, 2], seeds=2)]
    ['1-0', '2-0', '2-1']

    An axis is a sequence of values, or names the form's value that lists or counts them (default: one). The form's
    other values are part of every trial, and so is the result of `derive`, a function of a trial's values. If `where`
    is given, only combinations for which it returns True are trials. With `data`, trials have the path of --data or
    None. Spaces in names become dashes.
    """

    def __init__(
        self,
        name: str,
        *,
        data: bool = False,
        derive: Callable[[Values], Values] | None = None,
        where: Callable[[Values], bool] | None = None,
        **axes: Any,
    ) -> None:
        self.name, self.data, self.derive, self.where, self.axes = name, data, derive, where, axes

    def __call__(self, **values: Any) -> list[Trial]:
        listed = [values.pop(axis, 1) if isinstance(axis, str) else axis for axis in self.axes.values()]
        if self.data:
            values.setdefault("data", None)
        trials = []
        for chosen in itertools.product(*(range(each) if isinstance(each, int) else each for each in listed)):
            each = dict(zip(self.axes, chosen, strict=True)) | values
            if self.where and not self.where(each):
                continue
            each |= self.derive(each) if self.derive else {}
            trials.append(Trial(self.name.format(**each).replace(" ", "-"), each))
        return trials


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a trial runs: its own folder, the folder shared by all trials, and a device."""

    folder: Path
    shared: Path
    device: str

    def train(self, run: Run, *callbacks: Callback, name: str = "run") -> Trainer:
        """Train a run. A restarted trial resumes it. With callbacks it starts from step 0, because their
        measurements are not saved."""
        folder = self.folder / name
        if callbacks and folder.is_dir():
            shutil.rmtree(folder)
        begun = (folder / "run.json").is_file()
        return setup(
            run, folder, resume=begun, device=self.device, callbacks=[Metrics(), *callbacks], records=self.shared
        ).fit()

    def texts(self, name: str, make: Callable[[], Sequence[str]]) -> TextFiles:
        """Return generated texts, one per line, from a shared file that the first trial writes."""
        path = self.shared / f"{name}.txt"
        self.shared.mkdir(parents=True, exist_ok=True)
        with FileLock(self.shared / f".{name}.lock"):
            if not path.is_file():
                write(path, "\n".join(make()) + "\n")
        return TextFiles(path=str(path), unit="line")

    def data(self, name: str, make: Callable[[Path], object]) -> str:
        """Let the first trial generate the folder `name` in a shared data folder. Return the data folder, as recipes
        expect it."""
        home = self.shared / "generated"
        home.mkdir(parents=True, exist_ok=True)
        with FileLock(home / f".{name}.lock"):
            if not (home / name).is_dir():
                with atomic_folder(home / name) as folder:
                    make(folder)
        return str(home)


Work = Callable[[Values, Place], list[Row]]  # a module-level function, so that other processes can import it


# -- one trial --------------------------------------------------------------------------------------------------------


def run_trial(work: Work, values: Values, place: Place) -> None:
    """Run a trial and write its rows. If a training diverges, its row has "failed". Any other error is written to the
    trial's folder, and the other trials continue."""
    threads, begin = torch.get_num_threads(), time.process_time()
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
    write(place.folder / CPU_SECONDS, f"{time.process_time() - begin:.2f}\n")
    write(place.folder / "rows.jsonl", "".join(line(row) for row in rows))


def line(row: Row) -> str:
    return json.dumps({name: plain(value) for name, value in row.items()}) + "\n"


def plain(value: Any) -> Any:
    """Return a value that strict JSON allows: null instead of NaN and infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write(path: Path, text: str) -> None:
    """Write a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, "utf-8")
    os.replace(temporary, path)


def read(path: Path) -> list[Row]:
    return [json.loads(text) for text in path.read_text("utf-8").splitlines()]


# -- all trials -------------------------------------------------------------------------------------------------------


class Trials:
    """The trials of one folder; some may be finished."""

    def __init__(self, trials: Sequence[Trial], work: Work, folder: Path, device: str) -> None:
        self.trials, self.work, self.folder, self.device = list(trials), work, folder, device
        check_free(folder, "--out DIR names one", marks=("trials",))
        names = [trial.name for trial in trials]
        if repeated := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two trials have the name {repeated}; names must differ")
        for trial in trials:
            path = self.place(trial).folder / "trial.json"
            if path.is_file() and json.loads(path.read_text("utf-8")) != json.loads(line(trial.values)):
                raise ValueError(f"{path.parent} has a trial with different values; choose another --out DIR")

    def place(self, trial: Trial) -> Place:
        return Place(self.folder / "trials" / trial.name, self.folder / "shared", self.device)

    def is_done(self, trial: Trial) -> bool:
        return (self.place(trial).folder / "rows.jsonl").is_file()

    @property
    def remaining(self) -> list[Trial]:
        return [trial for trial in self.trials if not self.is_done(trial)]

    @property
    def cpu_seconds(self) -> float:
        """The CPU time of all finished trials."""
        paths = [self.place(trial).folder / CPU_SECONDS for trial in self.trials if self.is_done(trial)]
        return sum(float(path.read_text("utf-8")) for path in paths if path.is_file())

    def rows(self) -> list[Row]:
        """Return the rows of all finished trials: name, values and measurements."""
        return [
            {"trial": trial.name, **trial.values, **row}
            for trial in self.trials
            if self.is_done(trial)
            for row in read(self.place(trial).folder / "rows.jsonl")
        ]

    def perform(
        self,
        jobs: int = 1,
        on: str = "here",
        until: float = math.inf,
        tell: Callable[[str], object] = lambda line: None,
    ) -> list[Row]:
        """Run the remaining trials, `jobs` at once, in processes on this machine or `on` "ray". Start no trial after
        `until` (by time.monotonic())."""
        for trial in self.remaining:
            write(self.place(trial).folder / "trial.json", line(trial.values))
        total, begin, errors = len(self.remaining), time.monotonic(), list[str]()
        for number, trial in enumerate(RUNNERS[on](self, max(jobs, 1), until), 1):
            self.write()
            outcome = "done"
            if not self.is_done(trial):
                outcome = (self.place(trial).folder / ERROR).read_text("utf-8").strip().splitlines()[-1]
                errors.append(f"{trial.name}: {outcome.removeprefix('ValueError: ')}")
            tell(f"{trial.name}: {outcome}, {number} of {total}, {time.monotonic() - begin:.0f} s")
        self.write()
        if errors:
            more = f" (and {len(errors) - 1} more; each has an {ERROR})" if len(errors) > 1 else ""
            raise ValueError(f"{errors[0]}{more}")
        return self.rows()

    def write(self) -> None:
        write(self.folder / "results.jsonl", "".join(map(line, self.rows())))


Runner = Callable[[Trials, int, float], Iterator[Trial]]  # yields each trial when it is done


def run_here(trials: Trials, jobs: int, until: float) -> Iterator[Trial]:
    """Run trials one after another in this process, or several at once in other processes."""
    if jobs > 1 and len(trials.remaining) > 1:
        yield from run_in_processes(trials, jobs, until)
        return
    for trial in trials.remaining:
        if time.monotonic() < until:
            run_trial(trials.work, trial.values, trials.place(trial))
            yield trial


def schedule(
    trials: Trials, jobs: int, until: float, begin: Callable[[Trial], Any], wait: Callable[[list[Any]], Sequence[Any]]
) -> Iterator[Trial]:
    """Run `jobs` trials at once: `begin` returns a handle, `wait` returns handles of finished trials."""
    waiting, running = list(trials.remaining), dict[Any, Trial]()
    while waiting or running:
        while waiting and len(running) < jobs and time.monotonic() < until:
            trial = waiting.pop(0)
            running[begin(trial)] = trial
        if not running:
            return
        for handle in wait(list(running)):
            yield running.pop(handle)


def run_in_processes(trials: Trials, jobs: int, until: float) -> Iterator[Trial]:
    """Run trials in a process pool. If a process is killed, the pool breaks and the unfinished trials start again."""

    def begin(trial: Trial) -> Any:
        return pool.submit(run_trial, trials.work, trial.values, trials.place(trial))

    def wait(handles: list[Any]) -> list[Any]:
        done = concurrent.futures.wait(handles, return_when="FIRST_COMPLETED").done
        for handle in done:
            handle.result()
        return list(done)

    for _ in range(RETRIES + 1):
        with concurrent.futures.ProcessPoolExecutor(
            jobs, multiprocessing.get_context("spawn"), initializer=end_with_parent, initargs=(os.getpid(),)
        ) as pool:
            try:
                yield from schedule(trials, jobs, until, begin, wait)
                return
            except BrokenProcessPool:
                continue
    raise ValueError(
        f"processes of these trials were killed {RETRIES + 1} times; if memory is short, use fewer than {jobs} jobs"
    )


def run_on_ray(trials: Trials, jobs: int, until: float) -> Iterator[Trial]:
    """Run trials in Ray workers, on this machine or on a cluster (RAY_ADDRESS) that shares the folder. Ray restarts the
    trials of killed workers."""
    engine = import_optional("ray", "ray", "--on ray")
    started = not engine.is_initialized()
    if started:
        start(engine, jobs)
    try:
        gpus = 1.0 / jobs if trials.device.startswith("cuda") else 0
        task = engine.remote(max_retries=RETRIES, num_cpus=1, num_gpus=gpus)(run_trial)

        def begin(trial: Trial) -> Any:
            return task.remote(trials.work, trial.values, trials.place(trial))

        def wait(handles: list[Any]) -> list[Any]:
            done, _ = engine.wait(handles)
            engine.get(done)
            return done

        yield from schedule(trials, jobs, until, begin, wait)
    finally:
        if started:
            engine.shutdown()


def start(engine: Any, jobs: int) -> None:
    """Start Ray, with retries: its processes may not start within 30 seconds on a busy machine."""
    address = os.environ.get("RAY_ADDRESS")
    sizes = {} if address else {"num_cpus": jobs, "include_dashboard": False}
    for retries in reversed(range(RETRIES)):
        try:
            engine.init(address=address, log_to_driver=False, logging_level="error", **sizes)
            return
        except Exception as error:  # Ray raises many types
            engine.shutdown()
            if address or not retries:
                raise OSError(f"Ray did not start: {str(error).splitlines()[0]}") from error


RUNNERS: dict[str, Runner] = {"here": run_here, "ray": run_on_ray}
