"""Relative positions for a text whose first tokens are global ones [Ainslie et al. 2020, ETC].

B batch, T queries, S keys, H heads, K head width, R labels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anyformer.parts.embedding.segments import Segments
from anyformer.parts.position.absolute import AttentionPosition
from anyformer.parts.position.bias import AttentionPositionModule, distance_in
from anyformer.runtime.context import Context, at_places
from anyformer.runtime.mask import text_positions
from anyformer.specs.checks import at_least
from anyformer.specs.part import Site


class GlobalLocalVectors(
    AttentionPosition,
    sees="itself",
    called=("ETC", "Extended Transformer Construction", "global-local attention", "structured input"),
):
    """A learned vector a label, added to the keys; global queries have one table, all others another. Two global tokens
    are labelled by their distance, and so are two others; a global token and another by whether they are of one segment
    (`token_type_ids` that a SegmentedText reads), which links a global token to its sentence. With the mask
    `Window(size=radius + 1, ahead=True) | Global(first=...)` an Attention has ETC's four pieces [Ainslie et al. 2020].
    All pairs are scored and masked here; the paper's kernel skips those outside of the radius."""

    first: int = 1  # global tokens, with which a text begins: as many as the mask's Global(first=...)
    reach: int = 12  # distances beyond this one count as this

    def check(self) -> None:
        at_least(self, 1, "first")
        at_least(self, 0, "reach")

    def build(self, site: Site) -> nn.Module:
        return GlobalLocalVectorsModule(self, site.width)


class GlobalLocalVectorsModule(AttentionPositionModule):
    def __init__(self, part: GlobalLocalVectors, head_width: int) -> None:
        super().__init__()
        self.part, R = part, 2 * part.reach + 3  # the last two: of another segment, of the same
        self.of_global, self.of_long = nn.Embedding(R, head_width), nn.Embedding(R, head_width)

    def bias(self, q: Tensor, places: Tensor, scale: float, ctx: Context) -> tuple[Tensor, Tensor | None]:
        key = f"global-local labels {self.part!r}"
        is_global, labels = ctx.once_for(places, key, lambda: self.labels(places, ctx))
        # q . (k + a) = q . k + q . a; q . a for the R vectors there are, then each key picks its own
        of_global, of_long = (torch.matmul(q, table.weight.T) * scale for table in (self.of_global, self.of_long))
        scores = torch.where(is_global[:, None, :, None], of_global, of_long)  # (B, H, T, R)
        return q, scores.gather(-1, labels[:, None].expand(*q.shape[:3], -1))

    def labels(self, places: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """(1 or B, T) whether queries are global, (1 or B, T, S) the label of each query and key."""
        counted, segments, reach = text_positions(ctx.is_token, ctx.documents), ctx.extra(Segments), self.part.reach
        queries, keys = (
            (at if counted is None else at_places(counted, at.clamp(min=0))).view(-1, at.shape[-1]) < self.part.first
            for at in (ctx.index, places)
        )
        same = torch.zeros((), dtype=torch.long, device=places.device)
        if segments is not None:
            of_query, of_key = (at_places(segments.kinds, at) for at in (ctx.index, places))
            same = (of_query[:, :, None] == of_key[:, None]).long()
        apart = distance_in(ctx, places).clamp(-reach, reach) + reach
        across = queries[:, :, None] != keys[:, None]
        return queries, torch.where(across, 2 * reach + 1 + same, apart)
