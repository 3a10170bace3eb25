"""Vocabularies in clusters, the frequent tokens with wide vectors and the rare ones with narrow ones, to be read
[Baevski and Auli 2019] and to be written [Grave et al. 2017]; and several softmaxes in one [Yang et al. 2018].

B batch, T tokens, D width, V vocabulary, n tokens of a cluster, w their width, C softmaxes.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.embedding.text import Tokens, check_ids
from anyformer.parts.init import Normal
from anyformer.specs.part import Part, Site


def check_clusters(part: Part, vocab_size: int, cutoffs: tuple[int, ...], widths: tuple[int, ...]) -> None:
    kind = type(part).__name__
    if len(widths) != len(cutoffs) + 1:
        raise ValueError(f"{kind}.widths has {len(widths)} for the {len(cutoffs) + 1} clusters between the cutoffs")
    if any(width < 1 for width in widths):
        raise ValueError(f"{kind}.widths are {', '.join(map(str, widths))}; each must be at least 1")
    if any(a >= b for a, b in itertools.pairwise((0, *cutoffs, vocab_size))):
        found = ", ".join(map(str, cutoffs))
        raise ValueError(f"{kind}.cutoffs are {found}; they grow from above 0 to below the vocabulary of {vocab_size}")


class Clusters(nn.Module):
    """A table for each cluster, with a projection to the model's width where it is narrower."""

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
        self.starts = {"project": Normal(std=narrow**-0.5)}  # vectors are as long as those of the table would be

    def vectors(self, ids: Tensor) -> Tensor:
        """(...) -> (..., D)"""
        x = F.embedding(ids, self.table)
        return x if self.project is None else F.linear(x, self.project)

    def scores(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., n)"""
        return F.linear(x if self.project is None else F.linear(x, self.project.t()), self.table)


# -- read -------------------------------------------------------------------------------------------------------------


class AdaptiveTokens(Tokens, sees="itself", called=("adaptive input", "factorized embedding (widths=(128,))")):
    """One learned vector a token, of a width that its cluster of the vocabulary has, and projected to the model's."""

    widths: tuple[int, ...]  # of each cluster
    cutoffs: tuple[int, ...] = ()  # the first tokens of all clusters but the first

    def check(self) -> None:
        super().check()
        check_clusters(self, self.vocab_size, self.cutoffs, self.widths)
        if self.width is not None or self.padding_index is not None or self.unused_table:
            raise ValueError("AdaptiveTokens has widths of its own, and neither width, padding_index nor unused_table")

    def build(self, site: Site) -> nn.Module:
        return AdaptiveTokensModule(self, site.width)


class AdaptiveTokensModule(Clusters):
    def __init__(self, part: AdaptiveTokens, width: int) -> None:
        super().__init__(part.vocab_size, part.cutoffs, part.widths, width)
        self.scale = part.scale

    def forward(self, ids: Tensor) -> Tensor:
        check_ids(ids, self.ends[-1])
        x: Any = None
        for start, end, cluster in zip((0, *self.ends), self.ends, self.clusters):
            found = cluster.vectors((ids - start).clamp(0, end - start - 1))  # of those that are not in it, any
            x = found if x is None else torch.where((ids >= start)[..., None], found, x)
        return x if self.scale is None else x * self.scale


# -- written ----------------------------------------------------------------------------------------------------------
