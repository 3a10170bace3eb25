"""Residual connections: how a branch is combined with the stream."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from anyformer.parts.activation import ACTIVATIONS, Activation
from anyformer.parts.base import PartModule
from anyformer.specs.part import Part, Site


class Residual(Part, abstract=True):
    """Its module maps (x, branch) to the new x. If that is invertible, `undo` maps (new x, branch) back to x."""

    @property
    def undoes(self) -> bool:
        return False


class Add(Residual, sees="itself", called=("skip connection", "residual connection")):
    """x + branch"""

    undoes: ClassVar[bool] = True

    float32: bool = False  # keep the stream in fp32 if weights and branches are half precision (Mamba)

    def build(self, site: Site) -> nn.Module:
        return ScaledModule(1.0, 1.0, self.float32)


class Scaled(
    Residual, sees="itself", called=("DeepNorm (skip=alpha)", "half-step (branch=0.5)", "DeepNet (skip=alpha)")
):
    """skip * x + branch * f(x). The Conformer's half-step is branch=0.5; DeepNorm [Wang et al. 2022] is skip=alpha
    with the norm after the add: `Sublayer(residual=Scaled(skip=alpha), out_norm=LayerNorm())`, see `deepnorm`."""

    skip: float = 1.0
    branch: float = 1.0

    @property
    def undoes(self) -> bool:
        return self.skip != 0

    def build(self, site: Site) -> nn.Module:
        return ScaledModule(self.skip, self.branch)


class ScaledModule(nn.Module):
    def __init__(self, skip: float, branch: float, float32: bool = False) -> None:
        super().__init__()
        self.skip, self.scale, self.float32 = skip, branch, float32
        self.plain = skip == branch == 1.0 and not float32  # x + branch

    def forward(self, x: Tensor, branch: Tensor) -> Tensor:
        if self.plain:
            return x + branch
        if self.float32:
            x = x.float()
        if self.skip != 1.0:
            x = x * self.skip
        return torch.add(x, branch, alpha=self.scale)

    def undo(self, y: Tensor, branch: Tensor) -> Tensor:
        return torch.sub(y, branch, alpha=self.scale) / self.skip


class Activated(Residual, sees="itself", called=("ResNet's sum",)):
    """activation(x + branch), as in ResNet [He et al. 2016]."""

    activation: Activation = "relu"


class ActivatedModule(PartModule, of=Activated):
    def __init__(self, part: Activated, site: Site) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[part.activation]

    def forward(self, x: Tensor, branch: Tensor) -> Tensor:
        return self.activation(x + branch)


class ReZero(Residual, sees="itself"):
    """x + a * branch, with a learned scalar a that starts at 0 [Bachlechner et al. 2020]."""

    undoes: ClassVar[bool] = True


class ReZeroModule(PartModule, of=ReZero):
    starts: ClassVar[dict[str, float]] = {"weight": 0.0}

    def __init__(self, part: ReZero, site: Site) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, branch: Tensor) -> Tensor:
        return x + self.weight * branch

    def undo(self, y: Tensor, branch: Tensor) -> Tensor:
        return y - self.weight * branch


class Fixup(Residual, sees="itself"):
    """x + a * branch + b, with learned scalars a and b that start at 1 and 0, for stacks without norms [Zhang et al.
    2019]. The initialisation (`init.fixup`) scales the branch's weights down."""

    undoes: ClassVar[bool] = True


class FixupModule(PartModule, of=Fixup):
    starts: ClassVar[dict[str, float]] = {"weight": 1.0, "bias": 0.0}

    def __init__(self, part: Fixup, site: Site) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, branch: Tensor) -> Tensor:
        return x + self.weight * branch + self.bias

    def undo(self, y: Tensor, branch: Tensor) -> Tensor:
        return y - self.weight * branch - self.bias


class LayerScale(Residual, sees="itself", called=("CaiT",)):
    """x + a * branch, with one learned a per channel that starts small [Touvron et al. 2021]."""

    undoes: ClassVar[bool] = True

    start: float = 1e-5


class LayerScaleModule(PartModule, of=LayerScale):
    def __init__(self, part: LayerScale, site: Site) -> None:
        super().__init__()
        self.starts = {"weight": part.start}
        self.weight = nn.Parameter(torch.full((site.width,), part.start))

    def forward(self, x: Tensor, branch: Tensor) -> Tensor:
        return x + self.weight * branch

    def undo(self, y: Tensor, branch: Tensor) -> Tensor:
        return y - self.weight * branch


ADD = Add()


def deepnorm(encoder: int = 0, decoder: int = 0) -> dict[str, tuple[float, float]]:
    """Return stack -> (alpha, beta) for these numbers of layers. alpha scales the skip (`Scaled`), beta is the gain of
    the initialisation (`init.deepnorm`) [Wang et al. 2022, table 1]."""
    if encoder < 0 or decoder < 0 or not encoder + decoder:
        raise ValueError(f"deepnorm needs encoder or decoder layers, got encoder={encoder}, decoder={decoder}")
    if not encoder or not decoder:
        name, depth = ("encoder", encoder) if encoder else ("decoder", decoder)
        return {name: ((2 * depth) ** 0.25, (8 * depth) ** -0.25)}
    both = (encoder**4 * decoder) ** (1 / 16)
    return {"encoder": (0.81 * both, 0.87 / both), "decoder": ((3 * decoder) ** 0.25, (12 * decoder) ** -0.25)}
