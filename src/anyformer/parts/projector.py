"""Projectors: they map the vectors of a tower (images, audio) to the width of the text that contains them.

B batch, N vectors, W width of the tower's vectors, D width of the text.
"""

from __future__ import annotations

from torch import Tensor, nn

from anyformer.parts.activation import ACTIVATIONS, Activation
from anyformer.specs.part import Part, Site


class Projector(Part, abstract=True):
    """Base class of projectors. Their modules map (B, N, W) to (B, M, D)."""

    def project(self, site: Site, width: int) -> nn.Module:
        """Build the module at `site`, whose width is D, for vectors of `width` W."""
        raise NotImplementedError

    def count(self, vectors: int) -> int:
        """Return M, the number of vectors after the projection of `vectors` vectors."""
        return vectors


class MLPProjector(Projector, sees="itself", called=("LLaVA's projector",)):
    """Two linear layers with an activation between them [Liu et al. 2023]."""

    activation: Activation = "gelu"
    bias: bool = True

    def project(self, site: Site, width: int) -> nn.Module:
        return MLPProjectorModule(self, site, width)


class MLPProjectorModule(nn.Module):
    def __init__(self, part: MLPProjector, site: Site, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, site.width, bias=part.bias)
        self.down = nn.Linear(site.width, site.width, bias=part.bias)
        self.activation = ACTIVATIONS[part.activation]

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))
