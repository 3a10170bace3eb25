"""The internal calling convention: the inputs of a forward pass (`Call`) and of the head (`HeadInputs`)."""

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
    """The inputs of one forward pass. Objectives, towers, generation and FLOP counting call a model with this."""

    inputs: dict[str, Any]  # tensors by the names in `model.inputs`, without those that are None
    state: State | None = None  # KV cache and other decoding state; the call extends it
    taps: Taps | None = None  # receives intermediate values
    kernel: str = "auto"  # attention kernel


class HeadInputs(NamedTuple):
    """The last hidden states and everything else that the head reads."""

    x: Tensor  # (B, T, D)
    ctx: Context
    inputs: dict[str, Any]  # as arranged by the head
    others: Outputs  # named outputs of modules other than the head: encoder_last_hidden_state, mems, ...
