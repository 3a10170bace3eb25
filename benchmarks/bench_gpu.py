"""`make bench-gpu`: training, decoding, prompts and first calls of anyformer and its peers on one CUDA GPU.

Each case runs in a separate process with empty compiler caches. Several cases compile at the same time; a lock lets
only one be timed. The most important cases start first; cases that do not start in time are listed as "not run".
Appends the figures to benchmarks/history.jsonl and writes docs/results/speed.md. If the environment variable OUT is
set, each figure is also written to that folder when it is measured (`history.py --add` reads the file on a different
machine). Exits with 1 if a ratio is lower than the page claims.

    make bench-gpu [ARGS="--minutes 8 --cases 'training: BERT' decoding --growth"]
    PYTHONPATH=src python benchmarks/bench_gpu.py --tiny     # test the script: small models on the CPU, not recorded
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import _decoding
import _training
import growth_gpu
import history
import torch
from _turns import scratch_folder
from history import Row

MEMORY = 125  # GB of device memory for all cases that run at once
MARK = "ROW "  # prefix of a row in the output of a child process


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    gb: int
    rows: list[str]  # names of its rows
    measure: Callable[[argparse.Namespace], Iterator[Row]]


def cases() -> list[Case]:
    """Return all cases, the most important first."""

    def training(size: str, group: str = "training") -> list[Case]:
        extra = _training.extra_names if group == "training" else lambda family, size: []
        return [
            Case(
                f"{group}: {family.title}, {size}",
                family.gb[size == "small"],
                [*_training.row_names(family, size, group).values(), *extra(family, size)],
                lambda options, family=family: _training.measure(family, size, group, options),  # type: ignore[misc]
            )
            for family in _training.FAMILIES
        ]

    decoding = [
        Case(f"decoding: {writer.title}", writer.gb, _decoding.row_names(writer),
             lambda options, writer=writer: _decoding.measure(writer, options))  # type: ignore[misc]
        for writer in _decoding.WRITERS
    ]  # fmt: skip
    prompts = Case("prompts", 40, _decoding.prompt_names(), _decoding.measure_prompts)
    growth = Case("growth", 60, [], growth_gpu.measure)
    full, small, own = training("full"), training("small"), training("full", "own loop")
    return [decoding[0], prompts, *full[:6], *decoding[1:3], *own[:6], *small[:6], *full[6:], *decoding[3:], *own[6:],
            *small[6:], growth]  # fmt: skip


class Child:
    """A process that measures one case, and a thread that reads its rows."""

    def __init__(self, case: Case, options: argparse.Namespace, folder: Path, on_row: Callable[[Row], None]) -> None:
        self.case, self.on_row, self.found = case, on_row, set[str]()
        stem = re.sub(r"\W+", "-", case.name)  # no spaces: the path is part of the compiler's command line
        self.log = folder / f"{stem}.log"
        caches = {name: str(folder / stem / name) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
        command = [
            sys.executable, __file__, "--child", case.name, "--lock", str(folder / "lock"),
            "--until", str(options.until), "--device", options.device, *(["--tiny"] if options.tiny else []),
        ]  # fmt: skip
        env = {**os.environ, **caches, "TORCHINDUCTOR_COMPILE_THREADS": "3", "OMP_NUM_THREADS": "2"}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=env, start_new_session=True
            )
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(MARK):
                row = Row(**json.loads(line.removeprefix(MARK)))
                self.found.add(row.name)
                self.on_row(row)

    def end(self) -> str:
        """End the process; return why rows may be missing."""
        late = self.process.poll() is None
        if late:
            os.killpg(self.process.pid, signal.SIGKILL)  # includes compiler processes
        self.process.wait()
        self.thread.join()
        if late:
            return "no time left"
        last = self.log.read_text().strip().splitlines()[-1:] if self.process.returncode else []
        return f"failed: {last[0][:300]}" if last else "no time left" if not self.process.returncode else "failed"


class Report:
    """The rows measured so far; adding one prints it and rewrites the file in OUT."""

    def __init__(self, machine: str) -> None:
        self.machine, self.rows, self.lock = machine, list[Row](), threading.Lock()
        self.out = Path(os.environ["OUT"]) / "bench.json" if "OUT" in os.environ else None

    def add(self, row: Row) -> None:
        with self.lock:
            self.rows.append(row)
            print(" ".join(history.table_line(row, False).strip("| ").split()), f"({row.name})", flush=True)
            if self.out:
                commit = history.this_commit()
                run: dict[str, Any] = {"machine": self.machine, "torch": torch.__version__}
                run |= {} if commit == "unknown" else {"commit": commit}
                run["rows"] = [dataclasses.asdict(row) for row in self.rows]
                self.out.write_text(json.dumps(run, indent=1))


def schedule(wanted: list[Case], options: argparse.Namespace, report: Report) -> None:
    """Run the cases in order, as many at once as fit the device memory and `options.at_once`."""
    waiting, running = list(wanted), list[Child]()

    def close(child: Child, why: str) -> None:
        running.remove(child)
        for name in child.case.rows:
            if name not in child.found:
                report.add(Row(name, "", None, None, "", None, None, None, None, why))
        if why.startswith("failed"):
            print(f"{child.case.name}: {why}\n{child.log.read_text()[-1500:]}", flush=True)
            options.failed.append(child.case.name)

    with scratch_folder() as folder:  # killed children do not delete their files in it
        while waiting or running:
            for child in [child for child in running if child.process.poll() is not None]:
                close(child, child.end())
            over = time.time() > options.until
            for case in list(waiting) if not over else ():
                room = MEMORY - sum(child.case.gb for child in running)
                if len(running) < options.at_once and (case.gb <= room or not running):
                    waiting.remove(case)
                    running.append(Child(case, options, Path(folder), report.add))
            if over:
                for child in list(running):
                    close(child, child.end())
                for case in waiting:
                    for name in case.rows:
                        report.add(Row(name, "", None, None, "", None, None, None, None, "no time left"))
                return
            time.sleep(0.2)


def run_here(wanted: list[Case], options: argparse.Namespace, report: Report) -> None:
    """Run the cases one after another in this process. For tiny models, whose imports take longer than measuring."""
    for case in wanted:
        try:
            for row in case.measure(options):
                report.add(row)
        except Exception:
            traceback.print_exc()
            options.failed.append(case.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8.0, help="time limit for all cases (default: 8)")
    parser.add_argument("--cases", nargs="*", default=[], metavar="START", help="cases whose names start with START")
    parser.add_argument("--growth", action="store_true", help="also measure how cost grows (growth_gpu.py)")
    parser.add_argument("--at-once", type=int, default=6, help="processes at the same time (default: 6)")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--no-record", action="store_true", help="do not change the history and the page")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    for name, kind in (("child", str), ("again", str), ("folder", Path), ("lock", Path), ("until", float)):
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    torch._dynamo.config.automatic_dynamic_shapes = False  # compile each shape separately, on both sides
    if options.tiny:
        options.device = "cpu"
    if options.again:
        print(_training.first_step_again(options.again, options.folder, options))
        return
    every = {case.name: case for case in cases()}
    if options.child:
        for row in every[options.child].measure(options):
            print(MARK + json.dumps(dataclasses.asdict(row)), flush=True)
        return
    wanted = [case for name, case in every.items()
              if (name != "growth" or options.growth)
              and (not options.cases or any(name.startswith(start) for start in options.cases))]  # fmt: skip
    if options.list:
        print("\n".join(case.name for case in wanted))
        return
    begin = time.time()
    options.until, options.failed = begin + 60 * options.minutes, []
    report = Report(torch.cuda.get_device_name() if options.device == "cuda" else "tiny models on a CPU")
    (run_here if options.tiny else schedule)(wanted, options, report)
    missed = [row.name for row in report.rows if row.missed]
    absent = [row.name for row in report.rows if row.ours is None]
    measured = len(report.rows) - len(absent)
    print(f"{report.machine}: {measured} rows, {len(missed)} goals missed, {time.time() - begin:.0f} s")
    for title, names in (("missed", missed), ("not run", absent)):
        print(f"{title}: {'; '.join(names) or 'none'}")
    if not options.tiny and not options.no_record:
        history.finish(report.rows, report.machine)
    options.failed += [row.name for row in report.rows if row.name.startswith("exactness") and row.missed]
    options.failed += [row.name for row in report.rows if "first losses differ" in row.note]
    if options.failed:
        sys.exit(f"failed: {'; '.join(options.failed)}")


if __name__ == "__main__":
    main()
