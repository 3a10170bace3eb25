"""Raw inputs to vectors. An embedding module maps the named inputs of a call to (x, Context).

B batch, T tokens, D width, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.check import at_least, chance
from anyformer.context import Context, leading_pads
from anyformer.kernels.recording import recording
from anyformer.part import Part, Sees, Site, farthest, walk
from anyformer.parts.given import check_shape, hides_nothing
from anyformer.parts.marks import Marks, MarkSpec
from anyformer.parts.norm import Norm
from anyformer.parts.position import AbsolutePosition, add_position
from anyformer.parts.tree import Tree
from anyformer.state import State


class Embedding(Part):
    """Turns the inputs that `inputs` names into the residual stream."""

    inputs: ClassVar[tuple[str, ...]] = ()
    hides: ClassVar[bool] = True  # what attention_mask leaves out is seen by no one

    @property
    def gives(self) -> tuple[str, ...]:
        """What other Parts of the model may need of it: see their `needs`."""
        return ()


# what a Part can need of an embedding, and one that gives it
GIVERS = {
    "a grid": "PatchEmbedding", "a mask token": "PatchEmbedding(mask_token=True)",
    "a row of tokens": "TextEmbedding", "token ids": "TextEmbedding",
    "segments": "TextEmbedding(segments=2)", "global tokens": "GlobalTextEmbedding", "a waveform": "WaveformEmbedding",
}  # fmt: skip


class Tokens(Part, sees="itself"):
    """One learned vector a token."""

    vocab_size: int
    width: int | None = None  # narrower than the model: factorised, projected up (ALBERT, OPT-350M)
    scale: float | None = None  # of the vectors (sqrt(D) in the original Transformer)
    padding_index: int | None = None  # this token starts at zero and never learns
    spare: bool = False  # checkpoints carry a second table that nothing reads (`shared` of untied Marian and BART)

    def check(self) -> None:
        at_least(self, 1, "vocab_size", "width")

    def build(self, site: Site) -> nn.Module:
        return TokensModule(self, self.width or site.width)


class TokensModule(nn.Embedding):
    def __init__(self, part: Tokens, width: int) -> None:
        super().__init__(part.vocab_size, width, padding_idx=part.padding_index)
        self.scale = part.scale
        if part.spare:
            self.spare = nn.Parameter(torch.empty(part.vocab_size, width), requires_grad=False)

    def forward(self, ids: Tensor) -> Tensor:
        try:
            if ids.device.type == "cuda" and not recording():
                self.check(ids)  # the device could only abort
            x = super().forward(ids)
        except IndexError:
            self.check(ids)
            raise
        return x if self.scale is None else x * self.scale

    def check(self, ids: Tensor) -> None:
        for bad in (int(ids.min()), int(ids.max())):
            if not 0 <= bad < self.num_embeddings:
                raise ValueError(f"token id {bad} is outside the vocabulary of {self.num_embeddings}")


class TextEmbedding(Embedding, sees="itself"):
    """Tokens, and what is added to them."""

    inputs: ClassVar[tuple[str, ...]] = (
        "input_ids", "inputs_embeds", "attention_mask", "position_ids", "token_type_ids", "document_ids",
    )  # fmt: skip

    tokens: Tokens
    position: AbsolutePosition | None = None
    segments: int = 0  # how many kinds of segment (BERT's A and B) have a vector
    token_segments: bool = False  # segments are tokens of the same table (GPT-2)
    norm: Norm | None = None
    dropout: float = 0.0
    norm_last: bool = False  # dropout comes before the norm (BigBird)
    projected: bool = False  # into the model's width even where the tokens have it already (ALBERT)
    project_first: bool = False  # narrower tokens are widened before positions join, without a bias (OPT-350M)
    unpadded: bool = False  # positions count real tokens alone, and pads stand just before the first (OPT)
    uncounted: int | None = None  # a token id that takes up no position (RoBERTa's and FSMT's padding)
    first_position: int = 0  # what a caller's position_ids call the first position (RoBERTa's 2)
    unseen: int | None = None  # a token id that no token sees where no attention_mask is given (FSMT's decoder padding)
    scale: float | None = None  # of the token vectors, or of the vectors given in their place

    def check(self) -> None:
        at_least(self, 0, "segments")
        chance(self, "dropout")
        for path, part in walk(self.position, "position"):
            if (self.uncounted is not None or self.unpadded) and getattr(part, "offset", 1) < 1:
                kind, field = type(self).__name__, "unpadded" if self.unpadded else "uncounted"
                raise ValueError(f"{kind}.{path}: what {field} leaves out has the row before the first; set offset=1")

    def reaches(self) -> Sees | None:
        return farthest(super().reaches(), None if self.uncounted is None else "past")

    @property
    def gives(self) -> tuple[str, ...]:
        segments = ("segments",) if self.segments or self.token_segments else ()
        return ("a row of tokens", "token ids", *segments)

    def build(self, site: Site) -> nn.Module:
        return TextEmbeddingModule(self, site)


class TextEmbeddingModule(nn.Module):
    def __init__(self, part: TextEmbedding, site: Site) -> None:
        super().__init__()
        self.part, self.address = part, site.address
        self.width = width = part.tokens.width or site.width
        inner = site if part.project_first else dataclasses.replace(site, width=width)
        self.tokens = part.tokens.build(site.child("tokens"))
        self.position = part.position.build(inner.child("position")) if part.position else None
        self.segments = nn.Embedding(part.segments, inner.width) if part.segments else None
        self.norm = part.norm.build(inner.child("norm")) if part.norm else None
        narrow = width != site.width or part.projected
        self.project = nn.Linear(width, site.width, bias=not part.project_first) if narrow else None

    def state_spec(self) -> MarkSpec | None:
        return None if self.part.uncounted is None else MarkSpec()

    def forward(self, inputs: dict[str, Any], state: State | None = None) -> tuple[Tensor, Context]:
        ids, given = inputs.get("input_ids"), inputs.get("inputs_embeds")
        if (ids is None) == (given is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        x: Any = given
        if given is not None and (given.dim() != 3 or given.shape[1] == 0 or given.shape[2] != self.width):
            raise ValueError(f"inputs_embeds is (batch, tokens, {self.width}), got {tuple(given.shape)}")
        if ids is not None:
            if ids.dim() != 2 or ids.shape[1] == 0:
                raise ValueError(f"input_ids is (batch, tokens) with at least one token, got {tuple(ids.shape)}")
            x = self.tokens(ids)
            static = state is not None and state.capacity is not None
            if self.part.unseen is not None and inputs.get("attention_mask") is None and not static:
                inputs = {**inputs, "attention_mask": ids != self.part.unseen}
        if self.part.scale is not None:
            x = x * self.part.scale
        if self.part.project_first and self.project is not None:
            x = self.project(x)
        if self.part.first_position and inputs.get("position_ids") is not None:
            inputs = {**inputs, "position_ids": inputs["position_ids"] - self.part.first_position}
        counted = None
        if self.part.uncounted is not None:  # where vectors are given, each of them counts
            counted = x.new_ones(x.shape[:2], dtype=torch.bool) if ids is None else ids != self.part.uncounted
        ctx = text_context(x, inputs, state, counted, self.address)
        if self.part.unpadded and inputs.get("position_ids") is None and ctx.documents is None:
            ctx = ctx.having(positions=real_positions(ctx))
        segments = inputs.get("token_type_ids")
        check_shape("token_type_ids", segments, tuple(x.shape[:2]), (1, x.shape[1]))
        if self.segments is not None:
            table = self.segments.weight
            x = x + (table[0] if segments is None else self.segment_vectors(segments))
        elif segments is not None:
            if not self.part.token_segments:
                raise ValueError("this model has no segments: token_type_ids cannot be honoured")
            kind = self.tokens(segments)
            x = x + (kind if self.part.scale is None else kind * self.part.scale)
        if self.position is not None:
            x = add_position(self.position, x, ctx)
        if self.norm is not None and not self.part.norm_last:
            x = self.norm(x)
        if self.training and self.part.dropout:
            x = F.dropout(x, self.part.dropout)
        if self.norm is not None and self.part.norm_last:
            x = self.norm(x)
        return (x if self.project is None or self.part.project_first else self.project(x)), ctx


    def segment_vectors(self, kinds: Tensor) -> Tensor:
        assert self.segments is not None
        try:
            return self.segments(kinds)
        except IndexError:
            low, high = int(kinds.min()), int(kinds.max())
            bad = low if low < 0 else high
            raise ValueError(f"token_type_ids: {bad} is none of the {self.part.segments} kinds of segment") from None


def real_positions(ctx: Context) -> Tensor:
    """(1 or B, T) how many real tokens stand before each real one; -1 for pads."""
    if ctx.padding is None:
        return ctx.positions
    return (ctx.padding.cumsum(-1) * ctx.padding - 1)[:, ctx.index]


def text_context(
    x: Tensor, inputs: dict[str, Any], state: State | None, counted: Tensor | None = None, address: str = ""
) -> Context:
    """Where each token of x (B, T, D) stands, given the masks and what was seen before. `counted` (B, T), remembered
    under `address`: which tokens take up a position, where not all do."""
    (B, T), device = x.shape[:2], x.device
    past = 0 if state is None else state.length
    index = torch.arange(T, device=device) + past
    padding = _padding(inputs.get("attention_mask"), B, T, state)
    documents = inputs.get("document_ids")
    positions = inputs.get("position_ids")
    check_shape("document_ids", documents, (B, T))
    check_shape("position_ids", positions, (T,), (1, T), (B, T))
    number = None
    if counted is not None:
        if padding is not None:  # pads on the left are not counted, whatever their id
            counted = counted & (index >= leading_pads(padding))
        slot = None if state is None else state.slots[address]
        number = (slot.extend(counted, index) if isinstance(slot, Marks) else counted).cumsum(-1)[:, index]
    if positions is None:
        positions = index[None]
        if counted is not None and number is not None:
            if documents is not None:  # counted from 1 in each document
                number = number - (number - counted.long()).gather(-1, first_of_document(documents))
            # (number - 1) where counted, -1 elsewhere: the row just before the first position
            positions = number * counted - 1
        elif documents is not None:
            positions = positions - first_of_document(documents)
        elif padding is not None:
            positions = (positions - leading_pads(padding)).clamp(min=0)
    elif positions.dim() == 1:
        positions = positions[None]
    parents = inputs.get("tree_parents")
    return Context(
        index=index, positions=positions, padding=padding, documents=documents, state=state,
        extras=() if parents is None else (Tree(parents),),
    )  # fmt: skip


def first_of_document(documents: Tensor) -> Tensor:
    """(B, T) document numbers -> (B, T) the place where each token's document begins."""
    index = torch.arange(documents.shape[1], device=documents.device)
    new = torch.ones_like(documents, dtype=torch.bool)
    new[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return torch.where(new, index, 0).cummax(-1).values


def _padding(mask: Tensor | None, B: int, T: int, state: State | None) -> Tensor | None:
    """(B, S) True where real, over the past and these T tokens; None when nothing is padded."""
    if mask is not None and mask.dim() != 2:
        raise ValueError(f"attention_mask is (batch, tokens), got {tuple(mask.shape)}")
    if state is not None and state.capacity is not None:
        # static: the caller gives the whole row or nothing, so that shapes stay
        if mask is not None and mask.shape != (B, state.capacity):
            raise ValueError(f"a static state's attention_mask is (batch, {state.capacity}), got {tuple(mask.shape)}")
        return None if mask is None else mask.bool()
    past = 0 if state is None else int(state.length)
    if mask is None:
        if state is None or state.padding is None:
            return None
        mask = torch.ones(B, T, dtype=torch.bool, device=state.padding.device)
    if past and mask.shape[1] == T:  # these tokens alone: the past is remembered
        before = state.padding if state is not None else None
        before = torch.ones(B, past, dtype=torch.bool, device=mask.device) if before is None else before
        mask = torch.cat((before.to(mask.dtype), mask), dim=1)
    if mask.shape != (B, past + T):
        raise ValueError(f"attention_mask covers (batch {B}, {past + T} tokens), got {tuple(mask.shape)}")
    if hides_nothing(mask):
        mask = None
    mask = None if mask is None else mask.bool()
    if state is not None:
        state.padding = mask
    return mask
