"""RMSNorm with weights around zero: a weight of 0 scales by 1 [Gemma, 2024]."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.norm import Norm
from anyformer.specs.field_types import NonNegative
from anyformer.specs.part import Site


class ZeroCenteredRMSNorm(Norm, sees="itself", called=("Gemma RMSNorm", "zero-centered gamma")):
    """Divides each vector by its root mean square and multiplies it by 1 + weight, in fp32 [Gemma, 2024]. The weights
    start at 0."""

    eps: NonNegative = 1e-6

    def build(self, site: Site) -> nn.Module:
        return ZeroCenteredRMSNormModule(site.width, self.eps)


class ZeroCenteredRMSNormModule(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.starts, self.eps = {"weight": 0.0}, eps

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == self.weight.dtype and x.element_size() >= 4:
            return F.rms_norm(x, self.weight.shape, 1 + self.weight, self.eps)
        # half precision: unlike RMSNorm, round only after the scale
        return F.rms_norm(x.float(), self.weight.shape, 1 + self.weight.float(), self.eps).to(x.dtype)
