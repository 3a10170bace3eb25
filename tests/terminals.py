"""A terminal in this process, for what a command shows only to one."""

from __future__ import annotations

import contextlib
import os
import pty
import sys
import threading
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch, *streams: str) -> Iterator[list[bytes]]:
    """These streams of `sys` are a terminal; what it was sent is complete when it is closed."""
    leader, follower = pty.openpty()
    shown: list[bytes] = []

    def listen() -> None:  # all the time: a terminal that nobody reads is full after a few lines
        with contextlib.suppress(OSError):  # the other end is closed
            while piece := os.read(leader, 65536):
                shown.append(piece)

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        with monkeypatch.context() as patch, os.fdopen(follower, "w") as stream:
            patch.setenv("TERM", "xterm")
            for name in streams:
                patch.setattr(sys, name, stream)
            yield shown
    finally:
        listener.join()
        os.close(leader)
