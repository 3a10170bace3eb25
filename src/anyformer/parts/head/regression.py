"""Head of in-context regression: the value of each point, predicted from the pairs before it.

B batch, N pairs.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from anyformer.parts.embedding.regression_pairs import KINDS
from anyformer.parts.head.base import Head, HeadModule, NamedTensors
from anyformer.parts.head.losses import Loss
from anyformer.runtime.context import Context
from anyformer.specs.part import Site


class PairHead(Head, sees="itself"):
    """Predicts the value of each point; the loss is the squared error to the given values."""

    requires: ClassVar[tuple[str, ...]] = ("pairs",)
    remembers: ClassVar[bool] = False


class PairModule(HeadModule, of=PairHead):
    def __init__(self, part: PairHead, site: Site) -> None:
        super().__init__()
        self.out = nn.Linear(site.width, 1)

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> NamedTensors:
        return {"predictions": self.out(x[:, ::KINDS]).squeeze(-1)}  # (B, N)

    def judge(self, outputs: NamedTensors, ctx: Context, inputs: dict[str, Any]) -> dict[str, Loss]:
        predictions, mask = outputs["predictions"].float(), inputs.get("attention_mask")
        each = (predictions - inputs["values"].float()).square()
        return {"loss": Loss(each.sum(), each.numel()) if mask is None else Loss((each * mask).sum(), mask.sum())}
