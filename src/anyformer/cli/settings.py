"""`--set PATH=VALUE`, `--device NAME` and default file names, for every verb that takes them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

MODEL = "a model folder, a run (its best model; RUN@last is the newest) or a hub id"


def setting(text: str) -> tuple[str, Any]:
    """Parse PATH=VALUE; the value is parsed as JSON if possible, otherwise it is a text."""
    path, equals, value = text.partition("=")
    if not path or not equals:
        raise ValueError(f"--set takes PATH=VALUE, got {text!r}")
    try:
        return path, json.loads(value)
    except ValueError:
        return path, value
    except RecursionError:
        raise ValueError(f"--set {path}: JSON nested too deeply") from None


def default_file(name: str, mark: bytes) -> str:
    """Return `name`, a default output file; ValueError if it exists without our mark in its first 2,000 bytes."""
    path = Path(name)
    if path.is_file():
        with path.open("rb") as file:
            if mark not in file.read(2000):
                raise ValueError(f"{name} exists and was not written by anyformer; choose another file with -o FILE")
    return name


def device_flag(parser: argparse.ArgumentParser) -> None:
    about = "auto (a GPU if there is one, else cpu), cpu, cuda, cuda:1, mps"
    parser.add_argument("--device", metavar="NAME", default="auto", help=about)
