"""Layers with separate weights per language [Fan et al. 2020, M2M-100].

B batch, T tokens, D width, N languages.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from anyformer.kernels.capture import can_read_values
from anyformer.parts.computed import Computed
from anyformer.parts.mask import Mask
from anyformer.parts.op import Op, Reshaping
from anyformer.parts.unused import PartlyUsed
from anyformer.runtime.context import Context, TokenIds
from anyformer.runtime.stores import PerRow
from anyformer.runtime.visibility import first_of_document
from anyformer.specs.messages import quote
from anyformer.specs.part import Sees, Site, farthest, walk

MAX_LANGUAGES = 10_000  # each op is a separate module; more would take minutes to build


class LanguageSpecific(
    Op, sees="past", called=("M2M-100", "language-specific layers", "one of several, chosen by a token")
):
    """One `op` per language, each with its own weights. A token uses the op of the last language token (one of
    `tokens`) at or before it; tokens before the first language token use the first op [Fan et al. 2020]. In an M2M-100
    decoder, a text begins with its language token, which names the target language. Only the ops that a batch needs
    are run, each on the whole batch; a captured pass, or decoding with an op that has a cache, runs all ops."""

    requires: ClassVar[tuple[str, ...]] = ("token ids",)
    causal_alternative: ClassVar[str] = "LanguageSpecific(op=MLP(width=...), tokens=...)"

    op: Op
    tokens: tuple[int, ...]  # ids of the language tokens, one op per id

    def check(self) -> None:
        if len(self.tokens) > MAX_LANGUAGES:
            raise ValueError(f"LanguageSpecific.tokens has {len(self.tokens):,} tokens; at most {MAX_LANGUAGES:,}")
        if not self.tokens or len(set(self.tokens)) < len(self.tokens) or min(self.tokens) < 0:
            given = quote(self.tokens)
            raise ValueError(f"LanguageSpecific.tokens is {given}; list one different token id per language")
        reshapes = isinstance(self.op, Reshaping) and self.op.reshapes
        if reshapes or self.op.layer_sharing or any(part.routes or part.reads_memory for _, part in walk(self.op)):
            raise ValueError(
                f"LanguageSpecific.op: this {type(self.op).__name__} has a router, reads a memory, reshapes or shares"
                " weights between layers; use a plain op such as MLP(width=...)"
            )

    def reaches(self) -> Sees | None:
        return farthest("past", self.op)

    @property
    def packs(self) -> bool:  # type: ignore[override]
        return self.op.packs

    @property
    def mask(self) -> Mask | None:
        return self.op.mask


class LanguageSpecificModule(PartlyUsed, of=LanguageSpecific):
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
        if chosen.is_meta:  # FLOPs are counted: each token uses one op
            every = range(1)
        elif can_read_values() and not (self.mixes and ctx.state is not None):
            every = ctx.once(f"{self.key} used", lambda: chosen.unique().tolist())
        y = None
        for i in every:
            out = self.op[i](x, ctx)
            y = out if y is None else torch.where((chosen == i)[..., None], out, y)
        assert y is not None
        return y

    def languages(self, ctx: Context) -> Tensor:
        """(B, T) index in `tokens` of each token's language."""
        token_ids, store = ctx.extra(TokenIds), ctx.store(self.address)
        if token_ids is None:
            raise ValueError(f"{self.address}: the language is read from the token ids; pass input_ids")
        matches = token_ids.ids[..., None] == self.tokens()  # (B, T, N)
        is_language = matches.any(-1) if ctx.tokens is None else matches.any(-1) & ctx.tokens
        index = torch.arange(is_language.shape[1], device=is_language.device)
        last = torch.where(is_language, index, -1).cummax(1).values
        named = matches.long().argmax(-1).gather(1, last.clamp(min=0))
        before = torch.zeros_like(named[:, :1]) if store is None else store.tensors["language"].expand(len(named), -1)
        if ctx.documents is not None:
            first = first_of_document(ctx.documents)
            last, before = torch.where(last < first, -1, last), before * (first == 0)
        return torch.where(last < 0, before, named)
