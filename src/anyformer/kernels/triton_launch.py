"""How programs of Triton are started.

On Hopper and later devices a program may start before the one in front of it has ended (programmatic dependent launch):
what it reads before its `gdc_wait` is weights, which nobody writes, and what it writes comes after.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from anyformer.kernels import hardware

HAS_TRITON = hardware.has("triton")
THREADS = 16  # that compile at the same time

_only_compile = False


@functools.cache
def early_start(device: torch.device) -> dict[str, bool]:
    early = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
    return {"EARLY": True, "launch_pdl": True} if early else {"EARLY": False}


@functools.cache
def shared_memory(device: torch.device) -> int:
    """Bytes that one program can keep close to it."""
    properties: Any = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return getattr(properties, "shared_memory_per_block_optin", 2**16)  # AMD's have no such name


def launch_errors() -> tuple[type[Exception], ...]:
    """What a program raises that cannot be compiled for a device, or needs more than it has."""
    if not HAS_TRITON:
        return ()
    from triton.errors import TritonError

    return (TritonError,)


def launch(program: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Starts a program in each place of the grid, on the device of its first argument."""
    options |= early_start(args[0].device)
    if _only_compile:
        program.warmup(*args, grid=grid, **options)
    else:
        program[grid](*args, **options)


@functools.cache
def start_compiler() -> None:
    """Begins what Triton does once a process, a second's work, in another thread: a prompt can be read meanwhile."""
    if HAS_TRITON and torch.cuda.is_available():
        threading.Thread(target=_start_compiler, daemon=True).start()


def _start_compiler() -> None:
    from triton.runtime import cache, driver

    driver.active.get_current_target()
    if hasattr(cache, "triton_key"):  # a digest of its own files, by which compiled programs are kept
        cache.triton_key()


class CompilingThreads(ThreadPoolExecutor):
    """Each compiles a program and the C function that launches it, which Triton leaves to the first launch."""

    def submit(self, compile_program: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        return super().submit(self.compile, compile_program, *args, **options)

    def compile(self, compile_program: Callable[..., Any], *args: Any, **options: Any) -> Any:
        from triton.runtime import driver

        kernel = compile_program(*args, **options)
        driver.active.launcher_cls(kernel.src, kernel.metadata)
        return kernel


@contextlib.contextmanager
def compile_ahead() -> Iterator[None]:
    """Programs that are launched inside are compiled, all at the same time, and not run: results are whatever was in
    memory. One after another they would take seconds."""
    global _only_compile
    mode: Any = contextlib.nullcontext()
    with CompilingThreads(THREADS) as threads:
        if HAS_TRITON:
            import triton

            mode = triton.AsyncCompileMode(threads)
        _only_compile = True
        try:
            with mode:
                yield
        finally:
            _only_compile = False
