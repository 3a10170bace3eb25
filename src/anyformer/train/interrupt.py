"""Ctrl-C and SIGTERM while a model trains."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any, Protocol


class Interruptible(Protocol):
    interrupted: bool

    def stop(self, reason: str) -> None: ...


@contextlib.contextmanager
def end_after_step(trainer: Interruptible) -> Iterator[None]:
    """At the first Ctrl-C or SIGTERM, end the run after its step with a checkpoint; at the second, end it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, frame: Any) -> None:
        if trainer.interrupted:
            raise KeyboardInterrupt
        trainer.interrupted = True
        trainer.stop("interrupted")

    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, on_signal) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)
