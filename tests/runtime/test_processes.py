"""No child process outlives its parent, however the parent ended. (Encoding of rows: data/test_prepare.py.)"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from anyformer.lab.trials import Place, Trial, Trials, Values

PATIENCE = 100  # seconds to wait for other processes: on a busy machine `import torch` alone takes 20
PROC = Path("/proc/self/task")
pytestmark = pytest.mark.skipif(not PROC.is_dir(), reason="children are found in /proc")


def wait_forever(values: Values, place: Place) -> list[dict[str, Any]]:
    time.sleep(600)
    return []


def two_trainings(folder: Path) -> None:
    trials = [Trial(name, {"name": name}) for name in ("a", "b")]
    Trials(trials, wait_forever, folder, "cpu").perform(jobs=2)


def running(process: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(process: int) -> Iterator[int]:
    for task in Path(f"/proc/{process}/task").iterdir():
        yield from map(int, (task / "children").read_text().split())


def until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and not condition():
        time.sleep(0.05)
    return condition()


@pytest.mark.parametrize("end", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_trainings_end_with_their_parent(end: signal.Signals, tmp_path: Path) -> None:
    program = "import pathlib, sys, test_processes; test_processes.two_trainings(pathlib.Path(sys.argv[1]))"
    path = {"PYTHONPATH": os.pathsep.join((str(Path(__file__).parent), *filter(None, sys.path)))}
    parent = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], env={**os.environ, **path})
    found: list[int] = []
    try:
        assert until(lambda: len([*children(parent.pid)]) >= 3)  # two workers and Python's resource tracker
        found = [*children(parent.pid)]
        parent.send_signal(end)
        parent.wait(PATIENCE)
        assert until(lambda: not any(map(running, found))), "processes still run"
    finally:
        parent.kill()
        for child in filter(running, found):
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("module", ["anyformer.weights.pickled_weights", "anyformer.inputs.jinja_sandbox"])
def test_a_guarded_process_ends_with_its_parent(module: str) -> None:
    """The child waits for a request; the process id that it gets does not belong to its parent."""
    child = subprocess.Popen([sys.executable, "-m", module, "1"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        assert child.wait(PATIENCE) == 1
    finally:
        child.kill()
