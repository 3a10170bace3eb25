"""The fixture `run` of tests/cli, and a pseudo-terminal in this process, for output that commands show only there."""

from __future__ import annotations

import contextlib
import os
import pty
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

Run = Callable[..., tuple[int, str, str]]  # arguments -> exit code, stdout, stderr


@contextlib.contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch, *streams: str) -> Iterator[list[bytes]]:
    """Replace these streams of `sys` by a terminal. The yielded list is complete when the context ends."""
    leader, follower = pty.openpty()
    shown: list[bytes] = []

    def listen() -> None:  # read in a thread: the terminal's buffer is full after a few lines
        with contextlib.suppress(OSError):  # raised when the other end is closed
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
