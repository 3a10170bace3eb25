"""CUDA graph capture, and whether Python may read tensor values.

Code that torch.compile traces or a CUDA graph captures is repeated on different values, so it must not depend on them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

_graphs = 0  # CUDA graphs that are being captured
_unread = 0  # `without_reading` blocks that are active


def can_read_values() -> bool:
    """Whether tensor values may be read: not while compiling or capturing, and not inside `without_reading`."""
    return not (torch.compiler.is_compiling() or is_capturing() or _unread > 0)


def is_capturing() -> bool:
    """Whether this run, or the code being compiled, is captured in a CUDA graph."""
    return _graphs > 0


def extremes(values: Tensor) -> tuple[int, int]:
    """Return the minimum and maximum of an integer tensor, with one device synchronization."""
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
    """Capture the kernels launched in this block in a CUDA graph.

    Torch would keep one cuBLAS workspace for all graphs, in the memory of the first. Clearing it gives each graph a
    workspace that lives as long as the graph.
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        with torch.cuda.graph(graph, **options):
            yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


@contextlib.contextmanager
def without_reading() -> Iterator[None]:
    """Read no tensor values in this block, so that the host runs ahead of the device."""
    global _unread
    _unread += 1
    try:
        yield
    finally:
        _unread -= 1
