"""Timing for the GPU benchmarks: a lock between processes, alternating turns, kernel time, launches and memory."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

CUDA = torch.cuda.is_available()
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch")  # prefixes of names such as cudaLaunchKernelExC

# a compiled layer that differs from plain code is an error: its figures would be worthless
warnings.filterwarnings("error", message=".*differs from plain code")


@contextlib.contextmanager
def exclusive(lock: Path | None) -> Iterator[None]:
    """Hold the lock, so that no other process is timed at the same time."""
    if lock is None:
        yield
        return
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def wait() -> None:
    if CUDA:
        torch.cuda.synchronize()


def seconds(run: Callable[[], Any], times: int = 1) -> float:
    """Seconds per call, including the work on the device."""
    wait()
    start = time.perf_counter()
    for _ in range(times):
        run()
    wait()
    return (time.perf_counter() - start) / times


def take_turns(
    sides: dict[str, Callable[[], Any]], turns: int, least: float = 0.2, most: float = 6.0
) -> dict[str, list[float]]:
    """Return the seconds per call of every side and turn. A turn repeats the call for about `least` seconds. No turn
    starts after `most` seconds, but there are at least two."""
    times = {name: max(1, round(least / max(seconds(run), 1e-6))) for name, run in sides.items()}
    spans: dict[str, list[float]] = {name: [] for name in sides}
    begin = time.perf_counter()
    for turn in range(turns):
        if turn > 1 and time.perf_counter() - begin > most:
            break
        for name in list(sides) if turn % 2 else reversed(list(sides)):
            spans[name].append(seconds(sides[name], times[name]))
    return spans


def warm_up(run: Callable[[], Any], times: int, most: float = 1.5) -> None:
    """Call `run` up to `times` times, but stop after `most` seconds and at least two calls."""
    begin = time.perf_counter()
    for number in range(times):
        if number > 1 and time.perf_counter() - begin > most:
            break
        run()
        wait()


class DeviceWork(NamedTuple):
    """Kernel time and number of launches of one step."""

    kernel_ms: float
    launches: int


def profile(step: Callable[[], Any], steps: int = 2) -> DeviceWork | None:
    """Return the device time of one step, summed over kernels and copies, and the number of launches."""
    if not CUDA:
        return None
    wait()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as report:
        for _ in range(steps):
            step()
        wait()
    device, launches = 0.0, 0
    for event in report.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            # named ranges (an optimizer step) are also listed on the device and contain kernels counted separately
            if not (getattr(event, "is_user_annotation", False) or event.name.startswith("Optimizer.")):
                device += event.time_range.elapsed_us()
        elif event.name.startswith(LAUNCHES):
            launches += 1
    return DeviceWork(round(device / 1e3 / steps, 3), launches // steps)


def peak_GB(run: Callable[[], Any], held: int) -> float | None:
    """Return the peak memory of a call, without other sides; `held` is the memory of its side between calls."""
    if not CUDA:
        return None
    wait()
    others = torch.cuda.memory_allocated() - held
    torch.cuda.reset_peak_memory_stats()
    run()
    wait()
    return round((torch.cuda.max_memory_allocated() - others) / 1e9, 2)


def allocated() -> int:
    return torch.cuda.memory_allocated() if CUDA else 0


def empty_cache() -> None:
    """Release the memory of deleted models for other processes."""
    import gc

    gc.collect()
    torch._dynamo.reset()
    if CUDA:
        torch.cuda.empty_cache()


def scratch_folder(inside: Path | None = None) -> tempfile.TemporaryDirectory[str]:
    """Return a temporary folder for weights that both sides load: in `inside`, or in /dev/shm if it is large enough."""
    if inside is not None:
        return tempfile.TemporaryDirectory(dir=inside)
    memory = Path("/dev/shm")
    large = memory.is_dir() and shutil.disk_usage(memory).free > 20e9
    return tempfile.TemporaryDirectory(prefix="anyformer-bench-", dir=memory if large else None)


def median_ms(times: list[float]) -> float:
    return round(1e3 * statistics.median(times), 3)
