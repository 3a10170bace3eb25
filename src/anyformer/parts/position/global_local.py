"""Relative positions for texts that begin with global tokens [Ainslie et al. 2020, ETC].

B batch, T queries, S keys, H heads, K head width, R labels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anyformer.parts.position.absolute import AttentionPosition
from anyformer.parts.position.bias import AttentionPositionModule, distance_in
from anyformer.parts.position.segments import Segments
from anyformer.runtime.context import Context, select_tokens
from anyformer.runtime.visibility import text_positions
from anyformer.specs.field_types import Count, Natural
from anyformer.specs.part import Site


class GlobalLocalVectors(
    AttentionPosition,
    sees="itself",
    called=("ETC", "Extended Transformer Construction", "global-local attention", "structured input"),
):
    """Adds a learned vector to each key, chosen by the label of the query and the key; global queries have a separate
    table. Two global tokens, or two plain tokens, are labelled by their distance. A global and a plain token are
    labelled by whether they are in the same segment (`token_type_ids` of a SegmentedText), which links a global token
    to its sentence. With the mask `Window(size=radius + 1, ahead=True) | Global(first=...)` an Attention has ETC's four
    pieces [Ainslie et al. 2020]. All pairs are scored and masked; the paper's kernel skips pairs beyond the radius."""

    first: Count = 1  # number of global tokens at the start of a text, as in the mask's Global(first=...)
    reach: Natural = 12  # larger distances count as this distance


class GlobalLocalVectorsModule(AttentionPositionModule, of=GlobalLocalVectors):
    def __init__(self, part: GlobalLocalVectors, site: Site) -> None:
        super().__init__()
        self.part, self.key = part, f"global-local labels {part!r}"
        R = 2 * part.reach + 3  # the last two: different segment, same segment
        self.of_global, self.of_long = nn.Embedding(R, site.width), nn.Embedding(R, site.width)

    def bias(self, q: Tensor, places: Tensor, scale: float, ctx: Context) -> tuple[Tensor, Tensor | None]:
        is_global, labels = ctx.once_for(places, self.key, lambda: self.labels(places, ctx))
        # q . (k + a) = q . k + q . a: compute q . a for all R vectors, then select one per key
        of_global, of_long = (torch.matmul(q, table.weight.T) * scale for table in (self.of_global, self.of_long))
        scores = torch.where(is_global[:, None, :, None], of_global, of_long)  # (B, H, T, R)
        return q, scores.gather(-1, labels[:, None].expand(*q.shape[:3], -1))

    def labels(self, places: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """Return whether each query is global (1 or B, T), and the label of each query and key (1 or B, T, S)."""
        counted, segments, reach = text_positions(ctx.is_token, ctx.documents), ctx.extra(Segments), self.part.reach
        queries, keys = (
            (at if counted is None else select_tokens(counted, at.clamp(min=0))).view(-1, at.shape[-1])
            < self.part.first
            for at in (ctx.index, places)
        )
        same = torch.zeros((), dtype=torch.long, device=places.device)
        if segments is not None:
            of_query, of_key = (select_tokens(segments.kinds, at) for at in (ctx.index, places))
            same = (of_query[:, :, None] == of_key[:, None]).long()
        by_distance = distance_in(ctx, places).clamp(-reach, reach) + reach
        across = queries[:, :, None] != keys[:, None]
        return queries, torch.where(across, 2 * reach + 1 + same, by_distance)
