"""Whether values may be looked at from Python."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

_graphs = 0  # CUDA graphs that are being recorded


def is_recording() -> bool:
    """Whether what runs is being recorded, by torch.compile or into a CUDA graph, to be run again on other values: then
    nothing may be asked of a tensor but its shape."""
    return is_capturing() or torch.compiler.is_compiling()


def is_capturing() -> bool:
    """Whether what runs, or is being compiled, goes into a CUDA graph."""
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
