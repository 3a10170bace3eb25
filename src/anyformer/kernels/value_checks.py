"""Checks of tensor values that do not stall training on a GPU.

Reading a value from a GPU makes the host wait until the device has finished all earlier work. In a training loop that
happens once per check and step, and the device idles while the host catches up. `check_values` therefore reads at once
only on a CPU or if gradients are disabled. Otherwise it starts a copy to pinned memory and returns; the value is read,
and the error raised, by a later check: in the next training step at the latest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anyformer.kernels.capture import can_read_values

Judge = Callable[[Any], Exception | None]  # values.tolist() -> the error to raise, if any

MAX_PENDING = 64  # if more checks are pending, wait for the oldest one


class Pending(NamedTuple):
    values: Tensor  # pinned host memory, valid once `copied` has happened
    copied: torch.cuda.Event
    judge: Judge


_pending: deque[Pending] = deque()


def reads_later(values: Tensor) -> bool:
    """Whether `check_values` postpones reading `values`: on a GPU, while gradients are computed."""
    return values.is_cuda and torch.is_grad_enabled()


def check_values(values: Tensor, judge: Judge) -> None:
    """Raise the error that `judge` returns for `values`, now or in a later call (see the module's docstring)."""
    if not can_read_values() or values.is_meta:
        return
    raise_pending()
    if not reads_later(values):
        if error := judge(values.tolist()):
            raise error
        return
    copy = values.detach().to("cpu", non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()
    _pending.append(Pending(copy, copied, judge))


def raise_pending() -> None:
    """Raise the error of an earlier check whose values have arrived by now."""
    while _pending and (len(_pending) > MAX_PENDING or _pending[0].copied.query()):
        values, copied, judge = _pending.popleft()
        copied.synchronize()
        if error := judge(values.tolist()):
            _pending.clear()  # later values are probably bad as well
            raise error


def check_range(values: Tensor, limit: int, message: str) -> Tensor:
    """Check that integers are in [0, limit) and return them; `message` is formatted with the first bad `value`.

    If the values are read later, the returned values are clamped: a kernel that reads at an invalid index would abort.
    """
    if not can_read_values() or values.is_meta or not values.numel():
        return values

    def judge(extremes: list[int]) -> Exception | None:
        bad = next((value for value in extremes if not 0 <= value < limit), None)
        return None if bad is None else ValueError(message.format(value=bad))

    check_values(torch.stack(values.aminmax()), judge)
    return values.clamp(0, limit - 1) if reads_later(values) else values
