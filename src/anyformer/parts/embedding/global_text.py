"""Text with global tokens, which see all tokens and are visible to all [Beltagy et al. 2020].

B batch, T tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from torch import Tensor

from anyformer.kernels.capture import can_read_values
from anyformer.parts.embedding.text import TextEmbedding, TextEmbeddingModule
from anyformer.runtime.context import Context
from anyformer.runtime.inputs import Kind
from anyformer.runtime.state import State
from anyformer.runtime.visibility import first_of_document
from anyformer.specs.part import Sees


@dataclasses.dataclass(frozen=True)
class GlobalTokens:
    """The tokens that see all tokens and are visible to all."""

    chosen: Tensor  # (B, T) True for global tokens
    most: int | None = None  # maximum number per row; None: it depends on the input


class GlobalTextEmbedding(TextEmbedding, sees="itself"):
    """Text whose global tokens are given by `global_attention_mask`. Without it, `global_tokens` selects none, the
    first token of a text, or the tokens before (a question) or after (a choice) the first of three separators."""

    inputs: ClassVar[tuple[str, ...]] = (*TextEmbedding.inputs, "global_attention_mask")
    input_kinds: ClassVar[Mapping[str, Kind]] = {"global_attention_mask": "mask"}
    causal_alternative: ClassVar[str] = "TextEmbedding(tokens=...)"

    global_tokens: Literal["none", "first", "before", "after"] = "none"  # if no mask is given
    separator: int | None = None  # id of the separator token

    def check(self) -> None:
        super().check()
        if (self.separator is not None) != (self.global_tokens in ("before", "after")):
            raise ValueError("GlobalTextEmbedding.separator: set it only with global_tokens 'before' or 'after'")

    def reaches(self) -> Sees | None:
        return super().reaches() if self.separator is None else "all"

    @property
    def gives(self) -> tuple[str, ...]:
        return (*super().gives, "global tokens")


class GlobalTextEmbeddingModule(TextEmbeddingModule, of=GlobalTextEmbedding):
    part: GlobalTextEmbedding

    def forward(self, inputs: dict[str, Any], state: State | None = None) -> tuple[Tensor, Context]:
        chosen, mask, marked = inputs.get("global_attention_mask"), inputs.get("attention_mask"), None
        if mask is not None and can_read_values() and bool((mask == 2).any()):  # older format: 2 marks global tokens
            marked = mask == 2
            inputs = {**inputs, "attention_mask": mask.masked_fill(marked, 1)}
        x, ctx = super().forward(inputs, state)
        most = None
        if chosen is None:
            chosen = self.default_tokens(x, inputs, ctx)
            most = 1 if self.part.global_tokens == "first" and ctx.documents is None else None
        if marked is not None:
            chosen, most = marked if chosen is None else (chosen > 0) | marked, None
        if chosen is None:
            return x, ctx
        if chosen.shape != x.shape[:2]:
            raise ValueError(f"global_attention_mask must have shape {tuple(x.shape[:2])}, got {tuple(chosen.shape)}")
        chosen = chosen > 0
        return x, ctx.replace(GlobalTokens(chosen if ctx.tokens is None else chosen & ctx.tokens, most))

    def default_tokens(self, x: Tensor, inputs: dict[str, Any], ctx: Context) -> Tensor | None:
        """(B, T) the global tokens if the caller gives none; None: there are none."""
        which, ids = self.part.global_tokens, inputs.get("input_ids")
        if which == "first":
            if ctx.documents is not None:
                return first_of_document(ctx.documents) == ctx.index
            first = ctx.index if ctx.tokens is None else ctx.tokens.cumsum(-1) - 1  # pads may precede it
            return (first == 0).expand(x.shape[0], -1)
        if which == "none" or ids is None:
            return None
        ends = ids == self.part.separator
        if can_read_values() and not bool((ends.sum(-1) == 3).all()):
            raise ValueError(
                f"each text must contain three separators (token {self.part.separator}); otherwise pass"
                " global_attention_mask"
            )
        end = ends.int().argmax(-1, keepdim=True)
        return ctx.index < end if which == "before" else ctx.index > end + 1
