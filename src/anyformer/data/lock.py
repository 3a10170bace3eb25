"""Files that hold other processes of this machine out. A process that ends lets go, however it ends."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # not there on Windows, where the atomic renames alone have to do
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Waits until no other is in here."""
    if fcntl is None:
        yield
        return
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Lock:
    """A run's folder, while this process trains there; another one is refused and told which it is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file: IO[str] | None = None

    def take(self) -> None:
        file = (self.folder / ".lock").open("a+")
        try:
            # of this process alone: children that outlive it for a moment (flock's would) do not hold it
            if fcntl is not None:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            with file:
                file.seek(0)
                who = file.read(200).strip() or "another process"
            raise ValueError(f"{self.folder} is in use: {who} trains there; --out DIR starts another run") from None
        except OSError:  # a file system that has no locks
            pass
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}")
        file.flush()
        self.file = file

    def release(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None
