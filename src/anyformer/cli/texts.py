"""Text that a verb reads from --file, or from a pipe."""

from __future__ import annotations

import sys
from pathlib import Path

LARGEST = 2**30  # bytes


def text_of(file: str | None, lack: str, largest: int = LARGEST) -> tuple[str, str]:
    """(text, where it is from); `lack` says what is missing where there is neither."""
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
