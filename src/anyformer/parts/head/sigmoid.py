"""SigLIP's similarity: every pair of a text and an image is judged separately [Zhai et al. 2023].

B texts, I images, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.head.similarity import ProjectionHead, ProjectionModule, SimilarityHead, SimilarityModule
from anyformer.specs.part import Site


class PooledVector(ProjectionHead):
    """The pooled sequence as the vector of a tower, without a projection. `width` must be the pooled width."""

    def check(self) -> None:
        super().check()
        self.check_width("PooledVector", self.pool.width)

    def check_width(self, address: str, width: int | None) -> None:
        if width not in (None, self.width):
            raise ValueError(f"{address}.width is {self.width}, but the pooled vector has width {width}")

    def build(self, site: Site) -> nn.Module:
        self.check_width(site.address, self.pool.width or site.width)
        return PooledVectorModule(self, site)


class PooledVectorModule(ProjectionModule):
    def __init__(self, part: PooledVector, site: Site) -> None:
        super().__init__(part, site)
        self.project = nn.Identity()


class SigmoidSimilarityHead(SimilarityHead, sees="itself", called=("SigLIP", "sigmoid loss")):
    """Cosine of every text with every image, times a learned factor, plus a learned bias. The loss is the
    cross-entropy of each pair: whether the text belongs to the image."""

    scale: float = 2.302585092994046  # initial logarithm of the factor: log 10
    bias: float = -10.0  # its initial value


class SigmoidSimilarityModule(SimilarityModule, of=SigmoidSimilarityHead):
    def __init__(self, part: SigmoidSimilarityHead, site: Site) -> None:
        super().__init__(part, site)
        self.bias = nn.Parameter(torch.tensor(part.bias))
        self.starts["bias"] = part.bias

    def logits(self, cosines: Tensor) -> Tensor:
        return super().logits(cosines) + self.bias

    def probabilities(self, logits: Tensor) -> Tensor:
        return logits.sigmoid()

    def pair_loss_sum(self, scores: Tensor) -> Tensor:
        signs = 2 * torch.eye(len(scores), device=scores.device) - 1
        return -F.logsigmoid(signs * scores.float()).sum()
