"""Heads over large vocabularies: adaptive softmax [Grave et al. 2017] and mixture of softmaxes [Yang et al. 2018].

D width, C softmaxes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.loss import IGNORED
from anyformer.parts.embedding.adaptive import Clusters, check_clusters
from anyformer.parts.head.language import LMHead, LMHeadModule
from anyformer.specs.field_types import Count


class AdaptiveHead(LMHead, sees="itself", called=("adaptive softmax",)):
    """Scores over a vocabulary that is divided into clusters. One softmax covers the tokens of the first
    cluster and one entry per other cluster; each of these has its own softmax over its tokens."""

    widths: tuple[Count, ...]  # of each cluster's vectors
    cutoffs: tuple[int, ...] = ()  # first token id of each cluster after the first
    hierarchical: bool = True  # False: one softmax over the tokens of all clusters

    def check(self) -> None:
        check_clusters(self, self.vocab_size, self.cutoffs, self.widths)
        if self.bias or self.unused_bias:
            raise ValueError("AdaptiveHead has no bias or unused_bias")


class OwnScores(LMHeadModule):
    """A head whose scores are not one matrix product, so the fused linear cross-entropy does not apply."""

    def cross_entropy(self, x: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        scores, labels = self.logits(x).float().flatten(0, -2), labels.flatten()
        return F.cross_entropy(scores, labels, ignore_index=IGNORED, label_smoothing=smoothing, reduction="sum")


class AdaptiveHeadModule(OwnScores, of=AdaptiveHead):
    part: AdaptiveHead

    def output(self, width: int) -> nn.Module:
        out = Clusters(self.part.vocab_size, self.part.cutoffs, self.part.widths, width)
        rest = len(self.part.cutoffs)
        self.others = nn.Linear(width, rest, bias=False) if rest and self.part.hierarchical else None
        return out

    def logits(self, x: Tensor) -> Tensor:
        first, *rest = (cluster.scores(x) for cluster in self.out.clusters)
        if self.others is None:
            return torch.cat((first, *rest), dim=-1)
        size = first.shape[-1]
        head = torch.cat((first, self.others(x)), dim=-1).float().log_softmax(-1)
        within = [tail.float().log_softmax(-1) + head[..., size + i, None] for i, tail in enumerate(rest)]
        return torch.cat((head[..., :size], *within), dim=-1).to(x.dtype)


class MixtureHead(LMHead, sees="itself", called=("mixture of softmaxes", "MoS")):
    """Log-probabilities of a mixture of `softmaxes` distributions over the vocabulary. Each distribution has its own
    projection of the hidden state; the mixture weights depend on the hidden state too."""

    softmaxes: Count = 15  # C

    def check(self) -> None:
        if self.unused_bias:
            raise ValueError("MixtureHead has no unused_bias")


class MixtureHeadModule(OwnScores, of=MixtureHead):
    part: MixtureHead

    def output(self, width: int) -> nn.Module:
        self.mix = nn.Linear(width, self.part.softmaxes, bias=False)
        self.each = nn.Linear(width, self.part.softmaxes * width, bias=False)
        return super().output(width)

    def logits(self, x: Tensor) -> Tensor:
        vectors = torch.tanh(self.each(x)).unflatten(-1, (self.part.softmaxes, -1))  # (..., C, D)
        shares = self.mix(x).float().log_softmax(-1)[..., None]
        return (self.out(vectors).float().log_softmax(-1) + shares).logsumexp(-2).to(x.dtype)
