"""Positions of the tokens of a text, if the caller does not pass position_ids.

B batch, S tokens of a row, T tokens of this call.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from anyformer.runtime.context import Context, select_tokens
from anyformer.specs.part import Part


class Numbering(Part, sees="itself"):
    """How the tokens of a text are numbered."""

    before: ClassVar[bool] = False  # whether tokens that do not count get position -1, the row before the first
    counts: ClassVar[bool] = False  # whether the cache stores which tokens count

    first: int = 0  # the number of the first position in a caller's position_ids (RoBERTa: 2)

    def counted_tokens(self, x: Tensor, ids: Tensor | None) -> Tensor | None:
        """(B, T) True for tokens that count; None: all of them count."""
        return None

    def renumber(self, ctx: Context) -> Context:
        """Return the context with the positions of this numbering."""
        return ctx


class ByPlace(Numbering, sees="itself"):
    """0, 1, 2, ... from the first token of the text or packed document, not counting pads before it."""


class RealTokens(Numbering, sees="itself"):
    """Counts only real tokens; pads get position -1, the row before the first (OPT)."""

    before: ClassVar[bool] = True

    def renumber(self, ctx: Context) -> Context:
        if ctx.is_token is None or ctx.documents is not None:
            return ctx
        return ctx.replace(positions=select_tokens(ctx.is_token.cumsum(-1) * ctx.is_token - 1, ctx.index))


class WithoutToken(Numbering, sees="itself"):
    """One token does not count, wherever it is: the padding token of RoBERTa and FSMT."""

    before: ClassVar[bool] = True
    counts: ClassVar[bool] = True

    token: int  # its id

    def counted_tokens(self, x: Tensor, ids: Tensor | None) -> Tensor | None:
        """(B, T) True for all other tokens, and for all vectors of a call without ids."""
        return x.new_ones(x.shape[:2], dtype=torch.bool) if ids is None else ids != self.token
