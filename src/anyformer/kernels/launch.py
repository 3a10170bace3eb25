"""How programs of Triton are started.

On Hopper and later devices a program may start before the one in front of it has ended (programmatic dependent launch):
what it reads before its `gdc_wait` is weights, which nobody writes, and what it writes comes after.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
from collections.abc import Iterator
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


@contextlib.contextmanager
def compile_ahead() -> Iterator[None]:
    """Programs that are launched inside are compiled, all at the same time, and not run: results are whatever was in
    memory. One after another they would take seconds."""
    global _only_compile
    mode: Any = contextlib.nullcontext()
    with concurrent.futures.ThreadPoolExecutor(THREADS) as threads:
        if HAS_TRITON:
            import triton

            mode = triton.AsyncCompileMode(threads)
        _only_compile = True
        try:
            with mode:
                yield
        finally:
            _only_compile = False
