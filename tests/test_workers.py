"""The distribution of tests to workers (conftest.py)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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


def test_what_takes_longest_begins_first() -> None:
    """Then other files, and the short groups of families last. Every file in LONGEST exists."""
    import conftest

    def item(file: str, group: str = "") -> Any:
        mark = SimpleNamespace(args=(group,)) if group else None
        return SimpleNamespace(nodeid=f"{file}::test_it", get_closest_marker=lambda name: mark)

    assert all((conftest.REPO / file).is_file() for file in conftest.LONGEST)
    order = [item("a.py", "GPT2LMHeadModel"), item("b.py"), item(conftest.LONGEST[0]), item("c.py", "course-2")]
    assert [conftest.turn(each) for each in order] == [2, 1, 0, 0]


SLOW = """
import pytest

def rows(*values, **options):
    marked = [pytest.param(value, marks=pytest.mark.slow) if value > 9 else value for value in values]
    return pytest.mark.parametrize("value", marked, **options)

twice = rows(1, 2, 10)

@twice
def test_some(value): pass

@twice
@pytest.mark.parametrize("other", [0, 1])
def test_with_others(value, other): pass

@rows(11, 12)
def test_all(value): pass

@rows(3, 13, ids=["three", "more"])
def test_named(value): pass
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("marks", "summary"), [("not slow", "7 passed, 3 deselected"), ("slow", "6 passed, 7 deselected")]
)
def test_slow_cases_are_made_where_they_are_asked_for(marks: str, summary: str, tmp_path: Path) -> None:
    """There are 7 fast and 6 slow cases. If all cases of a test are slow or have ids, pytest deselects them."""
    shutil.copyfile(Path(__file__).with_name("conftest.py"), tmp_path / "conftest.py")
    (tmp_path / "test_it.py").write_text(SLOW)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marks, "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert summary in done.stdout, done.stdout
