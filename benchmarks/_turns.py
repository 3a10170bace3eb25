"""What the GPU benchmarks share: a lock, turns of several sides in one process, and what a step does on the device."""

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
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch")  # prefixes: ...ExC, ...Ex

# compiled layers that do something else than plain ones: no figure of theirs counts
warnings.filterwarnings("error", message=".*differs from plain code")


@contextlib.contextmanager
def alone(lock: Path | None) -> Iterator[None]:
    """Nobody else is timed meanwhile."""
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
    """Of one call, the device's work included."""
    wait()
    start = time.perf_counter()
    for _ in range(times):
        run()
    wait()
    return (time.perf_counter() - start) / times


def take_turns(
    sides: dict[str, Callable[[], Any]], turns: int, least: float = 0.2, most: float = 6.0
) -> dict[str, list[float]]:
    """Seconds of a call, by side and turn. A turn repeats a call until about `least` seconds are over; after `most`
    seconds no turn begins, but there are two at least."""
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
    """Calls before timing: two, and more until `times` or `most` seconds are reached."""
    begin = time.perf_counter()
    for number in range(times):
        if number > 1 and time.perf_counter() - begin > most:
            break
        run()
        wait()


class DeviceWork(NamedTuple):
    """Of one step."""

    kernel_ms: float
    launches: int


def profile(step: Callable[[], Any], steps: int = 2) -> DeviceWork | None:
    """Time on the device, summed over kernels and copies, and how often the host launched something."""
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
            # a named range (an optimizer's step) is shown on the device, too, over the kernels in it
            if not (getattr(event, "is_user_annotation", False) or event.name.startswith("Optimizer.")):
                device += event.time_range.elapsed_us()
        elif event.name.startswith(LAUNCHES):
            launches += 1
    return DeviceWork(round(device / 1e3 / steps, 3), launches // steps)


def peak_GB(run: Callable[[], Any], held: int) -> float | None:
    """The most memory of a call, without what other sides hold; `held` is what its own side holds between calls."""
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
    """Give back what deleted models held, so that other processes can have it."""
    import gc

    gc.collect()
    torch._dynamo.reset()
    if CUDA:
        torch.cuda.empty_cache()


def scratch_folder(inside: Path | None = None) -> tempfile.TemporaryDirectory[str]:
    """For weights on their way from one side to the other: in memory where that is large enough, or in a folder."""
    if inside is not None:
        return tempfile.TemporaryDirectory(dir=inside)
    memory = Path("/dev/shm")
    large = memory.is_dir() and shutil.disk_usage(memory).free > 20e9
    return tempfile.TemporaryDirectory(prefix="anyformer-bench-", dir=memory if large else None)


def median_ms(times: list[float]) -> float:
    return round(1e3 * statistics.median(times), 3)
