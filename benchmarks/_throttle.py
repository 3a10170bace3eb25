"""Run a command as on a slower machine: it gets a share of one core.

    python benchmarks/_throttle.py 0.1 python -m anyformer.cli.quickstart

Twenty times per second, the command is stopped or continued (SIGSTOP, SIGCONT) depending on the CPU time it has used.
At the end, prints the share it got, which is lower than requested on a busy machine.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil


def used(root: psutil.Process) -> float:
    """CPU seconds of a process and its children, including children that have ended."""
    total = 0.0
    for process in [root, *root.children(recursive=True)]:
        try:
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
        except psutil.Error:
            continue
    return total


def main() -> int:
    share, command = float(sys.argv[1]), sys.argv[2:]
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    begun, seconds = time.monotonic(), 0.0
    child = subprocess.Popen(command, env=environment, start_new_session=True)
    while child.poll() is None:
        try:
            seconds = used(psutil.Process(child.pid))
            os.killpg(child.pid, signal.SIGSTOP if seconds > share * (time.monotonic() - begun) else signal.SIGCONT)
        except (psutil.Error, ProcessLookupError):
            break
        time.sleep(0.05)
    code, took = child.wait(), time.monotonic() - begun
    print(f"{took:.0f} s, {seconds:.1f} s of processor time: {seconds / took:.0%} of one core", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
