"""Launching and compiling Triton programs.

On Hopper and later GPUs, a program may start before the previous one has ended (programmatic dependent launch). Before
its `gdc_wait` it reads only data that the previous program does not write, such as weights. It writes after it.
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
THREADS = 16  # number of compiling threads

_only_compile = False


@functools.cache
def early_start(device: torch.device) -> dict[str, bool]:
    early = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
    return {"EARLY": True, "launch_pdl": True} if early else {"EARLY": False}


@functools.cache
def shared_memory(device: torch.device) -> int:
    """Return the bytes of shared memory that one program can use."""
    properties: Any = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return getattr(properties, "shared_memory_per_block_optin", 2**16)  # AMD devices do not have this attribute


def launch_errors() -> tuple[type[Exception], ...]:
    """Return the errors of programs that cannot be compiled for a device, or need more resources than it has."""
    if not HAS_TRITON:
        return ()
    from triton.errors import TritonError

    return (TritonError,)


def launch(program: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Launch a program on a grid, on the device of its first argument."""
    options |= early_start(args[0].device)
    if _only_compile:
        program.warmup(*args, grid=grid, **options)
    else:
        program[grid](*args, **options)


@functools.cache
def start_compiler() -> None:
    """Start Triton's initialisation, about a second per process, in another thread, while the prompt is processed."""
    if HAS_TRITON and torch.cuda.is_available():
        threading.Thread(target=_start_compiler, daemon=True).start()


def _start_compiler() -> None:
    from triton.runtime import cache, driver

    driver.active.get_current_target()
    if hasattr(cache, "triton_key"):  # a digest of Triton's files, part of the cache key of compiled programs
        cache.triton_key()


class CompilingThreads(ThreadPoolExecutor):
    """Threads that compile programs and their C launchers, which Triton would compile at the first launch."""

    def submit(self, compile_program: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        return super().submit(self.compile, compile_program, *args, **options)

    def compile(self, compile_program: Callable[..., Any], *args: Any, **options: Any) -> Any:
        from triton.runtime import driver

        kernel = compile_program(*args, **options)
        driver.active.launcher_cls(kernel.src, kernel.metadata)
        return kernel


@contextlib.contextmanager
def compile_ahead() -> Iterator[None]:
    """Compile the programs launched inside the context, in parallel, without running them, so outputs are
    uninitialised. Compiling them one after another would take seconds."""
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
