"""Whether values may be looked at from Python."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

_graphs = 0  # CUDA graphs that are being recorded
_unread = 0  # `without_reading` blocks that are entered


def is_recording() -> bool:
    """Whether torch.compile or a CUDA graph records this run, to repeat it on other values, or it must not wait for the
    device. Then only the shapes of tensors may be read, not their values."""
    return torch.compiler.is_compiling() or is_capturing() or _unread > 0


def is_capturing() -> bool:
    """Whether this run, or the code being compiled, goes into a CUDA graph."""
    return _graphs > 0


def extremes(values: Tensor) -> tuple[int, int]:
    """The least and the greatest whole number of a tensor, for which a device is waited for once."""
    least, greatest = torch.stack(values.aminmax()).tolist()
    return least, greatest


@contextlib.contextmanager
def graph_capture() -> Iterator[None]:
    global _graphs
    _graphs += 1
    try:
        yield
    finally:
        _graphs -= 1


@contextlib.contextmanager
def capture(graph: Any, **options: Any) -> Iterator[None]:
    """What is launched inside goes into the CUDA graph. The workspaces of cuBLAS do, too, and torch keeps one for all
    graphs, in the memory of the first: each graph gets its own, which stays as long as the graph does."""
    torch._C._cuda_clearCublasWorkspaces()
    try:
        with torch.cuda.graph(graph, **options):
            yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


@contextlib.contextmanager
def without_reading() -> Iterator[None]:
    """Values are not looked at, as while recording: the host runs ahead of the device."""
    global _unread
    _unread += 1
    try:
        yield
    finally:
        _unread -= 1
