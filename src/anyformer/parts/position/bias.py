"""Position schemes of the attention: their base classes, and the schemes that add a bias to the scores.

A bias (B, H, T, S) must be contiguous in memory along S; otherwise torch does not use its fused kernels.

B batch, T tokens, S visible keys, H heads, K head width, R entries, one per distance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from anyformer.parts.base import PartModule
from anyformer.parts.computed import Computed
from anyformer.parts.position import dependency_tree
from anyformer.parts.position.dependency_tree import Tree
from anyformer.runtime.context import Context, InputExtra, select_tokens
from anyformer.specs.field_types import Count, Natural
from anyformer.specs.part import Part, Sees, Site


class AttentionPosition(Part, abstract=True):
    """A position scheme of the attention. `build` gets the head width K as `site.width`."""

    @property
    def extra_inputs(self) -> tuple[type[InputExtra], ...]:
        """Extras that it reads, made from inputs of the call (`runtime.context.InputExtra`)."""
        return ()

    @property
    def can_share(self) -> bool:
        """Whether the layers of a Stack can share its bias. Such a bias depends only on positions, and `forward` of the
        module returns it."""
        return False


class HeadwisePosition(AttentionPosition, abstract=True):
    """A scheme with parameters per head."""

    num_heads: Count


Projections = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]  # a mixer's projections to queries and keys


class AttentionPositionModule(PartModule):
    has_values: bool = False  # `values` adds a term to the mixed values, which needs the eager kernel
    turns_stream: bool = False  # `source` rotates the input, head by head
    needs_width: int | None = None  # width of its vectors that the attention projects; None: there are none
    silent: bool = False  # there is nothing to trace

    def source(self, x: Tensor, ctx: Context) -> Tensor:
        """Return the input (B,T,D) of the query and key projections; a scheme may rotate it."""
        return x

    def rotate(self, q: Tensor, k: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """Rotate the queries (B,H,T,K) and the new keys (B,G,T,K), before the keys are cached."""
        return q, k

    def bias(self, q: Tensor, places: Tensor, scale: float, ctx: Context) -> tuple[Tensor, Tensor | None]:
        """Return the queries for the content term, and the bias (1 or B, H, T, S) that is added to the scaled scores,
        for keys at row indices `places` (S,) or (B, S)."""
        return q, None

    def key_bias(
        self, q: Tensor, k: Tensor, places: Tensor, scale: float, ctx: Context, projections: Projections
    ) -> tuple[Tensor, Tensor | None]:
        """Like `bias`, for a scheme that reads the keys (B,G,S,K) or uses the mixer's projections for its vectors."""
        return self.bias(q, places, scale, ctx)

    def values(self, weights: Tensor, places: Tensor, ctx: Context) -> Tensor:
        """Return the term (B,H,T,K) that is added to the mixed values, from the attention weights (B,H,T,S)."""
        raise NotImplementedError

    def forward(self, index: Tensor, places: Tensor) -> Tensor:
        """Return the bias (1 or B, H, T, S) of queries at `index` (T,) or (B, T) and keys at `places` (S,) or (B, S),
        if it depends on nothing else, so that the layers of a Stack can share it."""
        raise NotImplementedError


def rotate_and_tap(
    position: AttentionPositionModule, q: Tensor, k: Tensor, ctx: Context, address: str
) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys for the mixer at `address`; they are traced as one tensor (B, H + G, T, K)."""
    new_q, new_k = position.rotate(q, k, ctx)
    if new_q is q or not ctx.wants(address, "position"):
        return new_q, new_k
    both = ctx.tap(address, "position", torch.cat((new_q, new_k), dim=1))
    return both[:, : q.shape[1]], both[:, q.shape[1] :]


def distance(index: Tensor, places: Tensor) -> Tensor:
    """(1 or B, T, S) key index - query index."""
    apart = places[..., None, :] - index[..., :, None]
    return apart if apart.dim() == 3 else apart[None]


def distance_in(ctx: Context, places: Tensor) -> Tensor:
    """The same for the queries of this pass and keys at row indices `places` (S,) or (B, S)."""
    index, keys = ctx.relative_positions()
    return distance(index, places if keys.dim() == 1 else select_tokens(keys, places))


class BucketedBias(HeadwisePosition, sees="itself", called=("T5 bias", "relative position bias")):
    """One learned scalar per head and bucket of distances; far buckets are wider [Raffel et al. 2020]."""

    can_share: ClassVar[bool] = True

    num_buckets: int = 32
    max_distance: int = 128
    both_ways: bool = True  # separate buckets for later keys, which a decoder never sees

    def check(self) -> None:
        least = 4 if self.both_ways else 2
        if self.num_buckets < least:
            raise ValueError(f"BucketedBias.num_buckets is {self.num_buckets}; it must be at least {least}")
        exact = self.num_buckets // least
        if self.max_distance <= exact:
            raise ValueError(f"BucketedBias.max_distance is {self.max_distance}; it must be above {exact}")


class BucketedBiasModule(AttentionPositionModule, of=BucketedBias):
    def __init__(self, part: BucketedBias, site: Site) -> None:
        super().__init__()
        self.part = part
        self.table = nn.Embedding(part.num_buckets, part.num_heads)

    def forward(self, index: Tensor, places: Tensor) -> Tensor:
        return self.table(self.bucket(distance(index, places))).permute(0, 3, 1, 2).contiguous()

    def bucket(self, apart: Tensor) -> Tensor:
        """Half of the buckets contain one distance each, the others grow logarithmically up to `max_distance`."""
        num, bucket = self.part.num_buckets, torch.zeros_like(apart)
        if self.part.both_ways:
            num //= 2
            bucket = (apart > 0).long() * num
            apart = apart.abs()
        else:
            apart = (-apart).clamp(min=0)
        exact = num // 2
        far = torch.log(apart.float().clamp(min=1) / exact) / math.log(self.part.max_distance / exact)
        far = (exact + (far * (num - exact)).long()).clamp(max=num - 1)
        return bucket + torch.where(apart < exact, apart, far)

    def bias(self, q: Tensor, places: Tensor, scale: float, ctx: Context) -> tuple[Tensor, Tensor | None]:
        return q, self.table(self.bucket(distance_in(ctx, places))).permute(0, 3, 1, 2).contiguous()


class Distance(AttentionPosition, abstract=True):
    """A scheme with one entry per distance key - query; distances beyond `before` and `after` share the last entry.
    With `tree`, distances are measured in a dependency tree (see `dependency_tree.distances`), not in the row."""

    before: Natural  # largest distance to an earlier key
    after: Natural | None = None  # largest distance to a later key; default: `before`
    tree: bool = False  # distances in the dependency tree

    @property
    def requires(self) -> tuple[str, ...]:
        return ("a row of tokens",) if self.tree else ()

    @property
    def extra_inputs(self) -> tuple[type[InputExtra], ...]:
        return (Tree,) if self.tree else ()

    def reaches(self) -> Sees | None:
        return "all" if self.tree else super().reaches()  # the tree depends on the whole text

    @property
    def causal_alternative(self) -> str:
        return repr(self.replace(tree=False))

    @property
    def size(self) -> int:
        """R, the number of entries."""
        return self.before + 1 + (self.before if self.after is None else self.after)


class DistanceModule(AttentionPositionModule):
    def __init__(self, part: Distance) -> None:
        super().__init__()
        self.part = part

    def clip(self, apart: Tensor) -> Tensor:
        return (apart + self.part.before).clamp(0, self.part.size - 1)

    def entries(self, ctx: Context, places: Tensor) -> Tensor:
        """(1 or B, T, S) the entry of each query and key, by row or by tree, computed once for all layers."""
        part = self.part
        if part.tree:
            apart = ctx.once("tree distances", lambda: dependency_tree.distances(dependency_tree.parents_of(ctx)))
            return ctx.once(f"tree entries {part.before} {part.size}", lambda: self.clip(apart))
        key = f"distance entries {part.before} {part.size}"
        return ctx.once_for(places, key, lambda: self.clip(distance_in(ctx, places)))


class DistanceBias(Distance, HeadwisePosition, sees="itself"):
    """One learned scalar per head and distance, r_(i-j), added to the scores."""

    @property
    def can_share(self) -> bool:
        return not self.tree  # a tree belongs to a batch


class DistanceBiasModule(DistanceModule, of=DistanceBias):
    def __init__(self, part: DistanceBias, site: Site) -> None:
        super().__init__(part)
        self.table = nn.Embedding(part.size, part.num_heads)

    def forward(self, index: Tensor, places: Tensor) -> Tensor:
        return self.table(self.clip(distance(index, places))).permute(0, 3, 1, 2).contiguous()

    def bias(self, q: Tensor, places: Tensor, scale: float, ctx: Context) -> tuple[Tensor, Tensor | None]:
        return q, self.table(self.entries(ctx, places)).permute(0, 3, 1, 2).contiguous()


class RelativeVectors(Distance, sees="itself", called=("Shaw", "relative position")):
    """One learned vector per distance, the same for all heads, added to the keys and to the values [Shaw et al. 2018],
    or without `values` only to the keys (wav2vec2-BERT). With `values` it needs the eager kernel."""

    values: bool = True  # add vectors to the values too


class RelativeVectorsModule(DistanceModule, of=RelativeVectors):
    def __init__(self, part: RelativeVectors, site: Site) -> None:
        super().__init__(part)
        self.has_values = part.values
        self.key_table = nn.Embedding(part.size, site.width)
        self.value_table = nn.Embedding(part.size, site.width) if part.values else None

    def bias(self, q: Tensor, places: Tensor, scale: float, ctx: Context) -> tuple[Tensor, Tensor | None]:
        # q . (k + a) = q . k + q . a: compute q . a for all R vectors, then select one per key
        of_distance = torch.matmul(q, self.key_table.weight.T) * scale  # (B, H, T, R)
        entries = self.entries(ctx, places)[:, None].expand(*q.shape[:3], -1)
        return q, of_distance.gather(-1, entries)

    def values(self, weights: Tensor, places: Tensor, ctx: Context) -> Tensor:
        assert self.value_table is not None
        entries = self.entries(ctx, places)[:, None].expand(weights.shape)
        by_distance = weights.new_zeros(*weights.shape[:3], self.part.size).scatter_add(-1, entries, weights)
        return torch.matmul(by_distance, self.value_table.weight)


class Alibi(HeadwisePosition, sees="itself", called=("linear biases",)):
    """Scores fall linearly with the distance, with a fixed slope per head [Press et al. 2022]."""

    can_share: ClassVar[bool] = True

    unpadded: bool = False  # pads do not count in distances (BLOOM)
    signed: bool = False  # later keys score higher (BLOOM)


class AlibiModule(AttentionPositionModule, of=Alibi):
    def __init__(self, part: Alibi, site: Site) -> None:
        super().__init__()
        self.slopes = Computed(lambda: alibi_slopes(part.num_heads))
        self.unpadded, self.signed, self.key = part.unpadded, part.signed, f"alibi {part!r}"

    def forward(self, index: Tensor, places: Tensor) -> Tensor:
        return self.fall(distance(index, places))

    def fall(self, apart: Tensor) -> Tensor:
        return self.slopes()[:, None, None] * (apart if self.signed else -apart.abs())[:, None]

    def bias(self, q: Tensor, places: Tensor, scale: float, ctx: Context) -> tuple[Tensor, Tensor | None]:
        return q, ctx.once_for(places, self.key, lambda: self.fall(self.distances(ctx, places)).to(q.dtype))

    def distances(self, ctx: Context, places: Tensor) -> Tensor:
        if not self.unpadded or ctx.is_token is None:
            return distance_in(ctx, places)
        real = ctx.is_token.cumsum(-1)
        return distance(select_tokens(real, ctx.index), select_tokens(real, places))


def alibi_slopes(num_heads: int) -> Tensor:
    """(H,) a geometric series down to 2^-8 if H is a power of two. Otherwise the series of the next lower power,
    followed by every other slope of the series of twice that power (the published rule, also BLOOM's)."""
    power = 1 << (num_heads.bit_length() - 1)
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    between = [2 ** (-8 * (2 * i + 1) / (2 * power)) for i in range(num_heads - power)]
    return torch.tensor(slopes + between)
