"""The lock on a run's folder. Locks that only wait for each other are plain `filelock.FileLock`s."""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path

from filelock import FileLock, Timeout


class FolderLock:
    """Keeps other processes from training in the same folder. The system frees the lock when the process ends.

    `.lock` names the process. A process can lock its own folder again (`is_singleton`), from any thread.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / ".lock"
        self.lock = FileLock(self.path, timeout=0, thread_local=False, is_singleton=True, fallback_to_soft=False)

    def acquire(self) -> None:
        try:
            self.lock.acquire()
        except Timeout:
            owner = ""
            with contextlib.suppress(OSError):
                owner = self.path.read_text()[:200].strip()
            owner = owner or "another process"
            raise ValueError(f"{self.folder} is in use: {owner} trains there; --out DIR starts another run") from None
        except OSError:  # a file system without locks
            pass
        with contextlib.suppress(OSError):  # Windows lets nobody else write to a locked file
            self.path.write_text(f"process {os.getpid()} on {platform.node()}")

    def release(self) -> None:
        self.lock.release(force=True)
