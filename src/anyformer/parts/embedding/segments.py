"""Segments that attention compares: a score for pairs of one segment and another for the rest [Yang et al. 2019].

B batch, T queries, S keys, H heads, K head width, W width of the sinusoids.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.embedding.text import TextEmbedding, TextEmbeddingModule
from anyformer.parts.position.relative import RelativeSinusoids, RelativeSinusoidsModule, align_to_keys, distances
from anyformer.runtime.context import Context, at_places, leading_pads
from anyformer.runtime.mask import first_of_document
from anyformer.runtime.state import State
from anyformer.specs.checks import at_least, chance
from anyformer.specs.part import Site


@dataclasses.dataclass(frozen=True)
class Segments:
    """The segment of each token, where attention compares them."""

    kinds: Tensor  # (B, T)


@dataclasses.dataclass(frozen=True)
class Spacing:
    """How many tokens of the text it is from one place of the row to the next, where that is not one."""

    tokens: int = 1


def token_spacing(ctx: Context) -> int:
    return (ctx.extra(Spacing) or Spacing()).tokens


class SegmentedText(TextEmbedding, sees="past"):
    """Text whose segments have no vector of their own: they are left to the attention. Nothing remembers them."""

    segments: int = 3

    def build(self, site: Site) -> nn.Module:
        return SegmentedTextModule(self.replace(segments=0), site)


class SegmentedTextModule(TextEmbeddingModule):
    def state_spec(self) -> None:
        return None

    def forward(self, inputs: dict[str, Any], state: State | None = None) -> tuple[Tensor, Context]:
        x, ctx = super().forward({**inputs, "token_type_ids": None}, state)
        kinds = inputs.get("token_type_ids")
        return x, ctx if kinds is None else ctx.replace(Segments(kinds))


class SegmentedSinusoids(RelativeSinusoids, sees="itself"):
    """RelativeSinusoids, all sines before all cosines, and (q + s) e beside them, where e is one learned vector a head
    for a key of the query's segment and another for the rest. Distances count tokens of the text, also where a place of
    the row stands for several."""

    dropout: float = 0.0  # on the sinusoids
    joint: int | None = 2  # segments of this number are one with every other
    first_apart: bool = True  # the first token of a text has neither a distance nor a segment
    factorized: bool = False  # sin(i - j) from sines of i and of j: dropout then falls on those of the queries
    most: int | None = None  # distances beyond this one count as this
    mirrored: bool = False  # the second half of a batch is read backwards: its distances have the other sign

    def check(self) -> None:
        chance(self, "dropout")
        at_least(self, 1, "most")
        if self.factorized and (self.most is not None or self.mirrored):
            raise ValueError("SegmentedSinusoids.factorized: sums of angles have no bound and one sign")

    def build(self, site: Site) -> SegmentedSinusoidsModule:
        super().build(site)
        return SegmentedSinusoidsModule(self, site.width)


class SegmentedSinusoidsModule(RelativeSinusoidsModule):
    part: SegmentedSinusoids

    def __init__(self, part: SegmentedSinusoids, head_width: int) -> None:
        super().__init__(part, head_width)
        self.s = nn.Parameter(torch.empty(part.num_heads, head_width))
        self.kinds = nn.Parameter(torch.empty(2, part.num_heads, head_width))  # of another segment, of the same
        self.key = f"segmented sinusoids {part!r} {head_width}"

    def bias(self, q: Tensor, places: Tensor, scale: float, ctx: Context) -> tuple[Tensor, Tensor | None]:
        scores = self.by_distance((q + self.v[:, None]) * scale, places, ctx)
        other, same = torch.matmul((q + self.s[:, None]) * scale, self.kinds.permute(1, 2, 0)).unsqueeze(-1).unbind(3)
        # (B,H,T,1) each. What a query gives to all its keys changes no weight: `same` is taken off the others instead
        if ctx.extra(Segments) is not None:
            apart = ctx.once(f"unrelated {self.part.joint}", lambda: self.segments_differ(ctx).to(q.dtype))
            scores = torch.addcmul(scores, apart, other - same)
        elif not self.part.first_apart:
            scores = scores + same
        if self.part.first_apart:  # where a text begins: behind the pads on its left, or the document before
            if ctx.documents is not None:
                starts = first_of_document(ctx.documents)
                query, key = (at == at_places(starts, at) for at in (ctx.index, places))
            else:
                start = 0 if ctx.is_token is None else leading_pads(ctx.is_token)
                query, key = ctx.index == start, places == start
            query, key = query.view(-1, 1, ctx.index.shape[-1], 1), key.view(-1, 1, 1, places.shape[-1])
            scores = torch.where(key, -same, scores).masked_fill(query, 0)
        return q + self.u[:, None], scores

    def segments_differ(self, ctx: Context) -> Tensor:
        """(B, 1, T, S) whether query and key are of two segments."""
        segments = ctx.extra(Segments)
        assert segments is not None
        keys = segments.kinds[:, None, None]
        queries = at_places(segments.kinds, ctx.index)[:, None, :, None]
        joint = self.part.joint
        apart = queries != keys
        return apart if joint is None else apart & (queries != joint) & (keys != joint)

    def by_distance(self, q: Tensor, places: Tensor, ctx: Context) -> Tensor:
        if self.part.factorized and self.training and self.part.dropout:  # the same numbers where nothing is dropped
            rows = self.project.weight.unflatten(0, self.v.shape)  # (H, K, W)
            of_query, of_key = self.angles(places, ctx, q.dtype)
            asked = torch.matmul(q, rows)  # (B, H, T, W)
            found = [torch.matmul(asked * a, b.T) for a, b in zip(of_query, of_key, strict=True)]
            return found[0] + found[1]
        if self.training and self.part.dropout:  # a layer that is run again in the backward pass drops what it dropped
            table = self.table(places, ctx, q.dtype)
        else:
            table = ctx.once_for(places, self.key, lambda: self.table(places, ctx, q.dtype))
        return align_to_keys(
            self.mirror(q, table) if self.part.mirrored else self.distance_scores(q, table), places, ctx
        )

    def mirror(self, q: Tensor, table: Tensor) -> Tensor:
        if q.shape[0] % 2:
            raise ValueError(f"the second half of a batch is read backwards here, and it has {q.shape[0]} rows")
        half, (sin, cos) = q.shape[0] // 2, table.chunk(2, dim=-1)
        return torch.cat(
            (self.distance_scores(q[:half], table), self.distance_scores(q[half:], torch.cat((-sin, cos), dim=-1)))
        )

    def sines(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """(N, W / 2) each"""
        W = self.project.in_features
        rates = self.part.base ** (-torch.arange(0, W, 2, device=places.device) / W)
        angle = places[:, None].float() * rates
        return angle.sin(), angle.cos()

    def table(self, places: Tensor, ctx: Context, dtype: torch.dtype) -> Tensor:
        """(R, W): every distance from the last query to the first key down."""
        apart, most = distances(places, ctx) * token_spacing(ctx), self.part.most
        waves = torch.cat(self.sines(apart if most is None else apart.clamp(-most, most)), dim=-1)
        return self.drop(waves.to(dtype))

    def angles(self, places: Tensor, ctx: Context, dtype: torch.dtype) -> tuple[tuple[Tensor, ...], ...]:
        """sin(i - j) and cos(i - j) as sums of two products: (T, W) of the queries, twice, and (S, W) of the keys."""
        (sin_i, cos_i), (sin_j, cos_j) = (self.sines(at * token_spacing(ctx)) for at in (ctx.index, places))
        queries = [self.drop(wave.to(dtype)).repeat(1, 2) for wave in (sin_i, cos_i)]
        keys = [torch.cat(pair, dim=-1).to(dtype) for pair in ((cos_j, sin_j), (-sin_j, cos_j))]
        return tuple(queries), tuple(keys)

    def drop(self, waves: Tensor) -> Tensor:
        return F.dropout(waves, self.part.dropout) if self.training and self.part.dropout else waves
