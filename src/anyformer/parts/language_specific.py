"""Layers with weights of their own for each language [Fan et al. 2020, M2M-100].

B batch, T tokens, D width, N languages.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from anyformer.kernels.capture import can_read_values
from anyformer.parts.computed import Computed
from anyformer.parts.op import Op, Reshaping
from anyformer.parts.unused import PartlyUsed
from anyformer.runtime.context import Context, TokenIds
from anyformer.runtime.mask import Mask, first_of_document
from anyformer.runtime.state import PerRow
from anyformer.specs.messages import quote
from anyformer.specs.part import Sees, Site, farthest, walk

MAX_LANGUAGES = 10_000  # each op is a module of its own: more take minutes to build


class LanguageSpecific(
    Op, sees="past", called=("M2M-100", "language-specific layers", "one of several, chosen by a token")
):
    """One `op` a language, each with its own weights: a token goes through that of the last token of `tokens` up to
    it, and before there is one through the first [Fan et al. 2020]. In the decoder of an M2M-100, where a text begins
    with the token of its language, that is the target language. Only the languages of a batch are computed, each for
    all of it; a recorded pass computes all, and so does an op that remembers tokens while it decodes."""

    requires: ClassVar[tuple[str, ...]] = ("token ids",)

    op: Op
    tokens: tuple[int, ...]  # the tokens that name the languages, one op each

    def check(self) -> None:
        if len(self.tokens) > MAX_LANGUAGES:
            raise ValueError(f"LanguageSpecific.tokens has {len(self.tokens):,} tokens; at most {MAX_LANGUAGES:,}")
        if not self.tokens or len(set(self.tokens)) < len(self.tokens) or min(self.tokens) < 0:
            given = quote(self.tokens)
            raise ValueError(f"LanguageSpecific.tokens is {given}; it has the id of each language's token once")
        reshapes = isinstance(self.op, Reshaping) and self.op.reshapes
        if reshapes or self.op.layer_sharing or any(part.routes or part.reads_memory for _, part in walk(self.op)):
            kind, why = (
                type(self.op).__name__,
                "has a router, reads a memory, reshapes or shares weights between layers",
            )
            raise ValueError(f"LanguageSpecific.op: this {kind} {why}; MLP(width=...) does not")

    def reaches(self) -> Sees | None:
        return farthest("past", self.op)

    @property
    def packs(self) -> bool:  # type: ignore[override]
        return self.op.packs

    @property
    def mask(self) -> Mask | None:
        return self.op.mask

    @property
    def causal_alternative(self) -> str:
        return "LanguageSpecific(op=MLP(width=...), tokens=...)"

    def build(self, site: Site) -> nn.Module:
        return LanguageSpecificModule(self, site)


class LanguageSpecificModule(PartlyUsed):
    def __init__(self, part: LanguageSpecific, site: Site) -> None:
        super().__init__()
        self.address, N = site.address, len(part.tokens)
        self.op = nn.ModuleList(part.op.build(site.child(f"op.{i}")) for i in range(N))
        self.unused, self.mixes = (N - 1) / N, part.op.sees != "itself"
        self.tokens, self.key = Computed(lambda: torch.tensor(part.tokens)), f"languages {part.tokens}"

    def state_spec(self) -> PerRow:
        return PerRow({"language": (1,)}, dtypes={"language": torch.long})

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        chosen = ctx.once(self.key, lambda: self.languages(ctx))  # (B, T)
        if (store := ctx.store(self.address)) is not None:
            store.replace("language", chosen[:, -1:].clone())
        every = range(len(self.op))
        if chosen.is_meta:  # counted: a token goes through one
            every = range(1)
        elif can_read_values() and not (self.mixes and ctx.state is not None):
            every = ctx.once(f"{self.key} used", lambda: chosen.unique().tolist())
        y = None
        for i in every:
            own = self.op[i](x, ctx)
            y = own if y is None else torch.where((chosen == i)[..., None], own, y)
        assert y is not None
        return y

    def languages(self, ctx: Context) -> Tensor:
        """(B, T) the language of each token, by its number."""
        given, store = ctx.extra(TokenIds), ctx.store(self.address)
        if given is None:
            raise ValueError(f"{self.address}: the language is read from its token; give input_ids")
        named = given.ids[..., None] == self.tokens()  # (B, T, N)
        found = named.any(-1) if ctx.tokens is None else named.any(-1) & ctx.tokens
        place = torch.arange(found.shape[1], device=found.device)
        last = torch.where(found, place, -1).cummax(1).values
        own = named.long().argmax(-1).gather(1, last.clamp(min=0))
        before = torch.zeros_like(own[:, :1]) if store is None else store.tensors["language"].expand(len(own), -1)
        if ctx.documents is not None:
            first = first_of_document(ctx.documents)
            last, before = torch.where(last < first, -1, last), before * (first == 0)
        return torch.where(last < 0, before, own)
