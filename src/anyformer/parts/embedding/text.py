"""Text embeddings. An embedding module maps the named inputs of a call to (x, Context).

B batch, T tokens, D width, V vocabulary.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.batch_rows import mask_or_ones
from anyformer.kernels.capture import can_read_values, extremes
from anyformer.kernels.value_checks import check_range
from anyformer.parts.base import AbsolutePosition, Embedding, PartModule
from anyformer.parts.computed import places
from anyformer.parts.embedding.segment_ids import SegmentIds, TokenSegments
from anyformer.parts.norm import Norm
from anyformer.parts.position.absolute import add_position
from anyformer.parts.position.numbering import ByPlace, Numbering, WithoutToken
from anyformer.runtime.context import Context, input_extras, leading_pads, select_tokens
from anyformer.runtime.inputs import boolean_mask, check_shape
from anyformer.runtime.state import State
from anyformer.runtime.stores import PerToken
from anyformer.runtime.visibility import first_of_document
from anyformer.specs.field_types import Chance, Count, Natural
from anyformer.specs.part import Part, Sees, Site, farthest, walk

# requirement of a Part -> an embedding that provides it
GIVERS = {
    "an image": "PatchEmbedding", "a video": "VideoEmbedding", "a grid": "PatchEmbedding(prefix=())",
    "a second token": "PatchEmbedding(prefix=(PrefixTokens(count=2),))", "a row of tokens": "TextEmbedding",
    "a mask token": "PatchEmbedding(mask_token=True)", "token ids": "TextEmbedding",
    "segments": "TextEmbedding(segments=2)",
    "global tokens": "GlobalTextEmbedding", "a waveform": "WaveformEmbedding", "time steps": "TrajectoryEmbedding",
    "pairs": "PairEmbedding", "two towers": "TwoTowerModel", "three towers": "ThreeTowerModel",
    "hidden spans": "HiddenSpansModel",
    "a condition": "NoisyEmbedding", "an order": "OrderedText",
}  # fmt: skip


class Tokens(Part, sees="itself", called=("word embedding", "WTE")):
    """One learned vector per token."""

    vocab_size: Count
    width: Count | None = None  # of the vectors, if they are projected to the model's width (ALBERT, OPT-350M)
    scale: float | None = None  # factor of the vectors (sqrt(D) in the original Transformer)
    padding_index: int | None = None  # this token's vector is initialised to zero and gets no gradient

    @classmethod
    def upgrade(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Earlier versions had a field for an unused table."""
        unused = [data.pop(name, False) for name in ("unused_table", "spare")]
        return {**data, "kind": "SpareTableTokens"} if any(unused) else data

    def build(self, site: Site) -> nn.Module:
        return TokensModule(self, self.width or site.width)


class TokensModule(nn.Embedding):
    def __init__(self, part: Tokens, width: int) -> None:
        super().__init__(part.vocab_size, width, padding_idx=part.padding_index)
        self.scale = part.scale

    def forward(self, ids: Tensor) -> Tensor:
        try:
            if ids.is_cuda:
                ids = check_ids(ids, self.num_embeddings)  # a GPU would abort the process instead of raising
            x = super().forward(ids)
        except IndexError:
            check_ids(ids, self.num_embeddings)
            raise
        return x if self.scale is None else x * self.scale


def check_ids(ids: Tensor, vocab_size: int) -> Tensor:
    return check_range(ids, vocab_size, f"token id {{value}} is outside the vocabulary of {vocab_size}")


Step = Literal["segments", "position", "norm", "dropout", "project"]
STEPS: tuple[Step, ...] = get_args(Step)


class TextEmbedding(Embedding, sees="itself"):
    """Token vectors, then segments, positions, norm, dropout and projection in the order of `order` (BigBird applies
    dropout before its norm, OPT-350M projects before it adds positions)."""

    inputs: ClassVar[tuple[str, ...]] = (
        "input_ids",
        "inputs_embeds",
        "attention_mask",
        "position_ids",
        "token_type_ids",
        "document_ids",
    )
    token_labels: ClassVar[tuple[str, ...]] = ("token_type_ids",)

    tokens: Tokens
    position: AbsolutePosition | None = None
    segments: Natural | SegmentIds = 0  # number of segment vectors (BERT's A and B), or another meaning of their ids
    norm: Norm | None = None
    dropout: Chance = 0.0
    project_bias: bool = True  # of the projection, if tokens.width is set
    order: tuple[Step, ...] = STEPS  # of the steps after the token table
    numbering: Numbering = ByPlace()  # how tokens are numbered for `position`
    scale: float | None = None  # factor of the token vectors or inputs_embeds

    def check(self) -> None:
        kind, numbering = type(self).__name__, type(self.numbering).__name__
        if sorted(self.order) != sorted(STEPS):
            raise ValueError(f"{kind}.order is {', '.join(self.order)}; it must contain {', '.join(STEPS)} once each")
        late = self.tokens.width and self.order.index("project") < self.order.index("segments")
        if late and isinstance(self.segments, TokenSegments):
            raise ValueError(f"{kind}.order: with TokenSegments, 'segments' must come before 'project'")
        for path, part in walk(self.position, "position"):
            if self.numbering.before and isinstance(part, AbsolutePosition) and not part.has_padding_row:
                raise ValueError(f"{kind}.{path}: {numbering} needs a row for tokens it does not count; set offset=1")

    def reaches(self) -> Sees | None:
        return farthest(super().reaches(), "past" if self.numbering.counts else None)

    @property
    def num_segments(self) -> int:
        """Number of segment vectors."""
        return self.segments if isinstance(self.segments, int) else 0

    @property
    def gives(self) -> tuple[str, ...]:
        used = self.segments.used if isinstance(self.segments, SegmentIds) else self.segments
        segments = ("segments",) if used else ()
        return ("a row of tokens", "token ids", *segments)

    @property
    def padding_token(self) -> int | None:
        return self.numbering.token if isinstance(self.numbering, WithoutToken) else self.tokens.padding_index

    @classmethod
    def upgrade(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Earlier versions had fields for other meanings of segments and for the kinds in padded_text.py."""
        names = {"token_segments": "TokenSegments", "ignores_segments": "IgnoredSegments"}
        for old, kind in {**names, "idle_segments": "IgnoredSegments"}.items():
            if data.pop(old, False) and not data.get("segments"):
                data["segments"] = {"kind": kind}
        zeroes, hidden = data.pop("zero_pads", False), data.pop("unseen", None)
        if hidden is not None:
            data["hidden_token"] = hidden
        if cls is TextEmbedding and (zeroes or hidden is not None):
            data["kind"] = "HiddenTokenText" if not zeroes else "ZeroedPaddingText" if hidden is None else "XLMText"
        return data


class TextEmbeddingModule(PartModule, of=TextEmbedding):
    def __init__(self, part: TextEmbedding, site: Site) -> None:
        super().__init__()
        self.part, self.address = part, site.address
        self.width = part.tokens.width or site.width
        widened = part.order.index("project")
        at = {step: site.width if i > widened else self.width for i, step in enumerate(part.order)}
        self.tokens = part.tokens.build(site.child("tokens"))
        self.position = part.position.build(site.child("position", width=at["position"])) if part.position else None
        self.segment_width = at["segments"]
        self.segments: nn.Module | None = None
        if isinstance(part.segments, SegmentIds):
            self.segments = part.segments.build(site.child("segments"))
        elif part.segments:
            self.segments = nn.Embedding(part.segments, self.segment_width)
        self.norm = part.norm.build(site.child("norm", width=at["norm"])) if part.norm else None
        project = part.tokens.width is not None
        self.project = nn.Linear(self.width, site.width, bias=part.project_bias) if project else None

    def state_spec(self) -> PerToken | None:
        """One flag per cached token, if some tokens do not count for positions."""
        return PerToken({"counted": ()}, dtypes={"counted": torch.bool}) if self.part.numbering.counts else None

    def forward(self, inputs: dict[str, Any], state: State | None = None) -> tuple[Tensor, Context]:
        ids, given = inputs.get("input_ids"), inputs.get("inputs_embeds")
        if (ids is None) == (given is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        x: Any = given
        if given is not None and (given.dim() != 3 or given.shape[1] == 0 or given.shape[2] != self.width):
            raise ValueError(f"inputs_embeds must be (batch, tokens, {self.width}), got {tuple(given.shape)}")
        if ids is not None:
            if ids.dim() != 2 or ids.shape[1] == 0:
                raise ValueError(f"input_ids must be (batch, tokens) with at least one token, got {tuple(ids.shape)}")
            x = self.tokens(ids)
        if self.part.scale is not None:
            x = x * self.part.scale
        numbering, given_positions = self.part.numbering, inputs.get("position_ids")
        if given_positions is not None:
            inputs = {**inputs, "position_ids": given_positions - numbering.first}
        placed = self.position is not None
        ctx = text_context(x, inputs, state, numbering.counted_tokens(x, ids), self.address, placed)
        if given_positions is None:
            ctx = numbering.renumber(ctx)
        for step in self.part.order:
            if step == "segments":
                x = self.add_segments(x, inputs)
            elif step == "position" and self.position is not None:
                x = add_position(self.position, x, ctx)
            elif step == "norm" and self.norm is not None:
                x = self.norm(x)
            elif step == "dropout" and self.training and self.part.dropout:
                x = F.dropout(x, self.part.dropout)
            elif step == "project" and self.project is not None:
                x = self.project(x)
        return x, ctx

    def add_segments(self, x: Tensor, inputs: dict[str, Any]) -> Tensor:
        kinds = inputs.get("token_type_ids")
        check_shape("token_type_ids", kinds, tuple(x.shape[:2]), (1, x.shape[1]))
        if isinstance(self.segments, nn.Embedding):
            return x + (self.segments.weight[0] if kinds is None else self.segment_vectors(self.segments, kinds))
        if kinds is None:
            return x
        if self.segments is None:
            raise ValueError("token_type_ids: this model has no segments; omit token_type_ids")
        return self.segments(x, kinds, self.token_vectors)

    def token_vectors(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        return x if self.part.scale is None else x * self.part.scale

    def segment_vectors(self, table: nn.Embedding, kinds: Tensor) -> Tensor:
        try:
            return table(kinds)
        except IndexError:
            low, high = extremes(kinds)
            bad = low if low < 0 else high
            size = table.num_embeddings
            raise ValueError(f"token_type_ids: {bad} is not between 0 and {size - 1} (segments={size})") from None


def text_context(
    x: Tensor,
    inputs: dict[str, Any],
    state: State | None,
    counted: Tensor | None = None,
    address: str = "",
    placed: bool = True,
) -> Context:
    """Return the context of the tokens x (B, T, D), from the masks and ids in `inputs` and the cached state.

    counted: (B, T) True for tokens that have a position, cached under `address`; None: all tokens have one.
    placed: whether positions are added to x.
    """
    (B, T), device = x.shape[:2], x.device
    past = 0 if state is None else state.past
    if state is not None and state.capacity is not None and can_read_values() and state.length + T > state.capacity:
        raise ValueError(f"past_key_values has room for {state.capacity} tokens: {T} after {state.length} do not fit")
    if state is not None and can_read_values():
        state.check_rows(B)
    index = places(T, device)
    if not isinstance(past, int) or past:
        index = index + (past if isinstance(past, int) else past[:, None])
    is_token = _token_mask(inputs.get("attention_mask"), B, T, state, placed)
    documents = inputs.get("document_ids")
    positions = inputs.get("position_ids")
    check_shape("document_ids", documents, (B, T))
    check_shape("position_ids", positions, (T,), (1, T), (B, T))
    ctx = Context(
        index=index,
        positions=index if index.dim() == 2 else index[None],
        is_token=is_token,
        documents=documents,
        state=state,
        row_length=T if state is None else None,
        extras=input_extras(inputs),
    )
    number = None
    if counted is not None:
        if is_token is not None:  # padding on the left does not count, whatever its id
            counted = counted & (index >= leading_pads(is_token))
        number = ctx.of_these(ctx.append_to_cache(address, {"counted": counted})[0]["counted"].cumsum(-1))
    if positions is None:
        positions = ctx.positions
        if counted is not None and number is not None:
            if documents is not None:  # counted from 1 in each document
                number = number - (number - counted.long()).gather(-1, first_of_document(documents))
            # number - 1 for counted tokens; -1, the row before the first position, for the others
            positions = number * counted - 1
        elif documents is not None:
            positions = positions - first_of_document(documents)
        elif is_token is not None:
            positions = (positions - leading_pads(is_token)).clamp(min=0)
    elif positions.dim() == 1:
        positions = positions[None]
    return ctx if positions is ctx.positions else ctx.replace(positions=positions)


def _token_mask(mask: Tensor | None, B: int, T: int, state: State | None, placed: bool) -> Tensor | None:
    """Return (B, S), True for real tokens, over cached tokens and these T tokens; None if there is no padding."""
    if mask is not None and mask.dim() != 2:
        raise ValueError(f"attention_mask must be (batch, tokens), got {tuple(mask.shape)}")
    if state is not None and isinstance(state.past, Tensor):
        # static cache: the mask covers the whole capacity, so shapes do not change
        if mask is not None and mask.shape != (B, state.capacity):
            shape = tuple(mask.shape)
            raise ValueError(f"attention_mask of a static cache must be (batch, {state.capacity}), got {shape}")
        check_end = mask is not None and (placed or state.keeps_tokens) and can_read_values()
        if mask is not None and check_end and not bool(select_tokens(mask, state.past[:, None] + T - 1).all()):
            raise ValueError("attention_mask: a row ends in padding, which a static cache cannot skip; pad on the left")
        return state.is_token if mask is None else mask.bool()
    past = 0 if state is None else state.length
    if mask is None:
        if state is None or state.is_token is None:
            return None
        mask = torch.ones(B, T, dtype=torch.bool, device=state.is_token.device)
    if mask.shape[0] != B or (mask.shape[1] != T and mask.shape[1] != past + T):  # `in` fails on symbolic sizes
        raise ValueError(f"attention_mask must cover (batch {B}, {past + T} tokens), got {tuple(mask.shape)}")
    if state is not None and past and (mask.shape[1] == T or state.realigned):
        before = mask_or_ones(state.is_token, (B, past), mask.device)
        if mask.shape[1] > T and can_read_values() and bool((before.sum(1) != mask[:, :past].sum(1)).any()):
            raise ValueError("attention_mask differs from the cached mask; give only the mask of new tokens")
        mask = torch.cat((before.to(mask.dtype), mask[:, -T:]), dim=1)
    mask = boolean_mask(mask)
    if state is not None:
        state.is_token, state.trailing_pads = mask, None if mask is None else trailing_pads(mask[:, -T:])
    return mask


def trailing_pads(mask: Tensor) -> Tensor | None:
    """Return the number of pads at the end of each row of a mask (B, T), as (B,); None if no row ends in padding."""
    if can_read_values() and bool(mask[:, -1].all()):
        return None
    return (mask.flip(1).cumsum(1) == 0).sum(1)
