"""Normalisations. Where one stands (before, on the branch, after the add) is a slot of Sublayer, not a kind of norm."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.specs.checks import at_least
from anyformer.specs.part import Part, Site


class Norm(Part):
    """Normalises the last dimension. The module sees only the vectors, not which of them are pads."""

    eps: float = 1e-5

    def check(self) -> None:
        at_least(self, 0, "eps")


class LayerNorm(Norm, sees="itself", called=("layer normalization", "LN")):
    """Mean and variance of each vector, then a learned scale and bias [Ba et al. 2016]."""

    bias: bool = True
    affine: bool = True  # False: neither scale nor bias is learned

    def build(self, site: Site) -> nn.Module:
        return nn.LayerNorm(site.width, eps=self.eps, elementwise_affine=self.affine, bias=self.bias)


class RMSNorm(Norm, sees="itself"):
    """No mean, no bias; computed in fp32 whatever the input [Zhang and Sennrich 2019]."""

    eps: float = 1e-6

    def build(self, site: Site) -> nn.Module:
        return RMSNormModule(site.width, self.eps)


class RMSNormModule(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float32:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        # half precision: normalise in fp32, round, then scale in the weight's own type
        return F.rms_norm(x.float(), self.weight.shape, None, self.eps).to(x.dtype) * self.weight


class ScaleNorm(Norm, sees="itself"):
    """One learned length for every vector, no direction of its own [Nguyen and Salazar 2019]."""

    def build(self, site: Site) -> nn.Module:
        return ScaleNormModule(site.width, self.eps)


class ScaleNormModule(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), width**0.5))
        self.starts = {"weight": width**0.5}
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.weight / x.norm(dim=-1, keepdim=True).clamp(min=self.eps))


class UnitNorm(Norm, sees="itself", called=("L2 norm", "cosine attention")):
    """Every vector has length 1 and nothing is learned: of queries and keys, their products are cosines."""

    eps: float = 1e-12

    def build(self, site: Site) -> nn.Module:
        return UnitNormModule(self.eps)


class UnitNormModule(nn.Module):
    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float() if x.element_size() < 4 else x  # half precision has no such eps
        return F.normalize(wide, dim=-1, eps=self.eps).to(x.dtype)


class BatchNorm(Norm, sees="all", called=("BN",)):
    """Statistics over batch and time instead of features: the comparison the lectures draw. In training every vector
    counts, pads too, and a token's output depends on later ones; in evaluation the running statistics are used."""

    momentum: float = 0.1

    def check(self) -> None:
        super().check()
        if not 0 <= self.momentum <= 1:
            raise ValueError(f"BatchNorm.momentum is {self.momentum}; it must be in [0, 1]")

    @property
    def causal_alternative(self) -> str:
        return "LayerNorm()"

    def build(self, site: Site) -> nn.Module:
        return BatchNormModule(site.width, eps=self.eps, momentum=self.momentum)


class BatchNormModule(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(0, -2)).view_as(x)  # (B, T, D) -> (B T, D)


class RowNorm(Part, sees="all", called=("GroupNorm",)):
    """One mean and variance for all vectors of a row together, then a scale and bias for each channel [Wu and He 2018,
    of one group]. It needs the mask of pads, so only some slots take it."""

    eps: float = 1e-5

    def check(self) -> None:
        at_least(self, 0, "eps")

    @property
    def causal_alternative(self) -> str:
        return "LayerNorm()"

    def build(self, site: Site) -> nn.Module:
        return RowNormModule(site.width, self.eps)


class RowNormModule(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """x (B, T, D); `real` (B, T) where only some vectors count."""
        if real is None:
            return F.group_norm(x.transpose(1, 2), 1, self.weight, self.bias, self.eps).transpose(1, 2)
        share, wide = real[..., None], x.float()
        number = (share.sum(1, keepdim=True) * x.shape[2]).clamp(min=1)
        wide = wide - (wide * share).sum((1, 2), keepdim=True) / number
        spread = (wide.square() * share).sum((1, 2), keepdim=True) / number
        return (wide * torch.rsqrt(spread + self.eps)).to(x.dtype) * self.weight + self.bias
