"""Permuted texts: tokens are predicted in a random order, without being seen [Yang et al. 2019].

B batch, T tokens, M tokens kept of the text before, S = M + T, P tokens asked for, D width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.capture import can_read_values
from anyformer.parts.embedding.segments import SegmentedText, SegmentedTextModule, Segments
from anyformer.runtime.context import Context
from anyformer.runtime.inputs import Kind, check_shape
from anyformer.runtime.mask import Order
from anyformer.runtime.state import State
from anyformer.specs.part import Site


@dataclasses.dataclass(frozen=True)
class TargetStream:
    """Tokens to predict: a second stream, which knows their positions and not the tokens."""

    x: Tensor  # (B, P, D)
    places: Tensor  # (B, P) in the row; -1 where nothing is asked


@dataclasses.dataclass(frozen=True)
class Memories:
    """What each layer read of the text before (`mems`), and whether to keep what it reads of this one (None: as
    described)."""

    states: tuple[Tensor, ...] = ()  # (B, M, D) each
    keep: bool | None = None


class OrderedText(SegmentedText, sees="all"):
    """A text with three things more. `perm_mask` (B, T, T) is 1 where a token does not see another; a token sees itself
    whatever it says. `target_mapping` (B, P, T) is 1 at the place of each token that is asked for: the answers are
    theirs, from a stream that starts with one learned vector and sees of the text what `perm_mask` lets it see, itself
    not among it. `mems` is what a call before this one returned. `input_mask` is attention_mask the other way round."""

    inputs: ClassVar[tuple[str, ...]] = (
        "input_ids",
        "attention_mask",
        "mems",
        "perm_mask",
        "target_mapping",
        "token_type_ids",
        "input_mask",
        "inputs_embeds",
        "use_mems",
        "document_ids",
    )
    input_kinds: ClassVar[Mapping[str, Kind]] = {
        "perm_mask": "mask",
        "target_mapping": "mask",
        "input_mask": "mask",
        "use_mems": "flag",
    }

    by_position: ClassVar[bool] = True

    @property
    def gives(self) -> tuple[str, ...]:
        return (*super().gives, "an order")

    @property
    def causal_alternative(self) -> str:
        return repr(SegmentedText(**dict(self.items())))

    def build(self, site: Site) -> nn.Module:
        return OrderedTextModule(self.replace(segments=0), site)


class OrderedTextModule(SegmentedTextModule):
    def __init__(self, part: OrderedText, site: Site) -> None:
        super().__init__(part, site)
        self.mask_embedding = nn.Parameter(torch.empty(site.width))  # what every token that is asked for starts as
        self.depth = site.depth

    def forward(self, inputs: dict[str, Any], state: State | None = None) -> tuple[Tensor, Context]:
        x, ctx = super().forward({**inputs, "attention_mask": given_mask(inputs)}, state)
        (B, T, D), hidden = x.shape, inputs.get("perm_mask")
        check_shape("perm_mask", hidden, (B, T, T))
        hidden = None if hidden is None else hidden > 0
        states, segments = memories(inputs.get("mems"), self.depth, (B, D)), ctx.extra(Segments)
        M = states[0].shape[1] if states else 0
        if M:
            if ctx.documents is not None:
                raise ValueError("document_ids: what was kept before belongs to one text, so mems cannot go with them")
            padding = None if ctx.is_token is None else F.pad(ctx.is_token, (M, 0), value=True)
            before = () if segments is None else (Segments(F.pad(segments.kinds, (M, 0))),)  # all of the first kind
            ctx = ctx.replace(*before, index=ctx.index + M, is_token=padding)
            hidden = None if hidden is None else F.pad(hidden, (M, 0, M, 0))
        ctx = ctx.replace(Order(hidden, first=M), Memories(states if M else (), inputs.get("use_mems")))
        asked = inputs.get("target_mapping")
        if asked is None:
            return x, ctx
        if asked.dim() != 3 or (asked.shape[0], asked.shape[2]) != (B, T):
            raise ValueError(f"target_mapping is (batch {B}, tokens asked for, {T}), got {tuple(asked.shape)}")
        g = self.mask_embedding.to(x.dtype).expand(B, asked.shape[1], -1)
        g = F.dropout(g, self.part.dropout) if self.training and self.part.dropout else g
        return x, ctx.replace(TargetStream(g, asked_places(asked, M)))

    def ask_next(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """A text with one more position, which no token sees, and the question what stands there."""
        sizes = {"inputs_embeds": (0, 0, 0, 1)}
        longer = {name: F.pad(value, sizes.get(name, (0, 1))) for name, value in inputs.items()}
        for name in ("attention_mask", "token_type_ids"):  # the new token is real, and in the segment of the last
            if name in longer:
                longer[name][:, -1] = 1 if name == "attention_mask" else longer[name][:, -2]
        first = next(iter(longer.values()))
        (B, T), device = first.shape[:2], first.device
        last = torch.arange(T, device=device) == T - 1
        return {**longer, "perm_mask": last.expand(B, T, T), "target_mapping": last.expand(B, 1, T), "use_mems": False}


def given_mask(inputs: dict[str, Any]) -> Tensor | None:
    """attention_mask, whichever of the two masks was given."""
    mask, hidden = inputs.get("attention_mask"), inputs.get("input_mask")
    if hidden is None:
        return mask
    if mask is not None:
        raise ValueError("input_mask is attention_mask the other way round: give one of them")
    return (hidden == 0).long()


def memories(mems: Sequence[Tensor] | None, depth: int, sizes: tuple[int, int]) -> tuple[Tensor, ...]:
    """(B, M, D) of each layer, from the published form (M, B, D)."""
    given = isinstance(mems, (list, tuple))
    if mems is None or (given and all(each is None for each in mems)):
        return ()
    if not given or len(mems) != depth or not all(isinstance(each, Tensor) for each in mems):
        raise ValueError(f"mems are {depth} tensors, one a layer, as a call before returned them")
    for i, each in enumerate(mems):
        if each.dim() != 3 or each.shape != (len(mems[0]), *sizes):
            shape = f"(tokens, {sizes[0]}, {sizes[1]}), all of one length"
            raise ValueError(f"mems.{i} is {shape}; got {tuple(each.shape)}")
    return tuple(each.transpose(0, 1) for each in mems)


def asked_places(asked: Tensor, first: int) -> Tensor:
    """(B, P, T) one place a row, or none -> (B, P) row places, -1 for none."""
    found = asked != 0
    count = found.sum(-1)
    once = (count <= 1).all() & (found.sum(1) <= 1).all() & (asked == found).all()
    if can_read_values() and not bool(once):
        raise ValueError("target_mapping is 1 at one place for each token that is asked for, and no token twice")
    return torch.where(count > 0, found.int().argmax(-1) + first, -1)
