"""Child processes: none of them outlives its parent."""

from __future__ import annotations

import os
import sys
import threading
import time

CHECK_SECONDS = 0.5  # between two checks of the parent


def end_with_parent(parent: int) -> None:
    """Call this first in a child process: it exits soon after its parent (a process id) has ended.

    An orphan gets a different parent process, so this works even if the parent was killed by SIGKILL. On Windows a
    process keeps the id of a parent that has ended, so nothing is watched there.
    """
    if sys.platform == "win32":
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(CHECK_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
