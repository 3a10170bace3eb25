"""Read text from --file or a pipe, and write JSON."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

LARGEST = 2**30  # bytes


def text_of(file: str | None, lack: str, largest: int = LARGEST) -> tuple[str, str]:
    """Return the text of --file or standard input and its name; if there is neither, the error begins with `lack`."""
    if file is not None:
        path, name = Path(file).expanduser(), file
        if path.is_dir():
            raise ValueError(f"--file {file} is a folder")
        with path.open("rb") as stream:
            raw = stream.read(largest + 1)
    elif sys.stdin is None or sys.stdin.isatty():
        raise ValueError(f"{lack}: as an argument, with --file, or piped in")
    else:
        name, raw = "standard input", sys.stdin.buffer.read(largest + 1)
    if len(raw) > largest:
        raise ValueError(f"{name}: more than {largest:,} bytes")
    try:
        return raw.decode("utf-8-sig"), name
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8 text (byte {error.start})") from None


def as_json(value: Any, indent: int | None = None) -> str:
    """Encode as valid JSON: numbers that are not finite become null."""
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, indent=indent)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value
