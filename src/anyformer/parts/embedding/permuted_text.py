"""Text for permutation language modelling: tokens are predicted in a random order [Yang et al. 2019].

B batch, T tokens, M cached tokens of the previous segment (`mems`), P tokens to predict, D width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.capture import can_read_values
from anyformer.parts.embedding.segments import SegmentedText, SegmentedTextModule
from anyformer.parts.position.segments import Segments
from anyformer.runtime.context import Context
from anyformer.runtime.inputs import Kind, check_shape
from anyformer.runtime.state import State
from anyformer.runtime.visibility import Order
from anyformer.specs.part import Site


@dataclasses.dataclass(frozen=True)
class TargetStream:
    """The query stream of the tokens to predict: it knows their positions, but not the tokens."""

    x: Tensor  # (B, P, D)
    places: Tensor  # (B, P) row index of each target; -1: no target


@dataclasses.dataclass(frozen=True)
class Memories:
    """Each layer's inputs from the previous segment (`mems`)."""

    states: tuple[Tensor, ...] = ()  # (B, M, D) each
    keep: bool | None = None  # whether to return this segment's layer inputs as `mems`; None: the model's default


class OrderedText(SegmentedText, sees="all"):
    """Text with a permutation order (XLNet). `perm_mask` (B, T, T) is 1 if a query must not see a key; a token always
    sees itself. `target_mapping` (B, P, T) is 1 at the index of each token to predict: the output then has P vectors,
    from a second stream that starts as one learned vector and sees the tokens that `perm_mask` allows, but never its
    target. `mems` are the states that the previous call returned. `input_mask` is 1 for padding, the opposite of
    `attention_mask`."""

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
        self.mask_embedding = nn.Parameter(torch.empty(site.width))  # start of the query stream
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
                raise ValueError("document_ids cannot be used with mems: the cached states belong to one text")
            is_token = None if ctx.is_token is None else F.pad(ctx.is_token, (M, 0), value=True)
            extras = () if segments is None else (Segments(F.pad(segments.kinds, (M, 0))),)  # mems are in segment 0
            ctx = ctx.replace(*extras, index=ctx.index + M, is_token=is_token)
            hidden = None if hidden is None else F.pad(hidden, (M, 0, M, 0))
        ctx = ctx.replace(Order(hidden, first=M), Memories(states if M else (), inputs.get("use_mems")))
        mapping = inputs.get("target_mapping")
        if mapping is None:
            return x, ctx
        if mapping.dim() != 3 or (mapping.shape[0], mapping.shape[2]) != (B, T):
            raise ValueError(f"target_mapping must be (batch {B}, targets, tokens {T}), got {tuple(mapping.shape)}")
        g = self.mask_embedding.to(x.dtype).expand(B, mapping.shape[1], -1)
        g = F.dropout(g, self.part.dropout) if self.training and self.part.dropout else g
        return x, ctx.replace(TargetStream(g, target_index(mapping, M)))

    def ask_next(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Append one token that no other token sees, and make it the only target."""
        sizes = {"inputs_embeds": (0, 0, 0, 1)}
        longer = {name: F.pad(value, sizes.get(name, (0, 1))) for name, value in inputs.items()}
        for name in ("attention_mask", "token_type_ids"):  # the new token is real and in the last token's segment
            if name in longer:
                longer[name][:, -1] = 1 if name == "attention_mask" else longer[name][:, -2]
        first = next(iter(longer.values()))
        (B, T), device = first.shape[:2], first.device
        last = torch.arange(T, device=device) == T - 1
        return {**longer, "perm_mask": last.expand(B, T, T), "target_mapping": last.expand(B, 1, T), "use_mems": False}


def given_mask(inputs: dict[str, Any]) -> Tensor | None:
    """Return `attention_mask`, computed from `input_mask` if that was given instead."""
    mask, hidden = inputs.get("attention_mask"), inputs.get("input_mask")
    if hidden is None:
        return mask
    if mask is not None:
        raise ValueError("input_mask is the opposite of attention_mask: give only one of them")
    return (hidden == 0).long()


def memories(mems: Sequence[Tensor] | None, depth: int, sizes: tuple[int, int]) -> tuple[Tensor, ...]:
    """Return each layer's `mems` as (B, M, D); published models use (M, B, D)."""
    given = isinstance(mems, (list, tuple))
    if mems is None or (given and all(each is None for each in mems)):
        return ()
    if not given or len(mems) != depth or not all(isinstance(each, Tensor) for each in mems):
        raise ValueError(f"mems must be {depth} tensors, one per layer, as returned by the previous call")
    for i, each in enumerate(mems):
        if each.dim() != 3 or each.shape != (len(mems[0]), *sizes):
            shape = (len(mems[0]), *sizes)
            raise ValueError(f"mems.{i} must be (tokens, batch, width) = {shape}, got {tuple(each.shape)}")
    return tuple(each.transpose(0, 1) for each in mems)


def target_index(mapping: Tensor, first: int) -> Tensor:
    """Return the row index (B, P) of each target of a target_mapping (B, P, T), plus `first`; -1: no target."""
    is_target = mapping != 0
    count = is_target.sum(-1)
    one_hot = (count <= 1).all() & (is_target.sum(1) <= 1).all() & (mapping == is_target).all()
    if can_read_values() and not bool(one_hot):
        raise ValueError("target_mapping must be one-hot: one token per target, and no token twice")
    return torch.where(count > 0, is_target.int().argmax(-1) + first, -1)
