"""Fixtures for all tests. Imports torch and pytest only, so that a bare GPU machine can run them too."""

import os
from pathlib import Path

import pytest
import torch

REPO = Path(__file__).resolve().parents[1]


def pytest_configure(config: pytest.Config) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data sets: beside the checkout, or copied into it (a machine that receives the checkout alone)."""
    for data in (REPO.parent / "shared" / "data", REPO / "shared" / "data"):
        if data.is_dir():
            return data
    pytest.skip("needs the data folder shared/data beside the checkout")
