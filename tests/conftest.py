"""Fixtures for all tests. Imports torch and pytest only, so that a bare GPU machine can run them too."""

import abc
import contextlib
import functools
import gc
import inspect
import json
import os
import sys
import tempfile
import typing
import zlib
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch

from anyformer.kernels import hardware
from anyformer_course.extension import register

REPO = Path(__file__).resolve().parents[1]
register()  # also works if the distribution is not installed
if not torch.cuda.is_available():  # torch's own formats three stack traces, for lazy calls on devices
    torch.manual_seed = lambda seed: torch.default_generator.manual_seed(int(seed))
# no doctests: Parts that may be declared only once, and files for type checkers, one of them full of mistakes
collect_ignore = ["faults.py", "typing"]


def is_instance(protocol: Any, value: Any) -> bool:
    """`isinstance(value, protocol)` as in Python 3.12: it does not find the children and tensors of torch modules."""
    if not protocol.__dict__.get("_is_runtime_protocol") or abc.ABCMeta.__instancecheck__(protocol, value):
        return abc.ABCMeta.__instancecheck__(protocol, value)
    with contextlib.suppress(AttributeError):
        for name in typing._get_protocol_attrs(protocol):  # type: ignore[attr-defined]
            inspect.getattr_static(value, name)
        return True
    return False


if sys.version_info < (3, 12):  # all tests run with the stricter rule
    type(typing.Protocol).__instancecheck__ = is_instance  # type: ignore[method-assign, assignment]


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # every process of a compiler pool would import torch
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None:
        torch.set_num_threads(1)
        # processes that share a compiler cache can read each other's half-written files
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(tempfile.gettempdir()) / f"anyformer-inductor-{worker}")


# xdist passes groups to its scheduler by changing node ids, but pytest 9.2 ignores the change. So a worker writes the
# groups to this file, and the scheduler reads it.
GROUPS = Path(tempfile.gettempdir()) / f"anyformer-groups-{os.getpid()}.json"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["groups"] = str(GROUPS)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    worker = getattr(session.config, "workerinput", {})
    if worker.get("workerid") == "gw0":
        marks = {item.nodeid: item.get_closest_marker("xdist_group") for item in session.items}
        groups = {test: mark.args[0] for test, mark in marks.items() if mark is not None}
        Path(worker["groups"]).write_text(json.dumps(groups))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run all tests of a group in one worker, so that they share fixtures. Other tests are grouped by file."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroupOrFile(LoadScopeScheduling):
        @functools.cached_property
        def groups(self) -> dict[str, str]:
            return json.loads(GROUPS.read_text())

        def _split_scope(self, nodeid: str) -> str:
            return self.groups.get(nodeid) or nodeid.partition("::")[0]

    config.option.loadscopereorder = False  # use the order below instead of sorting by number of tests
    return ByGroupOrFile(config, log) if config.getvalue("dist") == "loadgroup" else None


# The slowest files run first and the many short groups of families last, so that all workers finish at about the same
# time. CPU seconds are listed in docs/results/quickstart.md.
LONGEST = tuple(f"tests/{name}.py" for name in (
    "train/test_parallel", "test_docs", "train/test_recipes", "train/test_resume", "train/test_trainer", "lab/test_lab",
    "course/test_lab", "course/test_narang_table", "test_swapping", "families/test_config", "cli/test_cli",
    "weights/test_pickled_weights", "tasks/test_transcribe", "hostile/test_files",
))  # fmt: skip


LONG_GROUPS = ("inductor", "course-")


def turn(item: pytest.Item) -> int:
    file, group = item.nodeid.partition("::")[0], item.get_closest_marker("xdist_group")
    if file in LONGEST or (group is not None and group.args[0].startswith(LONG_GROUPS)):
        return 0
    return 1 if group is None else 2


def pytest_unconfigure() -> None:
    GROUPS.unlink(missing_ok=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Exclude modules and tests from garbage collection: they are needed until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Do not create slow cases that `-m "not slow"` would deselect: half of all cases are slow."""
    if not metafunc.config.getoption("markexpr").startswith("not slow"):
        return
    for parametrized in metafunc.definition.iter_markers("parametrize"):
        values = parametrized.args[1] if len(parametrized.args) > 1 else None
        if isinstance(values, list) and not isinstance(parametrized.kwargs.get("ids"), list | tuple):
            slow = [any(mark.name == "slow" for mark in getattr(value, "marks", ())) for value in values]
            if not all(slow):  # without values, pytest would create a skipped test
                values[:] = [value for value, later in zip(values, slow, strict=True) if not later]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=turn)
    for name, there, reason in (
        ("gpu", torch.cuda.is_available, "needs a CUDA GPU"),
        ("compiler", lambda: hardware.has("compiler"), "needs a C++ compiler"),
    ):
        marked = [item for item in items if item.get_closest_marker(name)]
        for item in marked if marked and not there() else ():
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the sums of `record_property("tally", {...})` over all workers."""
    total: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()) if getattr(report, "when", "") == "call" else ():
                total.update(value if name == "tally" else {})
    if total:
        terminalreporter.section("tally")
        for what, count in total.most_common():
            terminalreporter.write_line(f"{count:6,}  {what}")


@pytest.fixture(autouse=True)
def _seed_by_name(request: pytest.FixtureRequest) -> None:
    """Seed torch with the test's name, so that random numbers do not depend on the tests that ran before."""
    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets: next to the checkout, or in it (on a machine that received only the checkout)."""
    for data in (REPO.parent / "shared" / "data", REPO / "shared" / "data"):
        if data.is_dir():
            return data
    pytest.skip("needs the data folder shared/data next to the checkout")


@pytest.fixture(scope="session")
def nursery() -> Generator[Any, None, None]:
    """A process that forks trainings, so that tests can kill them."""
    from runs import Nursery  # tests/train/runs.py: its tests have it on their path

    made = Nursery()
    yield made
    made.close()
