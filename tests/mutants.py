"""Mutation testing: put small mistakes into a copy of the sources, one at a time, and list those that no test finds.

    python tests/mutants.py --number 150 --seed 0 --jobs 2
    python tests/mutants.py --only generation/beams.py --number 20
    python tests/mutants.py --only runtime/state.py:171            every mistake on that line
    python tests/mutants.py --areas media --seed 2         different sources and their tests
    python tests/mutants.py --areas wide --nearest --seed 6        only the tests nearest to each file

First, every test runs once without mistakes to record the lines that it runs. Then each mistake is tried with the tests
that run its lines, the fastest first, until one fails; then with tests that run other lines of the file (the mistake
may be in a default, a cached value or code that a subprocess runs). At the end, the tests that failed run again without
a mistake. Mistakes that change nothing are listed with the reason in mutants.toml.

With --nearest, no lines are recorded: a mistake is tried with the tests that mirror, import or mention its module until
the budget is used. A run takes minutes instead of hours, but tests in other places may find some of the survivors.

Every test process is a fork of a process that has imported torch and transformers, and imports anyformer from the copy.
For a mistake in the body of a function, the parent has also imported the tests, and the fork replaces the function's
code. Results are kept in the temporary folder until the sources change, so that a stopped run can continue.
"""

from __future__ import annotations

import argparse
import ast
import collections
import functools
import gc
import hashlib
import importlib
import importlib.metadata
import inspect
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
import tomllib
import types
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mistakes import Mistake, mistakes

REPO = Path(__file__).resolve().parents[1]
SOURCES = Path("src/anyformer")
MEDIA_FAMILIES = (
    "autoencoder_kl", "clip", "conformer", "deit", "dit", "limoe", "llava", "mvit", "mvitv2", "parakeet", "perceiver",
    "reka", "reserve", "resnet", "shared/speech", "shared/vision", "swin", "swinv2", "torchaudio_conformer", "vatt",
    "vit", "wav2vec2", "wav2vec2_conformer", "whisper",
)  # fmt: skip
# area -> (prefixes of files in src/anyformer, tests to run)
AREAS = {
    "core": (
        ("generation/", "train/", "objectives/", "runtime/state.py", "runtime/stores.py", "weights/rules.py"),
        (
            *(f"tests/{area}/test_*.py" for area in ("generation", "objectives", "data", "train", "weights")),
            "tests/cli/test_generate.py", "tests/evaluate/test_eval.py", "tests/families/test_generation.py",
            "tests/families/test_whisper.py", "tests/planning/test_plan.py", "tests/tasks/test_transcribe.py",
        ),
    ),
    "media": (  # vision, speech, towers, tasks, look and lab
        (
            "tasks/", "look/", "lab/", "data/captions.py", "data/media.py", "generation/ctc.py",
            "generation/diffusion.py", "parts/grid/", "parts/condition.py", "parts/diffusion.py",
            *(f"inputs/{name}.py" for name in ("audio_features", "contact_sheet", "image", "recordings")),
            *(f"families/{name}.py" for name in MEDIA_FAMILIES),
            *(f"models/{name}.py" for name in ("autoencoder", "decoder_with_towers", "hidden_spans", "towers")),
            *(f"objectives/{name}.py" for name in (
                "contrast", "ctc", "diffuse", "draw", "hidden_spans", "images", "latents", "match", "recordings",
                "transcribe", "video",
            )),
            *(f"parts/embedding/{name}.py" for name in (
                "adaptive", "patches", "spectrogram", "subsampling", "waveform",
            )),
            "parts/convolution/tokens.py", "parts/head/contrastive.py", "parts/head/similarity.py",
        ),
        (
            *(f"tests/{area}/test_*.py" for area in ("tasks", "look", "lab")),
            *(f"tests/families/test_{name}.py" for name in (
                *MEDIA_FAMILIES, "config", "counts", "fields", "loading", "other_values",
            )),
            *(f"tests/inputs/test_{name}.py" for name in ("audio_features", "image", "processor")),
            *(f"tests/objectives/test_{name}.py" for name in (
                "diffuse", "draw", "hidden_spans", "images", "latents", "match", "recordings", "video",
            )),
            *(f"tests/parts/{name}.py" for name in (
                "embedding/test_adaptive", "convolution/test_tokens", "grid/test_layout",
            )),
            "tests/cli/test_look.py", "tests/generation/test_ctc.py",
            "tests/generation/test_diffusion.py", "tests/models/test_autoencoder.py", "tests/stacks/test_perceiver.py",
        ),
    ),
    "wide": (  # most of the library: use it with --nearest
        (
            "transforms/", "families/base/", "generation/", "runtime/", "tasks/", "counting/",
            "lab/", "parts/", "kernels/", "models/", "recipes/", "train/",
        ),
        ("tests/**/test_*.py",),
    ),
}  # fmt: skip
# code that runs in compilers or subprocesses cannot be traced: source file -> its tests, for every line
OWN = {"generation/fast.py": "tests/generation/test_fast.py", "train/parallel.py": "tests/train/test_parallel.py",
       "train/shard.py": "tests/train/test_parallel.py"}  # fmt: skip
FEW = " and ".join((
    # only one decoder and one encoder-decoder family; no compiled tests, which take many seconds; no real data, no git
    "(not test_generation or GPT2LMHeadModel or T5ForConditionalGeneration)",
    "not compil and not one_graph and not g5 and not test_real_data and not test_recipes and not folder_is_one_runs",
    # tests of all families: only image and audio families; of loading: outputs and files; of counts: published sizes
    "(not (test_loading or test_config or test_counts) or say_why or pictures_are_read or autoencoder or clip"
    " or conformer or deit or dit- or dittransformer or limoe or llava or parakeet or perceiver or reserve or resnet"
    " or swin or vatt or vit or wav2vec2 or whisper)",
    "(not test_loading or l1 or l5) and (not test_counts or every_named_description or pictures_are_read)",
    "not one_layer_of_each and not rows_keep_the_lines and not every_row_learns",
))  # fmt: skip
IMPORTED = ("torch", "torch._dynamo", "transformers", "transformers.generation", "tokenizers", "numpy", "matplotlib")
KEPT = Path(tempfile.gettempdir()) / "anyformer-mutants"  # lines that each test runs, and outcomes of mistakes
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "ANYFORMER_FAST": "99"}
STDERR = os.fdopen(os.dup(2), "w", buffering=1)  # still open in forks that redirect stderr

# -- tests, in forks --------------------------------------------------------------------------------------------------


class Work:
    """Tests to run in a copy of the repository and a separate process, round after round until a test fails."""

    seconds = 900.0  # CPU time limit
    patience = 1800.0  # wall time limit: a process that waits uses no CPU time
    rounds: list[list[str]]

    def begin(self, place: Path) -> None:
        self.failed = place.parent / "failed"  # names of failed tests, one per line
        self.failed.write_text("")

    def done(self, place: Path, code: int) -> None:
        raise NotImplementedError

    def start(self, place: Path) -> int:
        self.begin(place)
        child = os.fork()
        if child:
            return child
        code = 1
        try:
            os.setsid()  # so that it can be killed together with its subprocesses
            resource.setrlimit(resource.RLIMIT_CPU, (int(self.seconds), int(self.seconds)))
            null = os.open(os.devnull, os.O_RDWR)
            for handle in (0, 1, 2):
                os.dup2(null, handle)
            os.chdir(place)
            os.environ["PYTHONPATH"] = str(place / "src")
            sys.path.insert(0, str(place / "src"))
            tempfile.tempdir = str(place.parent)  # temporary files are deleted with the copy
            plain = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--basetemp={place.parent / 'scratch'}"]
            plain += ["-m", "not slow and not real", "-k", FEW]
            for tests in self.rounds:
                code = int(pytest.main([*plain, *tests], [self]))
                if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
                    break
                code = 0
        finally:
            os._exit(code)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            with self.failed.open("a") as file:
                file.write(f"{report.nodeid}\n")


def run(places: Sequence[Path], works: Iterable[Work]) -> None:
    """Run all works, one per copy at the same time."""
    waiting, free, running = [*works][::-1], [*places], dict[int, tuple[Work, Path, float]]()
    try:
        while waiting or running:
            while waiting and free:
                work, place = waiting.pop(), free.pop()
                running[work.start(place)] = work, place, time.monotonic() + work.patience
            for child, (work, place, limit) in list(running.items()):
                found, status = os.waitpid(child, os.WNOHANG)
                if not found and time.monotonic() > limit:
                    os.killpg(child, signal.SIGKILL)
                    found, status = os.waitpid(child, 0)
                if found:
                    del running[child]
                    work.done(place, os.waitstatus_to_exitcode(status))
                    free.append(place)
            time.sleep(0.05)
    finally:  # also after an interrupt
        for child in running:
            os.killpg(child, signal.SIGKILL)


class Trace(Work):
    """Records the lines that each test of a file runs: one line of JSON per passed test, with its seconds."""

    ENOUGH = 100  # stop tracing a function in a test after this many calls without a new line

    def __init__(self, file: str, kept: Path) -> None:
        self.rounds, self.kept, self.half = [[file]], kept, kept.with_suffix(f".{os.getpid()}")
        self.lines: set[tuple[str, int]] = set()
        self.calls: dict[int, int] = {}  # id of a code object -> calls since its last new line
        self.passed = False

    def begin(self, place: Path) -> None:
        super().begin(place)
        self.half.touch()
        self.prefix = f"{place / SOURCES}{os.sep}"

    def done(self, place: Path, code: int) -> None:
        self.half.rename(self.kept)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        self.lines, self.calls, self.passed, began = set(), {}, False, time.process_time()
        threading.settrace(self.called)
        sys.settrace(self.called)
        yield
        sys.settrace(None)
        threading.settrace(None)
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
        """Trace only functions: code that runs at import does not belong to a single test."""
        code = frame.f_code
        if not code.co_flags & inspect.CO_OPTIMIZED or not code.co_filename.startswith(self.prefix):
            return None
        calls = self.calls[id(code)] = self.calls.get(id(code), 0) + 1
        return self.ran if calls < self.ENOUGH else None

    def ran(self, frame: Any, event: str, argument: Any) -> Any:
        line = frame.f_code.co_filename, frame.f_lineno
        if event == "line" and line not in self.lines:
            self.lines.add(line)
            self.calls[id(frame.f_code)] = 0
        return self.ran


def file_of(test: str) -> str:
    return test.partition("::")[0]


def where(code: types.CodeType) -> tuple[str, int, str]:
    return code.co_filename, code.co_firstlineno, code.co_name


def traces(places: Sequence[Path], patterns: Iterable[str]) -> list[tuple[str, float, dict[str, list[int]]]]:
    """Return (test, seconds, {file: lines}) for every test that passes, the fastest first."""
    copy = places[0]  # the repository may change during the run
    files = sorted({*(path for test in patterns for path in copy.glob(test))} - {copy / test for test in OWN.values()})
    kept = [KEPT / f"{digest([*sources(copy), path], copy)}.jsonl" for path in files]
    run(places, [Trace(str(a.relative_to(copy)), b) for a, b in zip(files, kept, strict=True) if not b.exists()])
    return sorted((json.loads(line) for path in kept for line in path.open()), key=lambda one: one[1])


def tests_that_run(mistake: Mistake, known: list[Any], budget: float) -> tuple[list[str], float]:
    """Return the fastest tests that run the lines of a mistake, up to `budget` seconds, and their total seconds."""
    lines, spent = {*range(mistake.first, mistake.last + 1)}, 0.0
    of_file = [(test, cost, ran[mistake.file]) for test, cost, ran in known if mistake.file in ran]
    tests: list[str] = []
    for test, cost, _ in sorted(of_file, key=lambda one: lines.isdisjoint(one[2])):
        if spent > budget:
            break
        tests.append(test)
        spent += cost
    return tests + ([OWN[mistake.file]] if mistake.file in OWN else []), spent


def nearest_tests(file: str, tests: dict[str, str], most: int = 12) -> list[str]:
    """Return at most `most` of the files in `tests` ({name: text}), those closest to a source file first. A test is
    close if it is named after the file or one of its users, imports one of them, or mentions a name of the file."""
    *folders, stem = Path(file).with_suffix("").parts
    tree = ast.parse((REPO / SOURCES / file).read_text()).body
    defined = {stem, *(node.name for node in tree if isinstance(node, ast.FunctionDef | ast.ClassDef))}
    counts = collections.Counter(name for text in tests.values() for name in words_of(text) & defined)
    users = [path.relative_to(REPO / SOURCES).as_posix() for path in sources() if imports(path.read_text(), file)]
    named_after_users = {f"test_{Path(each).stem}" for each in users}

    def nearness(test: str) -> float:
        text, name, imported = tests[test], Path(test).stem, imports(tests[test], file)
        near = 2 * imported + sum(1 / counts[name] for name in words_of(text) & defined)  # rare names count more
        near += 0.5 * any(imports(text, user) for user in users) + 2 * (name in named_after_users)
        same_folder = Path(test).parts[1] == ("train" if folders[0] == "recipes" else folders[0])
        return near + 0.5 * (same_folder and near > 0) + 4 * (name == f"test_{stem}" and (imported or same_folder))

    near = {test: nearness(test) for test in tests}
    return [test for test in sorted(near, key=near.__getitem__, reverse=True) if near[test]][:most]


@functools.cache
def words_of(text: str) -> set[str]:
    return {*re.findall(r"\w+", text)}


def mentions(item: Any, names: Iterable[str]) -> bool:
    """Whether the source or the id of a test contains one of these names."""
    text = f"{item.nodeid} {inspect.getsource(item.obj)}".lower()
    return any(name.lower() in text for name in names)


@functools.cache
def imports(text: str, file: str) -> bool:
    """Whether Python code imports a file of src/anyformer."""
    module, _, name = ".".join(("anyformer", *Path(file).with_suffix("").parts)).rpartition(".")
    if name not in words_of(text):
        return False
    found = rf"^ *(from|import) {re.escape(module)}\.{name}\b|^ *from {re.escape(module)} import [^#\n]*\b{name}\b"
    return re.search(found, text, re.MULTILINE) is not None


class Clock:
    """Limits the CPU seconds of tests: `budget` for all tests, a third of it for the tests of one file."""

    def __init__(self, budget: float) -> None:
        self.budget, self.file, self.now = budget, "", 0.0
        self.spent = collections.defaultdict[str, float](float)

    def turn(self, file: str) -> None:
        """Start to count time for `file`."""
        before, self.now = self.now, time.process_time()
        self.spent[self.file] += self.now - before
        self.file = file

    def allows(self, item: Any) -> bool:
        """Whether there is time for a test. Also tears down fixtures that it does not need."""
        self.turn(file_of(item.nodeid))
        if sum(self.spent.values()) - self.spent[""] > self.budget or self.spent[self.file] > self.budget / 3:
            return False
        item.session._setupstate.teardown_exact(item)
        return True


class Try(Work):
    """Runs the tests that may find a mistake until one fails or `budget` CPU seconds are used."""

    outcome = "survived"
    seen_by: Sequence[str] = ()

    def __init__(self, mistake: Mistake, tests: list[str], seconds: float, place: Path, budget: float) -> None:
        self.mistake, self.tests, self.seconds, self.clock = mistake, tests, seconds, Clock(budget)
        self.digest = digest({place / file_of(test) for test in self.tests}, place)
        # the first round has only one file: importing it takes a second, and a test in it usually fails
        first = [test for test in self.tests if file_of(test) == file_of(self.tests[0])]
        rounds = first, [test for test in self.tests if test not in first]
        self.rounds = [["-x", *tests] for tests in rounds if tests]

    def pytest_collection_finish(self) -> None:
        self.clock.turn("")  # do not count the time of collecting tests

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: Any) -> bool | None:
        return None if self.clock.allows(item) else True  # True skips the test

    def begin(self, place: Path) -> None:
        super().begin(place)
        self.write(place, self.mistake.put_into((REPO / SOURCES / self.mistake.file).read_bytes()))

    def undo(self, place: Path) -> None:
        self.write(place, (REPO / SOURCES / self.mistake.file).read_bytes())

    def done(self, place: Path, code: int) -> None:
        self.undo(place)
        late = -signal.SIGKILL, -signal.SIGXCPU
        self.outcome = "survived" if code == 0 else "out of time" if code in late else "seen"
        if self.outcome == "seen":
            self.seen_by = self.failed.read_text().splitlines() or self.tests
        with tried().open("a") as file:
            line = self.mistake.start, str(self.mistake), self.outcome, self.seen_by, self.digest
            file.write(json.dumps(line) + "\n")
        print(f"{self.outcome}: {self.mistake}", file=STDERR)

    def write(self, place: Path, source: bytes) -> None:
        path = place / SOURCES / self.mistake.file
        path.write_bytes(source)
        for old in (path.parent / "__pycache__").glob(f"{path.stem}.*"):  # time and size of the source may be equal
            old.unlink()

    def known(self) -> bool:
        """Whether the outcome is known from an earlier run. Survivors are tried again if the tests have changed."""
        lines = map(json.loads, tried().read_text().splitlines())
        before = {(start, what): rest for start, what, *rest in lines}
        outcome, seen_by, tests = before.get((self.mistake.start, str(self.mistake)), ("", (), ""))
        if not outcome or (outcome == "survived" and tests != self.digest):
            return False
        self.outcome, self.seen_by = outcome, seen_by
        return True


class Sieve(Work):
    """Tries mistakes in the bodies of functions, each in a fork of a process that has imported the tests: the fork
    replaces the code of the function, without importing anything again. Mistakes that it cannot try and survivors keep
    no outcome and are tried by `Try`."""

    seconds, patience = 1e6, math.inf

    def __init__(self, works: Sequence[Try]) -> None:
        self.works = works
        self.rounds = [sorted({file_of(test) for work in works for test in work.tests})]

    def begin(self, place: Path) -> None:
        super().begin(place)
        self.place = place

    def done(self, place: Path, code: int) -> None:
        pass

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: Any) -> bool:
        functions: dict[tuple[str, int, str], list[types.FunctionType]] = {}
        gc.unfreeze()  # undo gc.freeze in conftest.py
        for each in gc.get_objects():
            if isinstance(each, types.FunctionType):
                functions.setdefault(where(each.__code__), []).append(each)
        items: dict[str, list[Any]] = {}
        for item in session.items:
            for name in (item.nodeid, file_of(item.nodeid)):
                items.setdefault(name, []).append(item)
        for work in self.works:
            path = SOURCES / work.mistake.file
            new = work.mistake.function((REPO / path).read_bytes(), self.place / path)
            same = functions.get(where(new), []) if new is not None else []
            if same and all(each.__code__.co_freevars == new.co_freevars for each in same):
                work.begin(self.place)
                tests = [item for test in work.tests for item in items.get(test, ())]
                names = work.mistake.definitions((REPO / path).read_bytes())
                if work.clock.budget < math.inf:  # run the most relevant tests first
                    near = {item for test in work.tests[:3] for item in items.get(test, ())}
                    named = {item for item in tests if mentions(item, names)}
                    tests.sort(key=lambda item, near=near, named=named: (item not in near) + (item not in named))
                code = self.run_changed(work, tests, same, new)
                # a survivor is tried again by `Try`: the function may have run during the import
                work.done(self.place, code) if code not in (0, 2) else work.undo(self.place)
        return True

    def run_changed(self, work: Try, tests: Sequence[Any], functions: Sequence[Any], code: types.CodeType) -> int:
        """Return 1 if a test fails, 0 if all pass, 2 if the tests could not run."""
        child, limit = os.fork(), time.monotonic() + work.patience
        if child:
            while not (ended := os.waitpid(child, os.WNOHANG))[0]:
                if time.monotonic() > limit:
                    os.killpg(child, signal.SIGKILL)
                time.sleep(0.01)
            return os.waitstatus_to_exitcode(ended[1])
        result = 2
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CPU, (int(work.seconds), int(work.seconds)))
            for function in functions:
                function.__code__ = code
            for test, after in zip(tests, (*tests[1:], None), strict=True):
                if work.clock.allows(test):
                    test.config.hook.pytest_runtest_protocol(item=test, nextitem=after)
                if self.failed.stat().st_size:
                    break
            result = int(self.failed.stat().st_size > 0)
        finally:
            os._exit(result)


class Control(Work):
    """Runs the tests that found mistakes on the unchanged sources, where they must pass."""

    def __init__(self, tests: Iterable[str]) -> None:
        self.rounds, self.wrong = [sorted(tests)], list[str]()

    def done(self, place: Path, code: int) -> None:
        self.wrong = self.failed.read_text().splitlines() or [f"pytest ended with {code}"] * bool(code)


# -- the command ------------------------------------------------------------------------------------------------------


def sources(checkout: Path = REPO) -> list[Path]:
    return sorted((checkout / SOURCES).rglob("*.py"))


def digest(files: Iterable[Path], checkout: Path = REPO) -> str:
    every = (f"{file.relative_to(checkout)}\n{file.read_text()}" for file in sorted(files))
    return hashlib.sha256("\n".join(every).encode()).hexdigest()


@functools.cache
def tried() -> Path:
    """The file of outcomes for these sources: one line of JSON per mistake."""
    return KEPT / f"{digest(sources())}.tried"


def unneeded(folder: str, names: list[str]) -> set[str]:
    """Names in a folder of the checkout that no test needs. `shared` and `docs` only count at the top level."""
    outer = ("runs", "shared", "docs", "build", "dist") if Path(folder) == REPO else ()
    return {name for name in names if name == "__pycache__" or name.startswith(".") or name in outer}


def drawn(only: Sequence[str], number: int, seed: int) -> list[Mistake]:
    """Return a random sample of the mistakes in these files, or all mistakes of a line (PATH:LINE)."""
    found = dict[Mistake, None]()
    for place in only:
        start, _, line = place.partition(":")
        for path in sources():
            file = path.relative_to(REPO / SOURCES).as_posix()
            made = mistakes(file, path.read_bytes()) if file.startswith(start) else ()
            found.update((one, None) for one in made if not line or one.first <= int(line) <= one.last)
    if any(":" in place for place in only):
        return [*found]
    return random.Random(seed).sample([*found], min(number, len(found)))


def tries(
    sample: Sequence[Mistake], places: Sequence[Path], tests: Sequence[str], budget: float, nearest: bool
) -> Iterator[Try]:
    place = places[0]
    if not nearest:
        lines = traces(places, tests)
        for mistake in sample:
            chosen, spent = tests_that_run(mistake, lines, budget)
            yield Try(mistake, chosen, 30 + 3 * spent, place, math.inf)
        return
    paths = sorted({path for test in tests for path in place.glob(test)})
    texts = {path.relative_to(place).as_posix(): path.read_text() for path in paths}
    for mistake in sample:
        yield Try(mistake, nearest_tests(mistake.file, texts), 90 + 2 * budget, place, budget)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--number", type=int, default=150, help="number of mistakes (default: 150)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample (default: 0)")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes (default: 2)")
    parser.add_argument("--areas", nargs="+", choices=AREAS, default=["core"], help="sources and tests (default: core)")
    parser.add_argument("--tests", metavar="FILE", nargs="+", help="run these tests instead")
    parser.add_argument("--only", metavar="PATH[:LINE]", action="append", help="a path in src/anyformer")
    parser.add_argument("--budget", type=float, default=10, help="seconds of tests per mistake (default: 10)")
    parser.add_argument("--nearest", action="store_true", help="run only the closest tests; do not record lines")
    parser.add_argument("--list", action="store_true", help="only list the mistakes")
    options = parser.parse_args()
    files, tests = ([name for area in options.areas for name in AREAS[area][i]] for i in (0, 1))
    tests = options.tests or tests
    sample = drawn(options.only or files, options.number, options.seed)
    if options.list:
        print(*sample, sep="\n")
        return 0
    os.environ.update(ENVIRONMENT)
    for name in IMPORTED:
        importlib.import_module(name)
    for plugin in importlib.metadata.entry_points(group="pytest11"):
        plugin.load()
    if not sys.modules["torch"].cuda.is_available():
        kernels = [mistake for mistake in sample if mistake.file.endswith("_triton.py")]
        sample = [mistake for mistake in sample if mistake not in kernels]
        if kernels:
            print(f"{len(kernels)} mistakes in Triton kernels are not tried: they need a GPU")
    KEPT.mkdir(exist_ok=True)
    tried().touch()
    with tempfile.TemporaryDirectory(prefix="anyformer-mutants-") as folder:
        places = [Path(folder) / str(n) / "copy" for n in range(options.jobs)]
        for place in places:
            shutil.copytree(REPO, place, ignore=unneeded)
        works = [*tries(sample, places, tests, options.budget, options.nearest)]
        remaining = [work for work in works if work.tests and not work.known()]
        run(places, [Sieve(remaining[n :: options.jobs]) for n in range(options.jobs) if remaining[n:]])
        run(places, [work for work in remaining if not work.known()])
        control = Control({test for work in works if work.outcome == "seen" for test in work.seen_by})
        run(places, [control] if control.rounds[0] else [])
    same = tomllib.loads((REPO / "tests" / "mutants.toml").read_text()).get("same", [])
    explained = {(one["file"], one["line"], one["old"], one["new"]): one["why"] for one in same}
    gone = explained.keys() - {mistake.key for mistake in drawn([file for file, *_ in explained], 10**9, 0)}
    survivors = [work.mistake for work in works if work.outcome == "survived"]
    unknown = [mistake for mistake in survivors if mistake.key not in explained]
    late = sum(work.outcome == "out of time" for work in works)
    print(f"{len(sample)} mistakes, {len(survivors)} survived ({len(survivors) / max(len(sample), 1):.1%}), ", end="")
    print(f"{len(survivors) - len(unknown)} of them explained; {late} ran out of time")
    for mistake in sorted(survivors, key=str):
        print(f"{mistake}    {explained.get(mistake.key, 'NOT EXPLAINED')}")
    for test in control.wrong:
        print(f"fails without a mistake: {test}")
    for file, line, *_ in gone:
        print(f"explained in mutants.toml, but no longer in the sources: {file}: {line}")
    return int(bool(unknown or control.wrong or gone))


if __name__ == "__main__":
    sys.exit(main())
