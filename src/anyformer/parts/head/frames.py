"""Hidden states with the mask of real frames."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from anyformer.parts.head.base import Head, HeadModule, NamedTensors
from anyformer.runtime.context import Context


class RealOutput(Head):
    """The hidden states and, if a mask was given, the `attention_mask` of the output frames (ParakeetEncoder)."""


class RealOutputModule(HeadModule, of=RealOutput):
    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> NamedTensors:
        outputs = {"last_hidden_state": x}
        return outputs if ctx.tokens is None else {**outputs, "attention_mask": ctx.tokens.int()}
