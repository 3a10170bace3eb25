"""Which keys each query of a batch may see: a mask (parts/mask.py) together with padding, documents and token order."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.kernels.attention import Visible


class Predicate(Protocol):
    """What `see` needs of a mask."""

    @property
    def everything(self) -> bool:
        """Whether every query sees every key."""

    @property
    def triangular(self) -> bool:
        """Whether a query sees exactly the keys up to itself."""

    @property
    def counts(self) -> bool:
        """Whether it counts tokens from the start of a text, so that padding matters."""

    def within(self, length: int) -> Predicate:
        """Return a mask that is equal for rows of at most `length` tokens."""

    def allows(self, b: Tensor, q: Tensor, k: Tensor, rows: Rows) -> Tensor:
        """Return True where key k is visible; b, q, k: broadcastable batch rows and row indices of queries and keys."""


@dataclasses.dataclass
class Rows:
    """Facts about a batch that predicates read: each (B, row length) or None."""

    is_token: Tensor | None = None  # of the keys
    documents: Tensor | None = None  # of the queries
    key_documents: Tensor | None = None
    counted: Tensor | None = None  # see `text_positions`; for masks that count
    order: Order | None = None

    def in_text(self, b: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Convert row indices to positions in the text: padding does not count, each packed document begins at 0."""
        return (q, k) if self.counted is None else (self.counted[b, q], self.counted[b, k])


@dataclasses.dataclass(frozen=True)
class Order:
    """Visibility rules of one batch by row index, in addition to masks and padding (XLNet)."""

    hidden: Tensor | None = None  # (B, S, S) True if a query does not see a key
    itself: bool = True  # a token always sees itself, even padding
    first: int = 0  # row index of the first token of this call; smaller ones are cached


def begins(documents: Tensor) -> Tensor:
    """(B, T) document numbers -> (B, T) True at the first token of each document."""
    return F.pad(documents[:, 1:] != documents[:, :-1], (1, 0), value=True)


def first_of_document(documents: Tensor) -> Tensor:
    """(B, T) the row index of the first token of each token's document."""
    index = torch.arange(documents.shape[1], device=documents.device)
    return torch.where(begins(documents), index, 0).cummax(-1).values


def text_positions(is_token: Tensor | None, documents: Tensor | None) -> Tensor | None:
    """(B, row length) the number of real tokens of the same text before each token; None if all equal the row index."""
    if is_token is not None:
        real = is_token.long()
    elif documents is not None:
        real = torch.ones_like(documents)
    else:
        return None
    before = real.cumsum(-1) - real
    if documents is not None:
        before = before - before.gather(-1, first_of_document(documents))
    return before


def see(
    mask: Predicate | None,
    index: Tensor,
    keys: Tensor,
    is_token: Tensor | None = None,
    documents: Tensor | None = None,
    key_documents: Tensor | None = None,
    order: Order | None = None,
) -> Visible:
    """Apply a mask to one batch: queries at row indices `index` (T,) or (B, T), keys at `keys` (S,) or (B, S). Without
    a mask, only padding, documents and the order hide keys."""
    # computed here and not in the predicate, which a compiler may be tracing
    counted = text_positions(is_token, documents) if mask is not None and mask.counts else None
    rows = Rows(is_token, documents, key_documents, counted, order)
    hidden = None if order is None else order.hidden

    def allows(b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        seen = (q >= 0) & (k >= 0) if mask is None else mask.allows(b, q, k, rows)
        if is_token is not None:
            seen = seen & is_token[b, k]
        if documents is not None and key_documents is not None:
            seen = seen & (documents[b, q] == key_documents[b, k])
        if hidden is not None:
            seen = seen & ~hidden[b, q, k]
        return seen | (q == k) if order is not None and order.itself else seen

    of_batch = [t for t in (is_token, documents, index, keys, hidden) if t is not None and t.dim() > 1]
    plain = not of_batch
    triangular = plain and mask is not None and mask.triangular
    return Visible(
        allows,
        index,
        keys,
        batch_size=1 if plain else of_batch[0].shape[0],
        everything=plain and (mask is None or mask.everything),
        causal=triangular and index.shape == keys.shape,
        trailing=triangular and 1 < len(index) < len(keys),  # the cache's last tokens
    )
