"""Small mistakes, put into a copy of the sources one at a time: which of them does no test see?

    python tests/mutants.py --number 150 --seed 0 --jobs 2
    python tests/mutants.py --only generation/beams.py --number 20
    python tests/mutants.py --only state.py:171            every mistake on that line

First every test runs as it is, once, and the lines that it runs are written down (kept in the temporary folder until
the sources or the tests change). A mistake is then tried by the tests that run its lines, quickest first, up to the
first that fails; where none is known to (defaults, what another process runs), by those that run anything of the file.
A mistake that changes nothing stands with the reason in mutants.toml. Every test process is a fork of this
one, which has imported torch and transformers, and imports anyformer from the copy.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import inspect
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mistakes import Mistake, mistakes

REPO = Path(__file__).resolve().parents[1]
SOURCES = Path("src/anyformer")
AREAS = ("generation/*.py", "data/*.py", "train/*.py", "objectives/*.py", "state.py", "weights/rules.py")
TESTS = (
    *(f"tests/{area}/test_*.py" for area in ("generation", "objectives", "data", "train", "weights", "evaluate")),
    "tests/cli/test_generate.py", "tests/families/test_generation.py", "tests/families/test_loading.py",
)  # fmt: skip
# what compilers or other processes run cannot be watched: these are the tests of these files, whatever the line
OWN = {"generation/fast.py": "tests/generation/test_fast.py", "train/parallel.py": "tests/train/test_parallel.py",
       "train/shard.py": "tests/train/test_parallel.py"}  # fmt: skip
# of all families a decoder, a pair and a recurrence; nothing compiled, which costs many seconds a test
FEW = "(not test_generation and not test_loading or GPT2LMHeadModel or T5ForConditionalGeneration or MambaForCausalLM)"
FEW += " and not compil and not one_graph and not g5 and not test_real_data and not test_recipes"
IMPORTED = ("torch", "torch._dynamo", "transformers", "transformers.generation", "tokenizers", "numpy", "matplotlib")
KEPT = Path(tempfile.gettempdir()) / "anyformer-mutants"  # which lines each test runs
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "ANYFORMER_FAST": "1"}

# -- tests, in forks --------------------------------------------------------------------------------------------------


class Work:
    """Tests to run in a copy, in a process of their own."""

    seconds = 900.0
    plugin: object = None

    def arguments(self, place: Path) -> list[str]:
        raise NotImplementedError

    def done(self, place: Path, code: int) -> None:
        raise NotImplementedError

    def start(self, place: Path) -> int:
        arguments = self.arguments(place)
        child = os.fork()
        if child:
            return child
        code = 1
        try:
            os.setsid()  # so that it can be killed with all that it starts
            null = os.open(os.devnull, os.O_RDWR)
            for handle in (0, 1, 2):
                os.dup2(null, handle)
            os.chdir(place)
            os.environ["PYTHONPATH"] = str(place / "src")
            sys.path.insert(0, str(place / "src"))
            plain = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--basetemp={place.parent / 'scratch'}"]
            chosen = ["-m", "not slow and not real", "-k", FEW, "--timeout", "120"]
            code = int(pytest.main([*plain, *chosen, *arguments], [self.plugin] if self.plugin else []))
        finally:
            os._exit(code)


def run(places: Sequence[Path], works: Sequence[Work]) -> None:
    """All of it, as much at once as there are copies."""
    waiting, free, running = list(reversed(works)), list(places), dict[int, tuple[Work, Path, float]]()
    while waiting or running:
        while waiting and free:
            work, place = waiting.pop(), free.pop()
            running[work.start(place)] = work, place, time.monotonic() + work.seconds
        for child, (work, place, limit) in list(running.items()):
            found, status = os.waitpid(child, os.WNOHANG)
            if not found and time.monotonic() > limit:
                os.killpg(child, signal.SIGKILL)
                found, status = os.waitpid(child, 0)
            if found:
                work.done(place, os.waitstatus_to_exitcode(status))
                free.append(place)
                del running[child]
        time.sleep(0.05)


class Trace(Work):
    """Which lines each test of a file runs: a line of JSON for each that passes, with its seconds."""

    def __init__(self, file: str, kept: Path) -> None:
        self.file, self.kept, self.half, self.plugin = file, kept, kept.with_suffix(f".{os.getpid()}"), self
        self.lines: set[tuple[str, int]] = set()
        self.passed = False

    def arguments(self, place: Path) -> list[str]:
        self.half.touch()
        self.prefix = f"{place / SOURCES}{os.sep}"
        self.watched = {*map(str, sources(place))}
        return [self.file]

    def done(self, place: Path, code: int) -> None:
        self.half.rename(self.kept)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        self.lines, self.passed, began = set(), False, time.process_time()
        threading.settrace(self.called)
        sys.settrace(self.called)
        yield
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        if self.passed:
            ran: dict[str, list[int]] = {}
            for name, number in self.lines:
                ran.setdefault(name.removeprefix(self.prefix), []).append(number)
            with self.half.open("a") as file:
                file.write(json.dumps([item.nodeid, time.process_time() - began, ran]) + "\n")

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call":
            self.passed = report.passed

    def called(self, frame: Any, event: str, argument: Any) -> Any:
        """Functions alone: what a module runs when it is imported is no one test's."""
        code = frame.f_code
        return self.ran if code.co_flags & inspect.CO_OPTIMIZED and code.co_filename in self.watched else None

    def ran(self, frame: Any, event: str, argument: Any) -> Any:
        if event == "line":
            self.lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self.ran


def traces(places: Sequence[Path]) -> list[tuple[str, float, dict[str, list[int]]]]:
    """(test, seconds, {file: lines}) of every test that passes, quickest first."""
    KEPT.mkdir(exist_ok=True)
    here = places[0]
    base = b"".join(path.read_bytes() for path in sources(here))
    files = sorted({*(path for test in TESTS for path in here.glob(test))} - {here / test for test in OWN.values()})
    keys = [hashlib.sha256(base + f"{path.relative_to(here)}".encode() + path.read_bytes()) for path in files]
    kept = [KEPT / f"{key.hexdigest()}.jsonl" for key in keys]
    run(places, [Trace(str(a.relative_to(here)), b) for a, b in zip(files, kept, strict=True) if not b.exists()])
    return sorted((json.loads(line) for path in kept for line in path.open()), key=lambda one: one[1])


class Try(Work):
    """The tests that may see a mistake, as many of the quickest as take `budget` seconds, up to the first that does."""

    outcome = "survived"

    def __init__(self, mistake: Mistake, known: list[Any], options: argparse.Namespace) -> None:
        self.mistake, self.seconds, self.tests = mistake, options.timeout, ["-x"]
        lines = range(mistake.first, mistake.last + 1)
        near = [(test, cost) for test, cost, ran in known if any(n in lines for n in ran.get(mistake.file, ()))]
        budget = options.budget
        for test, cost in near or [(test, cost) for test, cost, ran in known if mistake.file in ran]:
            if budget > 0:
                self.tests.append(test)
            budget -= cost
        self.tests += [OWN[mistake.file]] if mistake.file in OWN else []

    def arguments(self, place: Path) -> list[str]:
        self.write(place, self.mistake.put_into((REPO / SOURCES / self.mistake.file).read_bytes()))
        return self.tests

    def done(self, place: Path, code: int) -> None:
        self.outcome = {0: "survived", -9: "out of time"}.get(code, "seen")
        self.write(place, (REPO / SOURCES / self.mistake.file).read_bytes())
        print(f"{self.outcome}: {self.mistake}", file=sys.stderr, flush=True)

    def write(self, place: Path, source: bytes) -> None:
        path = place / SOURCES / self.mistake.file
        path.write_bytes(source)
        for old in (path.parent / "__pycache__").glob(f"{path.stem}.*"):  # times and sizes may be the same
            old.unlink()


# -- the whole --------------------------------------------------------------------------------------------------------


def sources(root: Path) -> list[Path]:
    """The files that mistakes are made in."""
    return sorted(path for area in AREAS for path in (root / SOURCES).glob(area))


def drawn(only: Sequence[str], number: int, seed: int) -> list[Mistake]:
    """A sample of all mistakes in these places; of a line, all."""
    found = [m for path in sources(REPO) for m in mistakes(str(path.relative_to(REPO / SOURCES)), path.read_bytes())]
    if only:
        places = [place.partition(":") for place in only]
        found = [
            m for m in found
            if any(m.file.startswith(a) and (not line or m.first <= int(line) <= m.last) for a, _, line in places)
        ]  # fmt: skip
    if any(":" in place for place in only):
        return found
    return random.Random(seed).sample(found, min(number, len(found)))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--number", type=int, default=150, help="how many mistakes (150)")
    parser.add_argument("--seed", type=int, default=0, help="which (0)")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once (2)")
    parser.add_argument("--only", metavar="PATH[:LINE]", action="append", default=[], help="below src/anyformer")
    parser.add_argument("--budget", type=float, default=30, help="seconds of tests for one mistake (30)")
    parser.add_argument("--timeout", type=float, default=300, help="seconds after which a mistake counts as seen (300)")
    parser.add_argument("--list", action="store_true", help="the mistakes alone")
    options = parser.parse_args()
    sample = drawn(options.only, options.number, options.seed)
    if options.list:
        print(*sample, sep="\n")
        return 0
    os.environ.update(ENVIRONMENT)
    for name in IMPORTED:
        importlib.import_module(name)
    same = tomllib.loads((REPO / "tests" / "mutants.toml").read_text()).get("same", [])
    explained = {(one["file"], one["line"], one["old"], one["new"]): one["why"] for one in same}
    with tempfile.TemporaryDirectory(prefix="anyformer-mutants-") as folder:
        places = [Path(folder) / str(n) / "copy" for n in range(options.jobs)]
        for place in places:  # what the tests need of the checkout
            ignored = shutil.ignore_patterns("__pycache__", ".*", "runs", "shared", "docs", "build", "dist")
            shutil.copytree(REPO, place, ignore=ignored)
        known = traces(places)
        tried = [Try(mistake, known, options) for mistake in sample]
        run(places, [work for work in tried if len(work.tests) > 1])
    survivors = [work.mistake for work in tried if work.outcome == "survived"]
    unknown = [mistake for mistake in survivors if mistake.key not in explained]
    late = sum(work.outcome == "out of time" for work in tried)
    print(f"{len(sample)} mistakes, {len(survivors)} survived ({len(survivors) / max(len(sample), 1):.1%}), ", end="")
    print(f"{len(survivors) - len(unknown)} of them explained; {late} ran out of time")
    for mistake in sorted(survivors, key=str):
        print(f"{mistake}    {explained.get(mistake.key, 'NOT EXPLAINED')}")
    return int(bool(unknown))


if __name__ == "__main__":
    sys.exit(main())
