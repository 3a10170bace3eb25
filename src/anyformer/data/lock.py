"""The lock on a run's folder: a second process gets an error. To wait instead, use `filelock.FileLock`."""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path

from filelock import FileLock, Timeout


class FolderLock:
    """Keeps other processes from training in the same folder. The system releases the lock when the process ends.

    `.lock` contains the name of the process. That process can acquire the lock again (`is_singleton`), in any thread.
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
            raise ValueError(f"{self.folder} is in use: {owner} trains there; choose another --out DIR") from None
        except OSError:  # a file system without locks
            pass
        with contextlib.suppress(OSError):  # Windows forbids writing to a locked file
            self.path.write_text(f"process {os.getpid()} on {platform.node()}")

    def release(self) -> None:
        self.lock.release(force=True)
