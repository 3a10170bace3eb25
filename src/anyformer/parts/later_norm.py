"""A norm that the first layer does not have (ModernBERT)."""

from __future__ import annotations

from torch import nn

from anyformer.parts.norm import LayerNorm
from anyformer.specs.part import Site


class LaterLayerNorm(LayerNorm, sees="itself"):
    """LayerNorm in all layers except the first, whose input is the normed embedding [Warner et al. 2024]."""

    def build(self, site: Site) -> nn.Module:
        return super().build(site) if site.layer else nn.Identity()
