"""Which position each token of a text has, where the caller does not say.

B batch, S tokens of a row, T of this call.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from anyformer.runtime.context import Context, at_places
from anyformer.specs.part import Part


class Numbering(Part, sees="itself"):
    """How the tokens of a text are numbered."""

    before: ClassVar[bool] = False  # whether what takes up no position has the row before the first
    counts: ClassVar[bool] = False  # whether it has to remember which tokens took one up

    first: int = 0  # what a caller's position_ids call the first position (RoBERTa's 2)

    def counted_tokens(self, x: Tensor, ids: Tensor | None) -> Tensor | None:
        """(B, T) True where a token takes up a position; None where all do."""
        return None

    def renumber(self, ctx: Context) -> Context:
        """With other positions than the places give."""
        return ctx


class ByPlace(Numbering, sees="itself"):
    """0, 1, 2, ... from where the text or the packed document begins, behind the pads on its left."""


class RealTokens(Numbering, sees="itself"):
    """Counts only real tokens; pads have the row before the first (OPT)."""

    before: ClassVar[bool] = True

    def renumber(self, ctx: Context) -> Context:
        if ctx.is_token is None or ctx.documents is not None:
            return ctx
        return ctx.replace(positions=at_places(ctx.is_token.cumsum(-1) * ctx.is_token - 1, ctx.index))


class WithoutToken(Numbering, sees="itself"):
    """One token takes up no position, wherever it stands: RoBERTa's and FSMT's padding."""

    before: ClassVar[bool] = True
    counts: ClassVar[bool] = True

    token: int

    def counted_tokens(self, x: Tensor, ids: Tensor | None) -> Tensor | None:
        """Where vectors are given, each of them counts."""
        return x.new_ones(x.shape[:2], dtype=torch.bool) if ids is None else ids != self.token
