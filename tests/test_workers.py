"""Which worker runs which test (conftest.py)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

FILE = """
import pytest

@pytest.mark.parametrize("name", ["a@b", "c", pytest.param("d", marks=pytest.mark.xdist_group("own"))])
def test_it(name, worker_id):
    with open("log", "a") as log:
        print("own" if name == "d" else __name__, worker_id, file=log)
"""


@pytest.mark.slow
def test_groups_and_files_stay_together(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    shutil.copyfile(Path(__file__).with_name("conftest.py"), tmp_path / "conftest.py")
    for letter in "abcdef":
        (tmp_path / f"test_{letter}.py").write_text(FILE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadgroup", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "18 passed" in done.stdout, done.stdout
    workers = defaultdict(set)
    for line in (tmp_path / "log").read_text().splitlines():
        group, worker = line.split()
        workers[group].add(worker)
    assert len(workers) == 7 and all(len(each) == 1 for each in workers.values()), workers
