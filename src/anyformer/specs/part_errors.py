"""Find the user-defined Part that raised an error."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from anyformer.specs.addresses import value_at
from anyformer.specs.part import Part, Site


def error_origin(error: BaseException) -> str | None:
    """Return the user-defined Part that raised an error, its address (if known), and the file and line:
    "Fade at decoder.layers.0.attention.op (fade.py:31)". Return None if no user-defined Part raised it."""
    outside = {kind.__module__: name for name, kind in Part.kinds.items() if not _ours(kind.__module__)}
    frames = [*traceback.walk_tb(error.__traceback__)]
    user_frames = [(frame, line) for frame, line in frames if frame.f_globals.get("__name__") in outside]
    if not user_frames:
        return error_origin(error.__cause__) if error.__cause__ is not None else None
    frame, line = user_frames[-1]
    name, address = _part_of(frame, [each for each, _ in frames])
    where = f"{Path(frame.f_code.co_filename).name}:{line}"
    return f"{name or outside[frame.f_globals['__name__']]}{address and f' at {address}'} ({where})"


@contextlib.contextmanager
def name_own_parts() -> Iterator[None]:
    """Add a note to errors raised inside the context that names the user-defined Part that raised them."""
    try:
        yield
    except Exception as error:
        if (origin := error_origin(error)) is not None and origin not in getattr(error, "__notes__", ()):
            error.add_note(origin)
        raise


def _ours(module: str) -> bool:
    return module.partition(".")[0] == "anyformer"


def _part_of(frame: FrameType, frames: list[FrameType]) -> tuple[str, str]:
    """Return the name and address of the Part that `frame` builds or checks, or whose module it runs in a model; empty
    strings if unknown."""
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
            site = each.f_locals.get("site")
            return type(part).__name__, site.address if isinstance(site, Site) else ""
    return "", ""


def _among(module: Any, runs: list[Any]) -> bool:
    return any(module is each for each in runs)


def _described(spec: Part, address: str) -> Part | None:
    try:
        part = value_at(spec, address)
    except ValueError:  # a submodule that is not a Part
        return None
    return part if isinstance(part, Part) else None
