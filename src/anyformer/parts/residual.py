"""How a branch joins the residual stream."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anyformer.spec import Part, Site


class Residual(Part):
    """The module maps (x, branch) to the new x."""


class Add(Residual):
    """x + branch"""

    def build(self, site: Site) -> nn.Module:
        return ScaledModule(1.0, 1.0)


class Scaled(Residual):
    """skip * x + branch * f(x). The Conformer's half-step is branch=0.5; DeepNorm [Wang et al. 2022] is skip=alpha
    with the norm after the add."""

    skip: float = 1.0
    branch: float = 1.0

    def build(self, site: Site) -> nn.Module:
        return ScaledModule(self.skip, self.branch)


class ScaledModule(nn.Module):
    def __init__(self, skip: float, branch: float) -> None:
        super().__init__()
        self.skip, self.scale = skip, branch

    def forward(self, x: Tensor, branch: Tensor) -> Tensor:
        if self.skip != 1.0:
            x = x * self.skip
        return torch.add(x, branch, alpha=self.scale)


class ReZero(Residual):
    """x + a * branch, the scalar a learned from 0 [Bachlechner et al. 2020]."""

    def build(self, site: Site) -> nn.Module:
        return ReZeroModule()


class ReZeroModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, branch: Tensor) -> Tensor:
        return x + self.weight * branch


class Fixup(Residual):
    """x + a * branch + b, scalars learned from 1 and 0, for stacks without norms [Zhang et al. 2019]; the
    initialisation scales the branch's weights down."""

    def build(self, site: Site) -> nn.Module:
        return FixupModule()


class FixupModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, branch: Tensor) -> Tensor:
        return x + self.weight * branch + self.bias


class LayerScale(Residual):
    """x + a * branch, one learned a per channel, small at first [Touvron et al. 2021]."""

    start: float = 1e-5

    def build(self, site: Site) -> nn.Module:
        return LayerScaleModule(site.width, self.start)


class LayerScaleModule(nn.Module):
    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.start = start
        self.weight = nn.Parameter(torch.full((width,), start))

    def forward(self, x: Tensor, branch: Tensor) -> Tensor:
        return x + self.weight * branch


ADD = Add()
