"""One forward pass from the inside: what a model is called with, and what it computes before its head."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from torch import Tensor

from anyformer.parts.head.base import Outputs
from anyformer.runtime.context import Context
from anyformer.runtime.state import State
from anyformer.runtime.taps import Taps


@dataclasses.dataclass(frozen=True)
class Call:
    """The inputs of one forward pass. Objectives, towers, generation and counting call a model with this."""

    inputs: dict[str, Any]  # tensors by the names in `model.inputs`; None is left out
    state: State | None = None  # KV cache and other decoding state, read and extended
    taps: Taps | None = None  # who listens to values on the way
    kernel: str = "auto"  # of attention


class HeadInputs(NamedTuple):
    """The last hidden states, which the head reads."""

    x: Tensor  # (B, T, D)
    ctx: Context
    inputs: dict[str, Any]  # as the head takes them
    others: Outputs  # named outputs that do not come from the head: encoder_last_hidden_state, mems, ...
