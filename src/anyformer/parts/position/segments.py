"""Relative segment encodings: attention compares the segments of query and key [Yang et al. 2019].

B batch, T queries, S keys, H heads, K head width, W width of the sinusoids, R distances.
"""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.position.relative import RelativeSinusoids, RelativeSinusoidsModule, align_to_keys, distances
from anyformer.runtime.context import Context, leading_pads, select_tokens
from anyformer.runtime.visibility import first_of_document
from anyformer.specs.field_types import Chance, Count
from anyformer.specs.part import Site


@dataclasses.dataclass(frozen=True)
class Segments:
    """The segment of each token, for attention that compares segments."""

    kinds: Tensor  # (B, T)


@dataclasses.dataclass(frozen=True)
class Spacing:
    """Number of text tokens per row index, if not 1 (Funnel after pooling)."""

    tokens: int = 1


def token_spacing(ctx: Context) -> int:
    return (ctx.extra(Spacing) or Spacing()).tokens


class SegmentedSinusoids(RelativeSinusoids, sees="itself"):
    """RelativeSinusoids (all sines before all cosines) plus the score (q + s) e, where e is a learned vector per head:
    one for keys in the query's segment, one for all other keys. Distances count text tokens, even if one row index
    represents several tokens."""

    dropout: Chance = 0.0  # on the sinusoids
    joint: int | None = 2  # tokens with this segment id count as being in every segment
    first_apart: bool = True  # scores from and to a text's first token use neither distance nor segment
    factorized: bool = False  # compute sin(i - j) from sines of i and j; dropout then applies to the queries' sinusoids
    most: Count | None = None  # distances are clipped to this
    mirrored: bool = False  # the second half of the batch is read backwards: its distances change sign

    def check(self) -> None:
        if self.factorized and (self.most is not None or self.mirrored):
            raise ValueError("SegmentedSinusoids.factorized cannot be used with `most` or `mirrored`")


class SegmentedSinusoidsModule(RelativeSinusoidsModule, of=SegmentedSinusoids):
    part: SegmentedSinusoids

    def __init__(self, part: SegmentedSinusoids, site: Site) -> None:
        super().__init__(part, site)
        head_width = site.width
        self.s = nn.Parameter(torch.empty(part.num_heads, head_width))
        self.kinds = nn.Parameter(torch.empty(2, part.num_heads, head_width))  # different segment, same segment
        self.key = f"segmented sinusoids {part!r} {head_width}"

    def bias(self, q: Tensor, places: Tensor, scale: float, ctx: Context) -> tuple[Tensor, Tensor | None]:
        scores = self.by_distance((q + self.v[:, None]) * scale, places, ctx)
        other, same = torch.matmul((q + self.s[:, None]) * scale, self.kinds.permute(1, 2, 0)).unsqueeze(-1).unbind(3)
        # (B, H, T, 1) each. A constant per query cancels in the softmax: subtract `same` from the other scores instead
        if ctx.extra(Segments) is not None:
            apart = ctx.once(f"unrelated {self.part.joint}", lambda: self.segments_differ(ctx).to(q.dtype))
            scores = torch.addcmul(scores, apart, other - same)
        elif not self.part.first_apart:
            scores = scores + same
        if self.part.first_apart:  # a text begins after its padding on the left or after the previous document
            if ctx.documents is not None:
                starts = first_of_document(ctx.documents)
                query, key = (at == select_tokens(starts, at) for at in (ctx.index, places))
            else:
                start = 0 if ctx.is_token is None else leading_pads(ctx.is_token)
                query, key = ctx.index == start, places == start
            query, key = query.view(-1, 1, ctx.index.shape[-1], 1), key.view(-1, 1, 1, places.shape[-1])
            scores = torch.where(key, -same, scores).masked_fill(query, 0)
        return q + self.u[:, None], scores

    def segments_differ(self, ctx: Context) -> Tensor:
        """Return whether query and key are in different segments, (B, 1, T, S)."""
        segments = ctx.extra(Segments)
        assert segments is not None
        keys = segments.kinds[:, None, None]
        queries = select_tokens(segments.kinds, ctx.index)[:, None, :, None]
        joint = self.part.joint
        apart = queries != keys
        return apart if joint is None else apart & (queries != joint) & (keys != joint)

    def by_distance(self, q: Tensor, places: Tensor, ctx: Context) -> Tensor:
        if self.part.factorized and self.training and self.part.dropout:  # without dropout, both ways are equal
            rows = self.project.weight.unflatten(0, self.v.shape)  # (H, K, W)
            of_query, of_key = self.angles(places, ctx, q.dtype)
            projected = torch.matmul(q, rows)  # (B, H, T, W)
            scores = [torch.matmul(projected * a, b.T) for a, b in zip(of_query, of_key, strict=True)]
            return scores[0] + scores[1]
        if self.training and self.part.dropout:  # not cached: recomputation in backward must repeat the same dropout
            table = self.table(places, ctx, q.dtype)
        else:
            table = ctx.once_for(places, self.key, lambda: self.table(places, ctx, q.dtype))
        return align_to_keys(
            self.mirror(q, table) if self.part.mirrored else self.distance_scores(q, table), places, ctx
        )

    def mirror(self, q: Tensor, table: Tensor) -> Tensor:
        if q.shape[0] == 1 and q.is_meta:  # counting measures one row: both halves cost the same
            return self.distance_scores(q, table)
        if q.shape[0] % 2:
            raise ValueError(f"SegmentedSinusoids.mirrored needs an even number of rows, got {q.shape[0]}")
        half, (sin, cos) = q.shape[0] // 2, table.chunk(2, dim=-1)
        return torch.cat(
            (self.distance_scores(q[:half], table), self.distance_scores(q[half:], torch.cat((-sin, cos), dim=-1)))
        )

    def sines(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return sines and cosines of `places` (N,), (N, W / 2) each."""
        W = self.project.in_features
        rates = self.part.base ** (-torch.arange(0, W, 2, device=places.device) / W)
        angle = places[:, None].float() * rates
        return angle.sin(), angle.cos()

    def table(self, places: Tensor, ctx: Context, dtype: torch.dtype) -> Tensor:
        """Return the sinusoids (R, W) of all distances, in descending order from last query to first key."""
        apart, most = distances(places, ctx) * token_spacing(ctx), self.part.most
        waves = torch.cat(self.sines(apart if most is None else apart.clamp(-most, most)), dim=-1)
        return self.drop(waves.to(dtype))

    def angles(self, places: Tensor, ctx: Context, dtype: torch.dtype) -> tuple[tuple[Tensor, ...], ...]:
        """Return two query factors (T, W) and two key factors (S, W) whose products add up to sin and cos of i - j."""
        (sin_i, cos_i), (sin_j, cos_j) = (self.sines(at * token_spacing(ctx)) for at in (ctx.index, places))
        queries = [self.drop(wave.to(dtype)).repeat(1, 2) for wave in (sin_i, cos_i)]
        keys = [torch.cat(pair, dim=-1).to(dtype) for pair in ((cos_j, sin_j), (-sin_j, cos_j))]
        return tuple(queries), tuple(keys)

    def drop(self, waves: Tensor) -> Tensor:
        return F.dropout(waves, self.part.dropout) if self.training and self.part.dropout else waves
