"""A child process for work on untrusted files, with limited memory, time and permissions.

The parent holds a `GuardedProcess` and calls `ask`; the child is a module that calls `serve`. Requests and replies are
JSON, one per line. The child is kept between requests, so that a request costs about a millisecond. A child that
exceeds a limit is killed, and the next request starts a new one. A child never outlives its parent.

| system | memory | time | files, programs, network |
|---|---|---|---|
| Linux | `RLIMIT_AS` | `RLIMIT_CPU`, and the parent's clock | refused by an audit hook |
| macOS, BSD | the parent reads the child's resident memory every 50 ms (`ps`) | the same as Linux | the same |
| Windows | not limited | the parent's clock | the same |
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from anyformer.runtime.processes import end_with_parent

HAS_ADDRESS_SPACE_LIMIT = sys.platform == "linux"  # other systems accept RLIMIT_AS and ignore it, or do not have it
CLOCK_PER_CPU_SECOND = 2.0  # the child may have to wait for a processor
MEMORY_CHECK_SECONDS = 0.05  # how often the child's resident memory is read if there is no RLIMIT_AS
MESSAGE_BYTES = 128 * 2**20  # largest request or reply
IDLE_BYTES = 48 * 2**20  # a child that keeps more memory than this after a request is replaced

# audit events that the child may not cause
FORBIDDEN = re.compile(
    r"(subprocess|socket|shutil|pty|ctypes|ftplib|urllib|http|webbrowser|winreg|mmap\.shared)\..*|"
    r"os\.(system|exec|fork|forkpty|posix_spawn|spawn|startfile|kill|remove|rename|rmdir|mkdir|link|symlink|chmod|"
    r"chown|chflags|lchmod|lchown|truncate|utime|putenv|unsetenv|setxattr|removexattr|chdir|fchdir)"
)


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits of one request."""

    memory_bytes: int  # in addition to what the child uses before its first request
    cpu_seconds: float
    file_bytes: int = 0  # largest file that the child may write

    @property
    def clock_seconds(self) -> float:
        return CLOCK_PER_CPU_SECOND * self.cpu_seconds


class LimitExceeded(Exception):
    """The request needs more than its limits; the message names the limit."""


class ChildFailed(Exception):
    """The child ended without a reply."""


class Refused(Exception):
    """The child's `answer` does not accept the request; the message is one line."""


# -- in the parent -----------------------------------------------------------------------------------------------------


class GuardedProcess:
    """A child that runs `python -m module`. Safe to use from several threads, and after a fork.

    >>> renderer = GuardedProcess("anyformer.inputs.jinja_sandbox")
    >>> request = {"source": "{{ 1 + 1 }}", "variables": {}}
    >>> renderer.ask(request, Limits(memory_bytes=2**28, cpu_seconds=5))
    '2'
    >>> renderer.close()
    """

    def __init__(self, module: str, writable: Iterable[Path] = (), start_seconds: float = 60.0) -> None:
        self.module, self.writable, self.start_seconds = module, [str(path) for path in writable], start_seconds
        self._forget()
        _guarded.add(self)

    def _forget(self) -> None:
        """Start without a child: after a fork, the child belongs to the other process."""
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._resident = 0  # bytes, before the first request

    def ask(self, request: Any, limits: Limits) -> Any:
        """Return the child's answer. Raise `Refused`, `LimitExceeded` or `ChildFailed` if there is none."""
        memory = limits.memory_bytes if HAS_ADDRESS_SPACE_LIMIT else None
        message = {"request": request, "memory": memory, "cpu": limits.cpu_seconds, "file": limits.file_bytes}
        line = json.dumps(message).encode() + b"\n"
        if len(line) > MESSAGE_BYTES:
            raise LimitExceeded(f"more than {MESSAGE_BYTES // 2**20} MB of data")
        with self._lock:
            try:
                process = self._start()
                reply = self._exchange(process, line, limits.clock_seconds, None if memory else limits.memory_bytes)
                if reply is None:
                    code = self._stop(grace_seconds=1.0)
                    if hasattr(signal, "SIGXCPU") and code == -signal.SIGXCPU:
                        raise LimitExceeded(f"more than {limits.cpu_seconds:g} seconds of processor time")
                    raise ChildFailed(f"its process ended with code {code}")
                if reply.get("exceeded"):
                    raise LimitExceeded(f"more than {limits.memory_bytes // 2**20} MB of memory")
            except BaseException:  # Ctrl-C too: the next reply would belong to this request
                self._stop()
                raise
            if reply["last"]:
                self._stop()
        if "refused" in reply:
            raise Refused(reply["refused"])
        return reply["answer"]

    def close(self) -> None:
        """End the child. The next `ask` starts another one."""
        with self._lock:
            self._stop()

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._stop()
        # The child finds modules where this process does, and uses one thread: each thread takes address space.
        paths = os.pathsep.join(os.path.abspath(path) for path in sys.path if path)
        process = self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", self.module, str(os.getpid()), *self.writable],
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        if self._exchange(process, b"", self.start_seconds, None) is None:
            raise ChildFailed(f"`{sys.executable} -m {self.module}` did not start (code {self._stop(1.0)})")
        self._resident = 0 if HAS_ADDRESS_SPACE_LIMIT else resident_bytes(process.pid)
        return process

    def _exchange(
        self, process: subprocess.Popen[bytes], line: bytes, seconds: float, memory: int | None
    ) -> dict[str, Any] | None:
        """Write a line and read the reply; None if the child ended. The child is killed after `seconds`, or when it has
        `memory` bytes more than before its first request."""
        assert process.stdin is not None and process.stdout is not None
        exceeded: list[str] = []
        done = threading.Event()

        def watch() -> None:
            end = time.monotonic() + seconds
            while not done.wait(MEMORY_CHECK_SECONDS if memory else max(end - time.monotonic(), 0)):
                if time.monotonic() >= end:
                    exceeded.append(f"more than {seconds:g} seconds")
                elif memory and resident_bytes(process.pid) > self._resident + memory:
                    exceeded.append(f"more than {memory // 2**20} MB of memory")
                if exceeded:
                    process.kill()
                    return

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            with contextlib.suppress(BrokenPipeError):  # the child has ended, so there is no reply either
                process.stdin.write(line)
                process.stdin.flush()
            reply = process.stdout.readline(MESSAGE_BYTES)
        finally:
            done.set()
            watcher.join()
        if exceeded:
            raise LimitExceeded(exceeded[0])
        if len(reply) == MESSAGE_BYTES:
            raise LimitExceeded(f"more than {MESSAGE_BYTES // 2**20} MB of output")
        return json.loads(reply) if reply.endswith(b"\n") else None

    def _stop(self, grace_seconds: float = 0.0) -> int | None:
        """End the child, and return its exit code. The child is killed after `grace_seconds`."""
        process, self._process = self._process, None
        if process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_seconds)
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # a request that it did not read is still in the buffer
                    pipe.close()
        return process.wait()


_guarded: weakref.WeakSet[GuardedProcess] = weakref.WeakSet()


def _forget_all() -> None:
    for guarded in list(_guarded):
        if guarded._process is not None:
            guarded._process.returncode = 0  # not a child of this process: nothing to wait for
        guarded._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def resident_bytes(process: int) -> int:
    """The memory that a process has in RAM; 0 if unknown."""
    try:
        if Path("/proc/self/statm").is_file():
            return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        listed = subprocess.run(["ps", "-o", "rss=", "-p", str(process)], capture_output=True, text=True, timeout=5)
        return int(listed.stdout or 0) * 1024
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0


# -- in the child ------------------------------------------------------------------------------------------------------


def serve(answer: Callable[[Any], Any]) -> None:
    """Answer the parent's requests until it closes the pipe. Call this after all imports: memory counts from here.

    `answer` returns JSON data, or raises `Refused`."""
    parent, *writable = sys.argv[1:]
    end_with_parent(int(parent))
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # other output must not be mistaken for a reply
    base = mapped_bytes()
    confine(set(writable))

    def send(reply: dict[str, Any]) -> None:
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()

    send({})
    for line in sys.stdin.buffer:
        message = json.loads(line)
        try:
            with limited(base, message["memory"], message["cpu"], message["file"]):
                try:
                    reply = {"answer": answer(message["request"])}
                except Refused as error:
                    reply = {"refused": str(error)}
            reply["last"] = mapped_bytes() > base + IDLE_BYTES
            send(reply)
        except MemoryError:
            send({"exceeded": True})
            return
        if reply["last"]:
            return


def mapped_bytes() -> int:
    """The size of this process's address space; 0 if unknown."""
    memory = Path("/proc/self/statm")
    return int(memory.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE") if memory.is_file() else 0


@contextlib.contextmanager
def limited(base: int, memory: int | None, cpu_seconds: float, file_bytes: int) -> Iterator[None]:
    """Limit this process: `memory` bytes more than `base`, and `cpu_seconds` from now on."""
    try:
        import resource
    except ImportError:  # Windows
        yield
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    values = {
        resource.RLIMIT_CPU: used.ru_utime + used.ru_stime + cpu_seconds + 1,
        resource.RLIMIT_FSIZE: file_bytes,
        resource.RLIMIT_CORE: 0,
        **({resource.RLIMIT_AS: base + memory} if memory else {}),
    }
    before = {kind: resource.getrlimit(kind) for kind in values}
    try:
        for kind, value in values.items():
            with contextlib.suppress(ValueError, OSError):  # the process has a lower limit already
                resource.setrlimit(kind, (int(value), before[kind][1]))
        yield
    finally:
        for kind, limit in before.items():
            resource.setrlimit(kind, limit)


def confine(writable: set[str]) -> None:
    """Forbid this process to write files other than `writable`, to start programs and to open connections."""

    def judge(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            refused = flags & (os.O_WRONLY | os.O_RDWR) and str(path) not in writable
        else:
            refused = FORBIDDEN.fullmatch(event) is not None
        if refused:
            raise PermissionError(f"{event} is not allowed here")

    sys.addaudithook(judge)
