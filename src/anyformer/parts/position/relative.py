"""Position schemes of speech models: sinusoids of relative positions, and a rotation before the projections.

B batch, T queries, S keys, H heads, K head width, D = H K.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.computed import ComputesTensors
from anyformer.parts.position.absolute import AttentionPositionModule
from anyformer.parts.position.bias import HeadwisePosition, distance
from anyformer.parts.position.rotary import Rope, RopeModule, frequencies
from anyformer.runtime.context import Context, select_tokens
from anyformer.specs.field_types import Chance
from anyformer.specs.part import Site


class RelativeSinusoids(HeadwisePosition, sees="itself", called=("Transformer-XL",)):
    """Scores (q + u) k + (q + v) r, where r is a learned projection of the distance's sinusoids and u, v are learned
    vectors per head [Dai et al. 2019]."""

    base: float = 10000.0
    width: int | None = None  # width of the sinusoids; default: num_heads * head width
    dropout: Chance = 0.0  # on the sinusoids, the same in all layers


class RelativeSinusoidsModule(AttentionPositionModule, of=RelativeSinusoids):
    def __init__(self, part: RelativeSinusoids, site: Site) -> None:
        super().__init__()
        H, head_width, D = part.num_heads, site.width, part.num_heads * site.width
        if (part.width or D) % 2:
            raise ValueError(f"{site.address}: RelativeSinusoids needs an even width")
        self.part, self.key = part, f"relative sinusoids {part.base} {part.width or D} {part.dropout}"
        self.project = nn.Linear(part.width or D, D, bias=False)
        self.u = nn.Parameter(torch.empty(H, head_width))
        self.v = nn.Parameter(torch.empty(H, head_width))

    def table(self, places: Tensor, ctx: Context, dtype: torch.dtype) -> Tensor:
        """(R, D) interleaved sines and cosines of all distances, largest first."""
        return self.waves(distances(places, ctx), dtype)

    def waves(self, apart: Tensor, dtype: torch.dtype) -> Tensor:
        """(R, D) interleaved sines and cosines of distances (R,)."""
        D = self.project.in_features
        steps = torch.arange(0, D, 2, device=apart.device).float()
        angle = apart.float()[:, None] * torch.exp(steps * (-math.log(self.part.base) / D))
        waves = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1).to(dtype)
        return F.dropout(waves, self.part.dropout) if self.training and self.part.dropout else waves

    def bias(self, q: Tensor, places: Tensor, scale: float, ctx: Context) -> tuple[Tensor, Tensor | None]:
        table = ctx.once_for(places, self.key, lambda: self.table(places, ctx, q.dtype))
        scores = align_to_keys(self.scores(q, table, scale), places, ctx)
        if scores.device.type == "cuda":
            scores = scores.contiguous()  # CUDA kernels need aligned rows
        return q + self.u[:, None], scores

    def scores(self, q: Tensor, table: Tensor, scale: float) -> Tensor:
        return self.distance_scores((q + self.v[:, None]) * scale, table)

    def distance_scores(self, q: Tensor, table: Tensor) -> Tensor:
        """(B, H, T, R) scores of queries with the distances of a table (R, W)."""
        return torch.matmul(q, self.project(table).unflatten(-1, self.v.shape).permute(1, 2, 0))

    def bias_at(self, q: Tensor, distance: Tensor, most: int, scale: float, ctx: Context) -> tuple[Tensor, Tensor]:
        """Return the queries and the bias (B, H, T, S) of their scores with keys at distances (1 or B, T, S) from 0 to
        `most`, in any unit."""
        count = torch.arange(most + 1, device=q.device)
        table = ctx.once(f"{self.key} to {most}", lambda: self.waves(count, q.dtype))
        at = distance.clamp(0, most)[:, None].expand(q.shape[0], q.shape[1], -1, -1)
        return q + self.u[:, None], self.scores(q, table, scale).gather(3, at)


@dataclasses.dataclass(frozen=True)
class Stride:
    """The number of keys from one query to the next, if the keys belong to a longer sequence."""

    keys: int = 1


def stride_of(ctx: Context) -> int:
    return (ctx.extra(Stride) or Stride()).keys


def distances(places: Tensor, ctx: Context) -> Tensor:
    """(R,) all distances from queries to the keys at `places`, largest first."""
    T, S = ctx.index.shape[-1], places.shape[-1]
    anywhere = ctx.key_states is not None and ctx.index.dim() == 2  # queries separate from the text, in any order
    count = (S if anywhere else stride_of(ctx) * (T - 1) + 1) + S - 1
    return farthest(places, ctx) - torch.arange(count, device=places.device)


def farthest(places: Tensor, ctx: Context) -> Tensor:
    """() the largest distance from a row's last query back to the first of the keys at `places`, over all rows."""
    return (ctx.index.amax(-1, keepdim=True) - places.amin(-1, keepdim=True)).amax()


def align_to_keys(scores: Tensor, places: Tensor, ctx: Context) -> Tensor:
    """(B, H, T, R) scores by distance, largest first -> (B, H, T, S) scores of the keys at `places`."""
    index, keys = ctx.relative_positions()
    if index.dim() == keys.dim() == 1 and (ctx.state is None or ctx.state.capacity is None):
        return line_up(scores, places.shape[0], stride_of(ctx))
    # distances differ by row (pads between cached and new tokens, queries in any order), or the keys are in a ring
    keys = places if keys.dim() == 1 else select_tokens(keys, places)
    column = farthest(places, ctx) + distance(index, keys)
    return scores.gather(-1, column.clamp(0, scores.shape[-1] - 1)[:, None].expand(*scores.shape[:3], -1))


def line_up(scores: Tensor, num_keys: int, step: int = 1) -> Tensor:
    """(B, H, T, R) -> (B, H, T, S): key j of query i is in column (T - 1 - i) step + j, with R = (T - 1) step + S. The
    flattened scores, cut into rows of R - step from element (T - 1) step on, have key j in column j."""
    T, R = scores.shape[2:]
    if T == 1:
        return scores
    return scores.flatten(2)[..., (T - 1) * step : -step].unflatten(-1, (T, R - step))[..., :num_keys]


class InputRope(Rope, sees="itself"):
    """Rotates the input of the query and key projections, head by head, instead of queries and keys (the Conformer of
    wav2vec 2.0). The frequencies are saved with the model."""

    def check(self) -> None:
        super().check()
        if self.scaling is not None or self.fraction != 1.0:
            raise ValueError("InputRope takes no scaling and needs fraction=1")

    def build(self, site: Site) -> nn.Module:
        if site.width % 2:
            raise ValueError(f"{site.address}: InputRope rotates pairs of channels; head width {site.width} is odd")
        return InputRopeModule(self, site.width)


class SavedFrequencies(ComputesTensors):
    """(K / 2,) radians per position, saved in checkpoints, in fp32 whatever the model's dtype."""

    silent = True
    exact = ("value",)  # the loader keeps it in fp32
    value: Tensor

    def __init__(self, width: int, base: float) -> None:
        super().__init__()
        self.width, self.base = width, base
        self.register_buffer("value", frequencies(width, base))

    def computed_tensors(self) -> dict[str, Callable[[], Tensor]]:
        return {"value": lambda: frequencies(self.width, self.base)}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> SavedFrequencies:
        moved = fn(self.value)
        self.value = moved if moved.dtype == torch.float32 else self.value.to(moved.device)
        return self

    def forward(self) -> Tensor:
        return self.value


class InputRopeModule(RopeModule):
    turns_stream = True

    def __init__(self, part: InputRope, head_width: int) -> None:
        super().__init__(part, head_width)
        self.frequency = SavedFrequencies(self.width, part.base)  # type: ignore[assignment]
        self.head_width = head_width

    def source(self, x: Tensor, ctx: Context) -> Tensor:
        cos, sin = self.pair_tables(ctx, x.dtype)
        heads = x.unflatten(-1, (-1, self.head_width)).transpose(1, 2)
        return self.turn(heads, cos, sin).transpose(1, 2).flatten(2)

    def rotate(self, q: Tensor, k: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        return q, k
