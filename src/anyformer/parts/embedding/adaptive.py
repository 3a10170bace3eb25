"""Adaptive token embeddings: frequent tokens get wide vectors, rare tokens narrow ones [Baevski and Auli 2019].
The adaptive softmax is in parts/head/adaptive.py.

D width, n tokens of a cluster.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.base import PartModule
from anyformer.parts.embedding.text import Tokens, check_ids
from anyformer.parts.init import Normal
from anyformer.specs.field_types import Count
from anyformer.specs.part import Part, Site


def check_clusters(part: Part, vocab_size: int, cutoffs: tuple[int, ...], widths: tuple[int, ...]) -> None:
    kind = type(part).__name__
    if len(widths) != len(cutoffs) + 1:
        raise ValueError(f"{kind}.widths has {len(widths)} values, but the cutoffs make {len(cutoffs) + 1} clusters")
    if any(a >= b for a, b in itertools.pairwise((0, *cutoffs, vocab_size))):
        values = ", ".join(map(str, cutoffs))
        raise ValueError(f"{kind}.cutoffs are {values}; they must increase, above 0 and below vocab_size {vocab_size}")


class Clusters(PartModule):
    """One table per cluster, with a projection to the model's width if the cluster's width differs."""

    def __init__(self, vocab_size: int, cutoffs: tuple[int, ...], widths: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.ends = (*cutoffs, vocab_size)
        sizes = (end - start for start, end in itertools.pairwise((0, *self.ends)))
        pairs = zip(sizes, widths, strict=True)
        self.clusters: Any = nn.ModuleList(Cluster(size, narrow, width) for size, narrow in pairs)


class Cluster(nn.Module):
    def __init__(self, size: int, narrow: int, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(size, narrow))
        self.project = nn.Parameter(torch.empty(width, narrow)) if narrow != width else None
        self.starts = {"project": Normal(std=narrow**-0.5)}  # keeps the variance of the table's values

    def vectors(self, ids: Tensor) -> Tensor:
        """(...) -> (..., D)"""
        x = F.embedding(ids, self.table)
        return x if self.project is None else F.linear(x, self.project)

    def scores(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., n)"""
        return F.linear(x if self.project is None else F.linear(x, self.project.t()), self.table)


class AdaptiveTokens(Tokens, sees="itself", called=("adaptive input", "factorized embedding (widths=(128,))")):
    """One learned vector per token. Its width depends on the token's cluster; it is projected to the model's width."""

    widths: tuple[Count, ...]  # of each cluster's vectors
    cutoffs: tuple[int, ...] = ()  # first token id of each cluster after the first

    def check(self) -> None:
        super().check()
        check_clusters(self, self.vocab_size, self.cutoffs, self.widths)
        if self.width is not None or self.padding_index is not None:
            raise ValueError("AdaptiveTokens uses `widths`; width and padding_index must not be set")


class AdaptiveTokensModule(Clusters, of=AdaptiveTokens):
    def __init__(self, part: AdaptiveTokens, site: Site) -> None:
        super().__init__(part.vocab_size, part.cutoffs, part.widths, site.width)
        self.scale = part.scale

    def forward(self, ids: Tensor) -> Tensor:
        check_ids(ids, self.ends[-1])
        x: Any = None
        for start, end, cluster in zip((0, *self.ends), self.ends, self.clusters):
            vectors = cluster.vectors((ids - start).clamp(0, end - start - 1))  # other ids get any vector
            x = vectors if x is None else torch.where((ids >= start)[..., None], vectors, x)
        return x if self.scale is None else x * self.scale
