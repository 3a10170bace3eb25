"""Which Part of a user's own an error comes from."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from anyformer.specs.addresses import value_at
from anyformer.specs.part import Part


def error_origin(error: BaseException) -> str | None:
    """The Part from outside the package in whose code an error was raised, its address where one is known, its file and
    line: "Fade at decoder.layers.0.attention.op (fade.py:31)". None where the error was raised in no such code."""
    outside = {kind.__module__: name for name, kind in Part.kinds.items() if not _ours(kind.__module__)}
    frames = [*traceback.walk_tb(error.__traceback__)]
    found = [(frame, line) for frame, line in frames if frame.f_globals.get("__name__") in outside]
    if not found:
        return error_origin(error.__cause__) if error.__cause__ is not None else None
    frame, line = found[-1]
    name, address = _part_of(frame, [each for each, _ in frames])
    where = f"{Path(frame.f_code.co_filename).name}:{line}"
    return f"{name or outside[frame.f_globals['__name__']]}{address and f' at {address}'} ({where})"


@contextlib.contextmanager
def name_own_parts() -> Iterator[None]:
    """An error inside gets a note that names the Part of a user's own it comes from."""
    try:
        yield
    except Exception as error:
        if (origin := error_origin(error)) is not None and origin not in getattr(error, "__notes__", ()):
            error.add_note(origin)
        raise


def _ours(module: str) -> bool:
    return module.partition(".")[0] == "anyformer"


def _part_of(frame: FrameType, frames: list[FrameType]) -> tuple[str, str]:
    """The name and address of the Part that `frame` runs for: one that is being built or checked, or whose module is
    running inside of a model; empty where neither is known."""
    runs: list[Any] = [each.f_locals.get("self") for each in frames]
    for model in runs:
        if isinstance(spec := getattr(model, "spec", None), Part) and hasattr(model, "named_modules"):
            running = [address for address, module in model.named_modules() if address and _among(module, runs)]
            for address in sorted(running, key=len, reverse=True):
                part = _described(spec, address)
                if part is not None and not _ours(type(part).__module__):
                    return type(part).__name__, address
    for each in reversed(frames):
        part = each.f_locals.get("self")
        if isinstance(part, Part) and not _ours(type(part).__module__):
            return type(part).__name__, getattr(each.f_locals.get("site"), "address", "")
    return "", ""


def _among(module: Any, runs: list[Any]) -> bool:
    return any(module is each for each in runs)


def _described(spec: Part, address: str) -> Part | None:
    try:
        found = value_at(spec, address)
    except ValueError:  # a module inside a Part's own
        return None
    return found if isinstance(found, Part) else None
