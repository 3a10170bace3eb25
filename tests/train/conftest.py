"""One process for all tests that start, kill and resume trainings."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def nursery() -> Iterator[Any]:
    from runs import Nursery

    made = Nursery()
    yield made
    made.close()
