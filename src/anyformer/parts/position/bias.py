"""Positions inside the attention: the slot, and the schemes that add to the scores.

A bias (B, H, T, S) has its keys side by side in memory: otherwise torch's fused kernels are not taken.

B batch, T tokens, S keys seen, H heads, K head width, R distances told apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from anyformer.parts.computed import Computed
from anyformer.parts.position import dependency_tree
from anyformer.runtime.context import Context, at_places
from anyformer.specs.checks import at_least
from anyformer.specs.part import Part, Sees, Site


class AttentionPosition(Part):
    """A position scheme of the attention. `site.width` at build is the head width K."""

    @property
    def can_share(self) -> bool:
        """Whether the layers of a Stack can share its bias: it depends only on positions, and the module's `forward`
        gives it."""
        return False


class HeadwisePosition(AttentionPosition):
    """A scheme with parameters for each head."""

    num_heads: int


Projections = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]  # of a mixer: to queries and to keys


class AttentionPositionModule(nn.Module):
    has_values: bool = False  # `values` adds to the mixed values; needs the eager kernel
    turns_stream: bool = False  # `source` turns the input, head by head
    needs_width: int | None = None  # of the vectors that it lets the attention project; None: it has none
    silent: bool = False  # it adds nothing that could be traced

    def source(self, x: Tensor, ctx: Context) -> Tensor:
        """The input (B,T,D) of the query and key projections; a scheme may rotate it."""
        return x

    def rotate(self, q: Tensor, k: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """Rotates the queries (B,H,T,K) and the new keys (B,G,T,K) before keys are cached."""
        return q, k

    def bias(self, q: Tensor, places: Tensor, scale: float, ctx: Context) -> tuple[Tensor, Tensor | None]:
        """(the queries for the content term, what is added to the scaled scores: (1 or B, H, T, S)) for keys at row
        places `places` (S,) or (B, S)."""
        return q, None

    def key_bias(
        self, q: Tensor, k: Tensor, places: Tensor, scale: float, ctx: Context, projections: Projections
    ) -> tuple[Tensor, Tensor | None]:
        """As `bias`, for a scheme that reads the keys (B,G,S,K) or projects its own vectors by the mixer's layers."""
        return self.bias(q, places, scale, ctx)

    def values(self, weights: Tensor, places: Tensor, ctx: Context) -> Tensor:
        """The term (B,H,T,K) that is added to the mixed values, from the attention weights (B,H,T,S)."""
        raise NotImplementedError

    def forward(self, index: Tensor, places: Tensor) -> Tensor:
        """The bias (1 or B, H, T, S) for queries at `index` (T,) or (B, T) and keys at `places` (S,) or (B, S), where
        it depends on nothing else: what the layers of a Stack can share."""
        raise NotImplementedError


def rotate_and_tap(
    position: AttentionPositionModule, q: Tensor, k: Tensor, ctx: Context, address: str
) -> tuple[Tensor, Tensor]:
    """Queries and keys, rotated for the mixer at `address`; they are traced side by side (B, H + G, T, K)."""
    new_q, new_k = position.rotate(q, k, ctx)
    if new_q is q or not ctx.wants(address, "position"):
        return new_q, new_k
    both = ctx.tap(address, "position", torch.cat((new_q, new_k), dim=1))
    return both[:, : q.shape[1]], both[:, q.shape[1] :]


def distance(index: Tensor, places: Tensor) -> Tensor:
    """(1 or B, T, S) key position - query position."""
    apart = places[..., None, :] - index[..., :, None]
    return apart if apart.dim() == 3 else apart[None]


def distance_in(ctx: Context, places: Tensor) -> Tensor:
    """The same in one forward pass, for keys at row places `places` (S,) or (B, S)."""
    index, keys = ctx.relative_positions()
    return distance(index, places if keys.dim() == 1 else at_places(keys, places))


class BucketedBias(HeadwisePosition, sees="itself", called=("T5 bias", "relative position bias")):
    """One learned scalar a head and bucket of distances, finer near, coarser far [Raffel et al. 2020]."""

    num_buckets: int = 32
    max_distance: int = 128
    both_ways: bool = True  # an encoder tells left from right; a decoder never sees right

    def check(self) -> None:
        at_least(self, 1, "num_heads")
        at_least(self, 4 if self.both_ways else 2, "num_buckets")
        exact = self.num_buckets // (4 if self.both_ways else 2)
        if self.max_distance <= exact:
            raise ValueError(f"BucketedBias.max_distance is {self.max_distance}; it must be above {exact}")

    @property
    def can_share(self) -> bool:
        return True

    def build(self, site: Site) -> nn.Module:
        return BucketedBiasModule(self)


class BucketedBiasModule(AttentionPositionModule):
    def __init__(self, part: BucketedBias) -> None:
        super().__init__()
        self.part = part
        self.table = nn.Embedding(part.num_buckets, part.num_heads)

    def forward(self, index: Tensor, places: Tensor) -> Tensor:
        return self.table(self.bucket(distance(index, places))).permute(0, 3, 1, 2).contiguous()

    def bucket(self, apart: Tensor) -> Tensor:
        """Half of the buckets hold one distance each, the rest grow logarithmically up to `max_distance`."""
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


class Distance(AttentionPosition):
    """A scheme with one entry a distance key - query, those beyond `before` and `after` sharing the last one. With
    `tree`, distances in a dependency tree (query - key depth, see `tree.distances`) instead of in the row."""

    before: int
    after: int | None = None  # default: as `before`
    tree: bool = False

    def check(self) -> None:
        at_least(self, 0, "before", "after")

    @property
    def requires(self) -> tuple[str, ...]:
        return ("a row of tokens",) if self.tree else ()

    @property
    def reads_tree(self) -> bool:
        return self.tree

    def reaches(self) -> Sees | None:
        return "all" if self.tree else super().reaches()  # a tree is that of the whole text

    @property
    def causal_alternative(self) -> str:
        return repr(self.replace(tree=False))

    @property
    def size(self) -> int:
        """R, how many distances are told apart."""
        return self.before + 1 + (self.before if self.after is None else self.after)


class DistanceModule(AttentionPositionModule):
    def __init__(self, part: Distance) -> None:
        super().__init__()
        self.part = part

    def clip(self, apart: Tensor) -> Tensor:
        return (apart + self.part.before).clamp(0, self.part.size - 1)

    def entries(self, ctx: Context, places: Tensor) -> Tensor:
        """(1 or B, T, S) the entry of each query and key, by row or by tree, found once for all layers."""
        part = self.part
        if part.tree:
            apart = ctx.once("tree distances", lambda: dependency_tree.distances(dependency_tree.parents_of(ctx)))
            return ctx.once(f"tree entries {part.before} {part.size}", lambda: self.clip(apart))
        key = f"distance entries {part.before} {part.size}"
        return ctx.once_for(places, key, lambda: self.clip(distance_in(ctx, places)))


class DistanceBias(Distance, HeadwisePosition, sees="itself"):
    """One learned scalar a head and distance, r_(i-j), added to the scores."""

    def check(self) -> None:
        super().check()
        at_least(self, 1, "num_heads")

    @property
    def can_share(self) -> bool:
        return not self.tree  # which reads the batch

    def build(self, site: Site) -> nn.Module:
        return DistanceBiasModule(self)


class DistanceBiasModule(DistanceModule):
    def __init__(self, part: DistanceBias) -> None:
        super().__init__(part)
        self.table = nn.Embedding(part.size, part.num_heads)

    def forward(self, index: Tensor, places: Tensor) -> Tensor:
        return self.table(self.clip(distance(index, places))).permute(0, 3, 1, 2).contiguous()

    def bias(self, q: Tensor, places: Tensor, scale: float, ctx: Context) -> tuple[Tensor, Tensor | None]:
        return q, self.table(self.entries(ctx, places)).permute(0, 3, 1, 2).contiguous()


class RelativeVectors(Distance, sees="itself", called=("Shaw", "relative position")):
    """A learned vector a distance, the same for all heads, added to the keys and to the values [Shaw et al. 2018].
    Without `values` only the keys have one (wav2vec2-BERT). Values need the weights: the eager kernel."""

    values: bool = True

    def build(self, site: Site) -> nn.Module:
        return RelativeVectorsModule(self, site.width)


class RelativeVectorsModule(DistanceModule):
    def __init__(self, part: RelativeVectors, head_width: int) -> None:
        super().__init__(part)
        self.has_values = part.values
        self.key_table = nn.Embedding(part.size, head_width)
        self.value_table = nn.Embedding(part.size, head_width) if part.values else None

    def bias(self, q: Tensor, places: Tensor, scale: float, ctx: Context) -> tuple[Tensor, Tensor | None]:
        # q . (k + a) = q . k + q . a; q . a for the R vectors there are, then each key picks its own
        of_distance = torch.matmul(q, self.key_table.weight.T) * scale  # (B, H, T, R)
        entries = self.entries(ctx, places)[:, None].expand(*q.shape[:3], -1)
        return q, of_distance.gather(-1, entries)

    def values(self, weights: Tensor, places: Tensor, ctx: Context) -> Tensor:
        assert self.value_table is not None
        entries = self.entries(ctx, places)[:, None].expand(weights.shape)
        by_distance = weights.new_zeros(*weights.shape[:3], self.part.size).scatter_add(-1, entries, weights)
        return torch.matmul(by_distance, self.value_table.weight)


class Alibi(HeadwisePosition, sees="itself", called=("linear biases",)):
    """Scores fall linearly with the distance, at a fixed slope a head [Press et al. 2022]."""

    unpadded: bool = False  # distances count only real tokens, not pads (BLOOM)
    signed: bool = False  # later keys score higher (BLOOM)

    def check(self) -> None:
        at_least(self, 1, "num_heads")

    @property
    def can_share(self) -> bool:
        return True

    def build(self, site: Site) -> nn.Module:
        return AlibiModule(self)


class AlibiModule(AttentionPositionModule):
    def __init__(self, part: Alibi) -> None:
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
        return distance(at_places(real, ctx.index), at_places(real, places))


def alibi_slopes(num_heads: int) -> Tensor:
    """(H,) a geometric series down to 2^-8 for a power of two of heads; what is missing to another number comes from
    the series for twice as many, every other one (the published rule, BLOOM's)."""
    power = 1 << (num_heads.bit_length() - 1)
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    between = [2 ** (-8 * (2 * i + 1) / (2 * power)) for i in range(num_heads - power)]
    return torch.tensor(slopes + between)
