"""The gated feed-forward of gpt-oss, whose activations are bounded."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from anyformer.parts.feedforward.base import FeedForward
from anyformer.parts.feedforward.mlp import GatedMLPModule
from anyformer.specs.field_types import Positive
from anyformer.specs.part import Site


class ClampedGatedMLP(FeedForward, sees="itself", called=("clamped SwiGLU",)):
    """down(gate * sigmoid(alpha * gate) * (up + 1)), with gate at most `limit` and up within +-`limit` [gpt-oss,
    2025]."""

    gated: ClassVar[bool] = True

    alpha: float = 1.702
    limit: Positive = 7.0

    def inner(self, gate: Tensor, up: Tensor) -> Tensor:  # type: ignore[override]
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return gate * torch.sigmoid(gate * self.alpha) * (up + 1)

    def build(self, site: Site) -> nn.Module:
        return GatedMLPModule(self, site.width)
