"""Runs attacks in a child process with limited processor time and memory; a crash is reported."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

SECONDS = 10  # processor time per attack
BYTES = 2 * 2**30  # in addition to the memory that the process has at its start
SILENT = 300  # seconds of wall time after which an attack that only waits is ended


@dataclasses.dataclass
class Result:
    what: str  # "works", "refused", or what went wrong
    line: str = ""
    where: str = ""

    @property
    def good(self) -> bool:
        return self.what in ("works", "refused")


def judged(attack: Callable[[], Any]) -> Result:
    """A one-line ValueError or OSError refuses a file correctly; any other error is a bug."""
    try:
        printed = io.StringIO()
        with warnings.catch_warnings(), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            warnings.simplefilter("ignore")
            attack()
        return Result("works")
    except (ValueError, OSError) as error:
        line = str(error)
        if line and "\n" not in line and not isinstance(error, UnicodeError):
            return Result("refused", line)
        return Result(f"{type(error).__name__} that is not one line", line, traceback.format_exc()[-1500:])
    except BaseException as error:
        return Result(type(error).__name__, str(error)[:500], traceback.format_exc()[-1500:])


def _serve(attacks: Sequence[Callable[[], Any]], first: int, pipe: Any) -> None:
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + BYTES, size + BYTES))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process, whatever it is doing
    for attack in attacks[first:]:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        result = judged(attack)
        signal.setitimer(signal.ITIMER_PROF, 0)
        pipe.send(dataclasses.astuple(result))
    pipe.close()
    os._exit(0)


def results(attacks: Sequence[Callable[[], Any]]) -> list[Result]:
    """Return the result of each attack. An attack that kills its process does not affect the others."""
    context, found = multiprocessing.get_context("fork"), []
    while len(found) < len(attacks):
        ours, theirs = context.Pipe(duplex=False)
        child = context.Process(target=_serve, args=(attacks, len(found), theirs))
        child.start()
        theirs.close()
        with contextlib.suppress(EOFError):
            while len(found) < len(attacks):
                if not ours.poll(SILENT):
                    child.kill()
                    break
                found.append(Result(*ours.recv()))
        child.join()
        if len(found) < len(attacks):
            why = f"more than {SECONDS} s" if child.exitcode == -signal.SIGPROF else f"died ({child.exitcode})"
            found.append(Result(why))
    return found


class MeasuredPopen(subprocess.Popen):  # type: ignore[type-arg]
    """A process that records its peak resident memory (bytes) and its processor time (seconds).

    The peak is read from /proc while the process runs. `wait4` would report more: its peak includes the memory that
    the parent had when it started the process."""

    peak, seconds = 0, 0.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        threading.Thread(target=self._measure, daemon=True).start()

    def _measure(self) -> None:
        status = Path(f"/proc/{self.pid}/status")
        with contextlib.suppress(OSError):  # the process has ended
            while peak := re.search(r"VmHWM:\s*(\d+)", status.read_text()):
                MeasuredPopen.peak = max(MeasuredPopen.peak, int(peak[1]) * 1024)
                time.sleep(0.002)

    def _try_wait(self, flags: int) -> tuple[int, int]:
        pid, status, usage = os.wait4(self.pid, flags)
        MeasuredPopen.seconds = usage.ru_utime + usage.ru_stime
        return pid, status
