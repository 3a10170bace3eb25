"""Processes that this package starts: none of them outlives the one that started it."""

from __future__ import annotations

import os
import sys
import threading
import time

EVERY = 0.5  # seconds between two looks at the parent


def end_with_parent(parent: int) -> None:
    """Call this first in a new process: it ends as soon as its parent (a process id) has ended, in whatever way.

    An orphan gets another parent, so nothing has to be sent: this also holds after SIGKILL. On Windows a process keeps
    the number of the parent that has ended, so nothing is watched there."""
    if sys.platform == "win32":
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(EVERY)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
