"""Hidden states with the mask of real frames."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from anyformer.parts.head.base import Head, HeadModule, NamedTensors
from anyformer.runtime.context import Context
from anyformer.specs.part import Site


class RealOutput(Head):
    """The hidden states and, if a mask was given, the `attention_mask` of the output frames (ParakeetEncoder)."""

    def build(self, site: Site) -> nn.Module:
        return RealOutputModule()


class RealOutputModule(HeadModule):
    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> NamedTensors:
        outputs = {"last_hidden_state": x}
        return outputs if ctx.tokens is None else {**outputs, "attention_mask": ctx.tokens.int()}
