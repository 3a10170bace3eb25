"""Whether values may be looked at from Python."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

_graphs = 0  # CUDA graphs that are being recorded


def is_recording() -> bool:
    """Whether torch.compile or a CUDA graph records this run, to repeat it on other values. Then only the shapes of
    tensors may be read, not their values."""
    return is_capturing() or torch.compiler.is_compiling()


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
