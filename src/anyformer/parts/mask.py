"""Masks as composable predicates: `Causal() & Window(size=512) | Global(first=1)`.

A predicate takes index tensors of any broadcastable shape and returns whether the query at row index `q` may see the
key at row index `k`. Dense masks and FlexAttention's block masks are both made by calling it, so they cannot disagree.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from torch import Tensor

from anyformer.runtime.visibility import Rows
from anyformer.specs.field_types import Count, Natural
from anyformer.specs.part import REACH, Part, Sees, farthest


class Mask(Part, abstract=True):
    """Which keys a query may see."""

    everything: ClassVar[bool] = False  # whether every query sees every key
    triangular: ClassVar[bool] = False  # whether a query sees exactly the keys up to itself
    counting: ClassVar[bool] = False  # whether it counts tokens from the start of a text, so padding matters

    def allows(self, b: Tensor, q: Tensor, k: Tensor, rows: Rows) -> Tensor:
        """Return True where key k is visible; b, q, k: broadcastable batch rows and row indices of queries and keys."""
        raise NotImplementedError

    @property
    def counts(self) -> bool:
        """Whether this mask, or one inside it, counts tokens from the start of a text."""
        return self.counting

    def within(self, length: int) -> Mask:
        """Return a mask that is equal for rows of at most `length` tokens; a simpler one if there is one."""
        return self

    @property
    def causal(self) -> bool:
        """Whether no query sees a later key."""
        return self.sees in ("itself", "past")

    @property
    def causal_alternative(self) -> str:
        return repr(CAUSAL & self)

    def __and__(self, other: Mask) -> Mask:
        return All(masks=(*_flat(self, All), *_flat(other, All)))

    def __or__(self, other: Mask) -> Mask:
        return Either(masks=(*_flat(self, Either), *_flat(other, Either)))

    def __invert__(self) -> Mask:
        return Not(mask=self)


def _flat(mask: Mask, kind: type[Several]) -> tuple[Mask, ...]:
    return mask.masks if isinstance(mask, kind) else (mask,)


class Several(Mask, sees="all", abstract=True):
    """Base class of combinations of masks."""

    sign: ClassVar[str]

    masks: tuple[Mask, ...]

    def check(self) -> None:
        if not self.masks:
            raise ValueError(f"{type(self).__name__}.masks is empty; it needs at least one mask")

    def join(self, a: Tensor, b: Tensor) -> Tensor:
        raise NotImplementedError

    @property
    def counts(self) -> bool:
        return any(mask.counts for mask in self.masks)

    def __repr__(self) -> str:
        return self.sign.join(f"({mask!r})" if isinstance(mask, Several) else repr(mask) for mask in self.masks)

    def allows(self, b: Tensor, q: Tensor, k: Tensor, rows: Rows) -> Tensor:
        seen = self.masks[0].allows(b, q, k, rows)
        for mask in self.masks[1:]:
            seen = self.join(seen, mask.allows(b, q, k, rows))
        return seen


class All(Several, sees="all"):
    """Visible if all of these masks allow it: `a & b`."""

    sign: ClassVar[str] = " & "

    def reaches(self) -> Sees | None:
        return min((mask.sees for mask in self.masks), key=REACH.index)

    def within(self, length: int) -> Mask:
        # makes no new Part, which code that is being compiled cannot do
        needed = [mask for mask in self.masks if not mask.within(length).everything]
        return needed[0].within(length) if len(needed) == 1 else self if needed else FULL

    def join(self, a: Tensor, b: Tensor) -> Tensor:
        return a & b


class Either(Several, sees="all"):
    """Visible if at least one of these masks allows it: `a | b`."""

    sign: ClassVar[str] = " | "

    def reaches(self) -> Sees | None:
        return farthest(*self.masks)

    def join(self, a: Tensor, b: Tensor) -> Tensor:
        return a | b


class Not(Mask, sees="all"):
    """Visible if this mask does not allow it: `~a`."""

    mask: Mask = dataclasses.field(kw_only=False)

    @property
    def counts(self) -> bool:
        return self.mask.counts

    def reaches(self) -> Sees | None:
        return "all"

    def allows(self, b: Tensor, q: Tensor, k: Tensor, rows: Rows) -> Tensor:
        return ~self.mask.allows(b, q, k, rows)


class Full(Mask, sees="all", called=("bidirectional",)):
    """Every token sees every token."""

    everything: ClassVar[bool] = True
    causal_alternative: ClassVar[str] = "Causal()"

    def allows(self, b: Tensor, q: Tensor, k: Tensor, rows: Rows) -> Tensor:
        return (q >= 0) & (k >= 0)


class Causal(Mask, sees="past", called=("autoregressive", "triangular", "causal mask", "look-ahead mask")):
    """A token sees itself and all earlier tokens."""

    triangular: ClassVar[bool] = True

    def allows(self, b: Tensor, q: Tensor, k: Tensor, rows: Rows) -> Tensor:
        return k <= q


class Window(Mask, sees="all", called=("sliding window", "local")):
    """At most `size` tokens back, the query included, and all later tokens; with `ahead`, at most `size` later ones.
    `Causal() & Window(size)` is Mistral's mask."""

    size: Count = dataclasses.field(kw_only=False)
    ahead: bool = False

    def allows(self, b: Tensor, q: Tensor, k: Tensor, rows: Rows) -> Tensor:
        near = (q - k < self.size) & (k >= 0)  # empty columns of a ring cache have negative indices
        return near & (k - q < self.size) if self.ahead else near

    def within(self, length: int) -> Mask:
        return FULL if length <= self.size else self


class Dilated(Mask, sees="all", called=("dilated attention",)):
    """Every `step`-th token, counted from the query [Beltagy et al. 2020]."""

    step: Count = dataclasses.field(kw_only=False)

    def allows(self, b: Tensor, q: Tensor, k: Tensor, rows: Rows) -> Tensor:
        return (q - k) % self.step == 0


class Global(Mask, sees="all", called=("global attention", "global tokens")):
    """The `first` tokens see all tokens and are seen by all tokens."""

    counting: ClassVar[bool] = True

    first: Count = dataclasses.field(default=1, kw_only=False)

    def allows(self, b: Tensor, q: Tensor, k: Tensor, rows: Rows) -> Tensor:
        q, k = rows.in_text(b, q, k)
        return (q < self.first) | (k < self.first)


class SameBlock(Mask, sees="all", called=("chunked",)):
    """Attention inside consecutive blocks of `size` tokens."""

    counting: ClassVar[bool] = True

    size: Count = dataclasses.field(kw_only=False)

    def allows(self, b: Tensor, q: Tensor, k: Tensor, rows: Rows) -> Tensor:
        q, k = rows.in_text(b, q, k)
        return q // self.size == k // self.size


class BlockAndBefore(Mask, sees="all", called=("Image Transformer (1D)", "local 1D attention")):
    """The query's own block of `size` tokens and the `before` tokens before it: 1D local attention of the Image
    Transformer [Parmar et al. 2018]; combine with Causal."""

    counting: ClassVar[bool] = True

    size: Count
    before: Natural

    def allows(self, b: Tensor, q: Tensor, k: Tensor, rows: Rows) -> Tensor:
        q, k = rows.in_text(b, q, k)
        first = q // self.size * self.size
        return (k >= first - self.before) & (k < first + self.size)


class GridBlocks(Mask, sees="all", called=("Image Transformer (2D)", "local 2D attention")):
    """On a grid of `columns` columns, in reading order: the query's own block of `size` (rows, columns), extended by
    `above` rows at the top and `beside` columns on the left and the right: 2D local attention of the Image Transformer
    [Parmar et al. 2018]; combine with Causal."""

    counting: ClassVar[bool] = True

    columns: Count
    size: tuple[Count, Count]
    above: Natural
    beside: Natural

    def allows(self, b: Tensor, q: Tensor, k: Tensor, rows: Rows) -> Tensor:
        q, k = rows.in_text(b, q, k)
        top, left = q // self.columns // self.size[0] * self.size[0], q % self.columns // self.size[1] * self.size[1]
        row, column = k // self.columns, k % self.columns
        down = (row >= top - self.above) & (row < top + self.size[0])
        return down & (column >= left - self.beside) & (column < left + self.size[1] + self.beside)


class Strided(Mask, sees="all", called=("Sparse Transformer", "strided attention")):
    """The last `stride` tokens, and every stride-th token before them [Child et al. 2019]; combine with Causal."""

    stride: Count = dataclasses.field(kw_only=False)

    def allows(self, b: Tensor, q: Tensor, k: Tensor, rows: Rows) -> Tensor:
        return ((q - k).abs() < self.stride) | ((q - k) % self.stride == 0)


class Fixed(Mask, sees="all"):
    """The query's own block of `stride` tokens, and the last `summary` tokens of every block [Child et al. 2019]."""

    counting: ClassVar[bool] = True

    stride: Count
    summary: Count = 1

    def check(self) -> None:
        if self.summary > self.stride:
            raise ValueError(f"Fixed.summary is {self.summary}; a block has {self.stride} tokens")

    def allows(self, b: Tensor, q: Tensor, k: Tensor, rows: Rows) -> Tensor:
        q, k = rows.in_text(b, q, k)
        return (q // self.stride == k // self.stride) | (k % self.stride >= self.stride - self.summary)


class Axial(Mask, sees="all", called=("axial attention",)):
    """The same row or the same column of a grid of `columns` columns, in reading order [Ho et al. 2019]."""

    counting: ClassVar[bool] = True

    columns: Count

    def allows(self, b: Tensor, q: Tensor, k: Tensor, rows: Rows) -> Tensor:
        q, k = rows.in_text(b, q, k)
        return (q // self.columns == k // self.columns) | (q % self.columns == k % self.columns)


class RandomBlocks(Mask, sees="all"):
    """About `per_row` random key blocks per query block, fixed by the seed [Zaheer et al. 2020]."""

    counting: ClassVar[bool] = True

    size: Count
    per_row: Count
    num_blocks: Count
    seed: int = 0

    def allows(self, b: Tensor, q: Tensor, k: Tensor, rows: Rows) -> Tensor:
        q, k = rows.in_text(b, q, k)
        # an integer hash of (query block, key block) replaces a stored table
        mixed = (q // self.size) * 7919 + (k // self.size) * 104729 + self.seed * 15485863
        mixed = (mixed * 2654435761 + 12345) % 4294967291
        return mixed % self.num_blocks < self.per_row


class SameReach(Mask, sees="all", called=("same_length",)):
    """Every token sees the same number of earlier tokens: the number cached before this call [Yang et al. 2019];
    combine with Causal. If nothing is cached, no token sees an earlier one."""

    def allows(self, b: Tensor, q: Tensor, k: Tensor, rows: Rows) -> Tensor:
        return q - k <= (0 if rows.order is None else rows.order.first)


class Padding(Mask, sees="all"):
    """Real tokens are visible, padding is not."""

    def allows(self, b: Tensor, q: Tensor, k: Tensor, rows: Rows) -> Tensor:
        return FULL.allows(b, q, k, rows) if rows.is_token is None else rows.is_token[b, k]


class SameDocument(Mask, sees="all", called=("packing", "sequence packing")):
    """Packed documents do not see each other."""

    def allows(self, b: Tensor, q: Tensor, k: Tensor, rows: Rows) -> Tensor:
        if rows.documents is None or rows.key_documents is None:
            return FULL.allows(b, q, k, rows)
        return rows.documents[b, q] == rows.key_documents[b, k]


FULL, CAUSAL = Full(), Causal()
