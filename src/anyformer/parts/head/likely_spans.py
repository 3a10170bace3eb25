"""Answers in a text, the likeliest few: where one begins is chosen first, and where it ends given that.

B batch, T tokens, N starts, E ends of each, D width.
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
from anyformer.specs.checks import at_least
from anyformer.specs.part import Site


class LikelySpans(Head, sees="all"):
    """The likeliest places for an answer to begin, for each of them those to end, and a score for there being no answer
    at all, from the token at `cls_index` (default: the last) [Yang et al. 2019]. `p_mask` is 1 where no answer can
    be. With labels it gives only the loss, for each end given the true start."""

    inputs: ClassVar[tuple[str, ...]] = (
        "start_positions",
        "end_positions",
        "is_impossible",
        "cls_index",
        "p_mask",
    )
    input_kinds: ClassVar[Mapping[str, Kind]] = {"cls_index": "integers", "p_mask": "mask"}
    requires: ClassVar[tuple[str, ...]] = ("a row of tokens",)  # whose places the labels are

    starts: int = 5
    ends: int = 5
    norm: Norm = LayerNorm()

    def check(self) -> None:
        at_least(self, 1, "starts", "ends")

    def build(self, site: Site) -> nn.Module:
        return LikelySpansModule(self, site)


class LikelySpansModule(HeadModule):
    tapped: ClassVar[TapNames] = {"start": None}

    def __init__(self, part: LikelySpans, site: Site) -> None:
        super().__init__()
        D, self.part, self.address = site.width, part, site.address
        self.begin = nn.Linear(D, 1)
        self.end_dense, self.end = nn.Linear(2 * D, D), nn.Linear(D, 1)
        self.end_norm = part.norm.build(site.child("end_norm"))
        self.none_dense, self.none = nn.Linear(2 * D, D), nn.Linear(D, 1, bias=False)

    def begins(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Tensor:
        """(B, T) scores"""
        return ctx.tap(self.address, "start", mask_scores(self.begin(x).squeeze(-1), inputs.get("p_mask")))

    def ends(self, x: Tensor, start: Tensor, inputs: dict[str, Any]) -> Tensor:
        """(B, N, T) scores, given the vectors (B, N, D) where answers begin."""
        N, T = start.shape[1], x.shape[1]
        pairs = torch.cat((x[:, None].expand(-1, N, -1, -1), start[:, :, None].expand(-1, -1, T, -1)), dim=-1)
        scores = self.end(self.end_norm(self.end_dense(pairs).tanh())).squeeze(-1)
        mask = inputs.get("p_mask")
        return mask_scores(scores, None if mask is None else mask[:, None])

    def no_answer_scores(self, x: Tensor, start: Tensor, inputs: dict[str, Any]) -> Tensor:
        """(B,) scores for there being no answer, given the vector (B, D) where one begins."""
        place = inputs.get("cls_index")
        speaker = x[:, -1] if place is None else vectors_at(x, place.view(-1, 1))[:, 0]
        return self.none(self.none_dense(torch.cat((start, speaker), dim=-1)).tanh()).squeeze(-1)

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> NamedTensors:
        for name in ("starts", "ends"):
            if getattr(self.part, name) > x.shape[1]:
                raise ValueError(f"the {getattr(self.part, name)} likeliest {name}: the text has {x.shape[1]} tokens")
        chance = self.begins(x, ctx, inputs).softmax(-1)
        likely, places = chance.topk(self.part.starts, dim=-1)
        ends = self.ends(x, vectors_at(x, places), inputs).softmax(-1).topk(self.part.ends, dim=-1)
        mean = torch.matmul(chance[:, None], x).squeeze(1)  # of where an answer may begin
        return {
            "start_top_log_probs": likely,
            "start_top_index": places,
            # published: the likeliest end of every start comes first, then the second of every start
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
        found = {
            "start": half(class_loss(self.begins(x, ctx, inputs), start, "start_positions")),
            "end": half(class_loss(self.ends(x, first, inputs)[:, 0], end, "end_positions")),
        }
        if inputs.get("cls_index") is not None and (none := inputs.get("is_impossible")) is not None:
            found["none"] = half(binary_loss(self.no_answer_scores(x, first[:, 0], inputs), none.view(-1)))
        return found

    def forward(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Outputs:
        terms = self.losses(x, ctx, inputs)
        return {"loss": total(terms)} if terms else {**self.answer(x, ctx, inputs)}


def half(loss: Loss) -> Loss:
    return Loss(loss.sum / 2, loss.weight)


def vectors_at(x: Tensor, places: Tensor) -> Tensor:
    """(B, T, D) and (B, N) -> (B, N, D)"""
    return x.gather(1, places[..., None].expand(-1, -1, x.shape[-1]))


def mask_scores(scores: Tensor, mask: Tensor | None) -> Tensor:
    """The lowest score where a mask is 1."""
    return scores if mask is None else scores.masked_fill(mask > 0, -65500.0 if scores.dtype == torch.half else -1e30)
