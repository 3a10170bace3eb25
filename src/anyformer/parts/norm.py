"""Normalisation layers. Slots of Sublayer decide where they apply: before the op, on the branch or after the add."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.few_rows import NormWeights
from anyformer.parts.base import PartModule
from anyformer.parts.decode_step import offers_norm
from anyformer.specs.field_types import Fraction, NonNegative
from anyformer.specs.part import Part, Site


class Norm(Part, abstract=True):
    """Normalises the last dimension. The module does not know which vectors are padding."""

    eps: NonNegative = 1e-5


class LayerNorm(Norm, sees="itself", called=("layer normalization", "LN")):
    """Gives each vector mean 0 and variance 1, then applies a learned scale and bias [Ba et al. 2016]."""

    bias: bool = True
    affine: bool = True  # False: no learned scale and bias

    def build(self, site: Site) -> nn.Module:
        return nn.LayerNorm(site.width, eps=self.eps, elementwise_affine=self.affine, bias=self.bias)


class RMSNorm(Norm, sees="itself"):
    """Divides each vector by its root mean square and applies a learned scale, in fp32 [Zhang and Sennrich 2019]."""

    eps: NonNegative = 1e-6


class RMSNormModule(PartModule, of=RMSNorm):
    def __init__(self, part: RMSNorm, site: Site) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(site.width))
        self.eps = part.eps

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float32:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        # half precision: normalise in fp32, round, then scale in the weight's dtype
        return F.rms_norm(x.float(), self.weight.shape, None, self.eps).to(x.dtype) * self.weight


@offers_norm(RMSNormModule)
def rms_norm_weights(norm: RMSNormModule) -> NormWeights:
    return NormWeights("rms", norm.weight, None, norm.eps)


class ScaleNorm(Norm, sees="itself"):
    """Rescales every vector to one learned length [Nguyen and Salazar 2019]."""


class ScaleNormModule(PartModule, of=ScaleNorm):
    def __init__(self, part: ScaleNorm, site: Site) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), site.width**0.5))
        self.starts = {"weight": site.width**0.5}
        self.eps = part.eps

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.weight / x.norm(dim=-1, keepdim=True).clamp(min=self.eps))


class UnitNorm(Norm, sees="itself", called=("L2 norm", "cosine attention")):
    """Rescales every vector to length 1; nothing is learned. Products of such queries and keys are cosines."""

    eps: NonNegative = 1e-12


class UnitNormModule(PartModule, of=UnitNorm):
    def __init__(self, part: UnitNorm, site: Site) -> None:
        super().__init__()
        self.eps = part.eps

    def forward(self, x: Tensor) -> Tensor:
        x32 = x.float() if x.element_size() < 4 else x  # eps is too small for half precision
        return F.normalize(x32, dim=-1, eps=self.eps).to(x.dtype)


class BatchNorm(Norm, sees="all", called=("BN",)):
    """Normalises each feature over batch and time, for comparisons with LayerNorm. In training, padding counts too, and
    a token's output depends on later tokens; evaluation uses the running statistics."""

    causal_alternative: ClassVar[str] = "LayerNorm()"

    momentum: Fraction = 0.1

    def build(self, site: Site) -> nn.Module:
        return BatchNormModule(site.width, eps=self.eps, momentum=self.momentum)


class BatchNormModule(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(0, -2)).view_as(x)  # (B, T, D) -> (B T, D)


class RowNorm(Part, sees="all", called=("GroupNorm",)):
    """Normalises with one mean and variance per row, then applies a scale and bias per channel [Wu and He 2018, with
    one group]. It needs the padding mask, so only some slots accept it."""

    causal_alternative: ClassVar[str] = "LayerNorm()"

    eps: NonNegative = 1e-5


class RowNormModule(PartModule, of=RowNorm):
    def __init__(self, part: RowNorm, site: Site) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(site.width)), nn.Parameter(torch.zeros(site.width))
        self.eps = part.eps

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """x (B, T, D); `real` (B, T) is True for the vectors that count; None: all."""
        if real is None:
            return F.group_norm(x.transpose(1, 2), 1, self.weight, self.bias, self.eps).transpose(1, 2)
        mask, x32 = real[..., None], x.float()
        count = (mask.sum(1, keepdim=True) * x.shape[2]).clamp(min=1)
        x32 = x32 - (x32 * mask).sum((1, 2), keepdim=True) / count
        variance = (x32.square() * mask).sum((1, 2), keepdim=True) / count
        return (x32 * torch.rsqrt(variance + self.eps)).to(x.dtype) * self.weight + self.bias
