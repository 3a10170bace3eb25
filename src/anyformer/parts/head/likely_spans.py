"""Extractive question answering with beams: the most likely starts, then the most likely ends given each start.

B batch, T tokens, N starts, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anyformer.parts.head.base import Head, HeadModule, NamedTensors, Outputs, total
from anyformer.parts.head.losses import Loss, binary_loss, class_loss
from anyformer.parts.norm import LayerNorm, Norm
from anyformer.runtime.context import Context
from anyformer.runtime.inputs import Kind
from anyformer.runtime.taps import TapNames
from anyformer.specs.field_types import Count
from anyformer.specs.part import Site


class LikelySpans(Head, sees="all"):
    """The most likely starts of an answer, the most likely ends for each start, and a no-answer score computed from the
    token at `cls_index` (default: the last) [Yang et al. 2019]. `p_mask` is 1 for tokens that cannot be in an answer.
    With labels, only the loss is returned; ends are then scored given the true start."""

    inputs: ClassVar[tuple[str, ...]] = ("start_positions", "end_positions", "is_impossible", "cls_index", "p_mask")
    input_kinds: ClassVar[Mapping[str, Kind]] = {"cls_index": "integers", "p_mask": "mask"}
    requires: ClassVar[tuple[str, ...]] = ("a row of tokens",)  # labels are token indices

    starts: Count = 5  # N, number of starts to return
    ends: Count = 5  # number of ends to return per start
    norm: Norm = LayerNorm()


class LikelySpansModule(HeadModule, of=LikelySpans):
    tapped: ClassVar[TapNames] = {"start": None}

    def __init__(self, part: LikelySpans, site: Site) -> None:
        super().__init__()
        D, self.part, self.address = site.width, part, site.address
        self.begin = nn.Linear(D, 1)
        self.end_dense, self.end = nn.Linear(2 * D, D), nn.Linear(D, 1)
        self.end_norm = part.norm.build(site.child("end_norm"))
        self.none_dense, self.none = nn.Linear(2 * D, D), nn.Linear(D, 1, bias=False)

    def begins(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Tensor:
        """Return the start scores (B, T)."""
        return ctx.tap(self.address, "start", mask_scores(self.begin(x).squeeze(-1), inputs.get("p_mask")))

    def ends(self, x: Tensor, start: Tensor, inputs: dict[str, Any]) -> Tensor:
        """Return the end scores (B, N, T), given the vectors (B, N, D) of the starts."""
        N, T = start.shape[1], x.shape[1]
        pairs = torch.cat((x[:, None].expand(-1, N, -1, -1), start[:, :, None].expand(-1, -1, T, -1)), dim=-1)
        scores = self.end(self.end_norm(self.end_dense(pairs).tanh())).squeeze(-1)
        mask = inputs.get("p_mask")
        return mask_scores(scores, None if mask is None else mask[:, None])

    def no_answer_scores(self, x: Tensor, start: Tensor, inputs: dict[str, Any]) -> Tensor:
        """Return the no-answer scores (B,), given the vector (B, D) of the start."""
        cls_index = inputs.get("cls_index")
        cls = x[:, -1] if cls_index is None else vectors_at(x, cls_index.view(-1, 1))[:, 0]
        return self.none(self.none_dense(torch.cat((start, cls), dim=-1)).tanh()).squeeze(-1)

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> NamedTensors:
        for name in ("starts", "ends"):
            if getattr(self.part, name) > x.shape[1]:
                number = getattr(self.part, name)
                raise ValueError(f"LikelySpans.{name} is {number}, but the text has only {x.shape[1]} tokens")
        chance = self.begins(x, ctx, inputs).softmax(-1)
        probabilities, starts = chance.topk(self.part.starts, dim=-1)
        ends = self.ends(x, vectors_at(x, starts), inputs).softmax(-1).topk(self.part.ends, dim=-1)
        mean = torch.matmul(chance[:, None], x).squeeze(1)  # expected start vector
        return {
            "start_top_log_probs": probabilities,
            "start_top_index": starts,
            # as published: first the most likely end of every start, then the second of every start, ...
            "end_top_log_probs": ends.values.transpose(1, 2).flatten(1),
            "end_top_index": ends.indices.transpose(1, 2).flatten(1),
            "cls_logits": self.no_answer_scores(x, mean, inputs),
        }

    def losses(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> dict[str, Loss]:
        start, end = inputs.get("start_positions"), inputs.get("end_positions")
        if start is None or end is None:
            return {}
        start, end = start.view(-1), end.view(-1)
        first = vectors_at(x, start[:, None])
        terms = {
            "start": half(class_loss(self.begins(x, ctx, inputs), start, "start_positions")),
            "end": half(class_loss(self.ends(x, first, inputs)[:, 0], end, "end_positions")),
        }
        if inputs.get("cls_index") is not None and (none := inputs.get("is_impossible")) is not None:
            terms["none"] = half(binary_loss(self.no_answer_scores(x, first[:, 0], inputs), none.view(-1)))
        return terms

    def forward(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Outputs:
        terms = self.losses(x, ctx, inputs)
        return {"loss": total(terms)} if terms else {**self.answer(x, ctx, inputs)}


def half(loss: Loss) -> Loss:
    return Loss(loss.sum / 2, loss.weight)


def vectors_at(x: Tensor, places: Tensor) -> Tensor:
    """Return the vectors (B, N, D) of x (B, T, D) at indices `places` (B, N)."""
    return x.gather(1, places[..., None].expand(-1, -1, x.shape[-1]))


def mask_scores(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Set scores to a very low value if the mask is 1."""
    return scores if mask is None else scores.masked_fill(mask > 0, -65500.0 if scores.dtype == torch.half else -1e30)
