"""Attention to one segment of a text, to the tokens kept before it [Dai et al. 2019], and to compressed vectors of
still older tokens [Rae et al. 2019]: a token sees far back, and its cost does not grow with the text.

B batch, T tokens, S cached tokens, H heads, K head width, D width, L tokens per segment, M tokens kept before it, C
compressed vectors, c tokens per compressed vector, n segments, W = C + M + L.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.attention import EVERYTHING, Plan, attend
from anyformer.parts.attention.linear import Projections, ProjectionsModule
from anyformer.parts.attention.memory_compressed import complete, tokens_before
from anyformer.parts.mask import CAUSAL
from anyformer.parts.position.relative import RelativeSinusoids
from anyformer.parts.recurrent.mamba import PackedRows
from anyformer.runtime.context import Context, select_tokens
from anyformer.runtime.stores import PerRow, PerToken
from anyformer.runtime.taps import MIXER
from anyformer.runtime.visibility import text_positions
from anyformer.specs.field_types import Chance, Count, Natural
from anyformer.specs.part import Site


class RecurrentAttention(
    Projections,
    sees="past",
    called=(
        "Transformer-XL memory",
        "segment recurrence",
        "Compressive Transformer (compressed=...)",
        "segment-level recurrence",
    ),
):
    """A text is read in segments. A token sees its own segment up to itself, the `kept` tokens before the segment and,
    before those, `compressed` vectors, each computed from `rate` tokens by their mean, their maximum or a convolution.
    Every layer keeps the keys of its input, so several layers together reach farther back than one.

    Distances count visible entries: a token and a compressed vector are one each. If a text is read at once, gradients
    flow through the kept tokens; the papers stop them there to save memory."""

    segment: Count = 128  # L, tokens per segment
    kept: Natural = 128  # M, visible tokens before the segment
    compressed: Natural = 0  # C, visible compressed vectors before those
    rate: Count = 4  # c, tokens per compressed vector
    by: Literal["mean", "max", "convolution"] = "convolution"  # how they are compressed
    position: RelativeSinusoids | None = None
    dropout: Chance = 0.0  # on the attention weights

    def check(self) -> None:
        super().check()
        if self.compressed and (self.segment % self.rate or self.kept % self.rate):
            sizes = f"segment, {self.segment}, and kept, {self.kept}"
            raise ValueError(f"RecurrentAttention.rate is {self.rate}; it must divide {sizes}")
        if self.position is not None and type(self.position) is not RelativeSinusoids:
            raise ValueError(f"RecurrentAttention.position is {type(self.position).__name__}; use RelativeSinusoids")
        if self.position is not None and self.position.num_heads != self.num_heads:
            heads = self.position.num_heads
            raise ValueError(f"RecurrentAttention.position.num_heads is {heads}; it must be {self.num_heads}")


class RecurrentAttentionModule(ProjectionsModule, of=RecurrentAttention):
    def __init__(self, part: RecurrentAttention, site: Site) -> None:
        super().__init__(part, site)
        self.part, self.scale = part, self.head_width**-0.5
        self.position = part.position.build(site.child("position", width=self.head_width)) if part.position else None
        self.compress = Compress(part, site.child("compress")) if part.compressed else None
        self.most = part.segment + part.kept + part.compressed - 1  # the largest distance
        if part.compressed:
            self.tapped = {**MIXER, "short": None}  # type: ignore[misc]

    def state_spec(self) -> PerToken:
        shape = (self.part.num_heads, self.head_width)
        return PerToken({"k": shape, "v": shape}, window=self.part.segment + self.part.kept)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        q, k, v = self.projections(x, ctx)
        state, cached, places = ctx.state, {"k": self.heads(k), "v": self.heads(v)}, ctx.index
        begun = state is not None and (state.capacity is not None or state.length > 0)
        if state is not None:
            cached, places = ctx.append_to_cache(self.address, cached)
        older = self.older(x, ctx) if self.compress is not None else None
        listen, out = ctx.watch(self.address), None
        if not begun and ctx.documents is None and ctx.kernel != "eager":
            out = self.by_segments(q, k, v, older, ctx)
        if out is None or listen is not None:
            queries, keys, values = self.heads(q), cached["k"], cached["v"]
            if older is not None:
                keys, values = (torch.cat((self.heads(s), t), 2) for s, t in zip(older[:2], (keys, values)))
            seen, distance = self.pairs(None if older is None else older[2], places, ctx)
            queries, bias = self.bias(queries, seen, distance, ctx)
            dense = attend(
                queries,
                keys,
                values,
                EVERYTHING,
                Plan(self.scale, bias=bias, dropout=self.dropout, on_weights=listen, kernel=ctx.kernel),
            )
            changed = listen is not None and listen.changed
            out = dense.transpose(1, 2).flatten(2) if out is None or changed else out
        return self.o(ctx.tap(self.address, "mixed", out))

    @property
    def dropout(self) -> float:
        return self.part.dropout if self.training else 0.0

    def bias(self, q: Tensor, seen: Tensor, distance: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """Return the queries and the bias of their scores; `seen` and `distance` are (1 or B, T, S)."""
        bias = q.new_zeros(1, 1, 1, 1)
        if self.position is not None:
            q, bias = self.position.bias_at(q, distance, self.most, self.scale, ctx)
        return q, bias.masked_fill(~seen[:, None], float("-inf"))

    def by_segments(self, q: Tensor, k: Tensor, v: Tensor, older: Older | None, ctx: Context) -> Tensor:
        """(B, T, H K) for texts that begin here; each segment becomes a row."""
        (B, T, _), L, M, C, c = q.shape, self.part.segment, self.part.kept, self.part.compressed, self.part.rate
        rows, n = PackedRows.from_context(ctx), -(-T // L)
        q, k, v = (F.pad(rows.pack(t), (0, 0, 0, n * L - T)) for t in (q, k, v))
        keys, values = (F.pad(t, (0, 0, M, 0)).unfold(1, M + L, L) for t in (k, v))  # (B, n, H K, M + L)
        if older is not None:  # segment s sees vectors of tokens before s L - M
            empty = 0 if ctx.state is None or self.compress is None else self.compress.ring  # slots without a vector
            short = (F.pad(t[:, empty:], (0, 0, C + M // c, 0)).unfold(1, C, L // c)[:, :n] for t in older[:2])
            keys, values = (torch.cat((s, t), 3) for s, t in zip(short, (keys, values)))
        keys, values = (t.unflatten(2, (-1, self.head_width)).flatten(0, 1).transpose(2, 3) for t in (keys, values))

        def make() -> tuple[Tensor, Tensor]:
            at, column = torch.arange(L, device=q.device)[:, None], torch.arange(C + M + L, device=q.device)
            begin = torch.arange(n, device=q.device)[:, None, None] * L
            exists = torch.where(column < C, (begin - M) // c - C + column, begin - M - C + column) >= 0
            seen = exists & (column <= at + C + M)
            return seen.repeat(B, 1, 1), (C + M + at - column)[None]

        seen, distance = ctx.once(f"segments {L} {M} {C} {c}", make)
        queries = self.heads(q.reshape(B * n, L, -1))
        queries, bias = self.bias(queries, seen, distance, ctx)
        out = attend(
            queries, keys, values, EVERYTHING, Plan(self.scale, bias=bias, dropout=self.dropout, kernel=ctx.kernel)
        )
        return rows.unpack(out.transpose(1, 2).reshape(B, n * L, -1)[:, :T])

    def pairs(self, number: Tensor | None, places: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """(1 or B, T, compressed + S) which entries each token sees, and their distances. All pairs are computed: for
        the eager kernel (the reference), for packed documents, and if a text is continued."""
        part, index, window = self.part, ctx.index, self.part.segment + self.part.kept
        counted = ctx.once("text positions", lambda: text_positions(ctx.is_token, ctx.documents))
        queries, keys = (
            t.view(-1, t.shape[-1]) if counted is None else select_tokens(counted, t.clamp(min=0))
            for t in (index, places)
        )
        queries, keys = queries[..., None], keys[:, None]  # (1 or B, T, 1), (1 or B, 1, S)
        begin = queries // part.segment * part.segment
        seen = ctx.visible(CAUSAL, f"causal, of the last {window}", places).dense()[:, 0]
        row = places.view(-1, 1, places.shape[-1])
        itself = index.view(-1, index.shape[-1], 1) == row  # for pads, which see nothing else
        seen, distance = (seen & (row >= 0) & (keys >= begin - part.kept)) | itself, queries - keys
        if number is not None:
            first = (begin - part.kept) // part.rate  # number of the first vector that is not visible yet
            back = first - number[:, None]
            short = (number[:, None] >= 0) & (back > 0) & (back <= part.compressed)
            if ctx.documents is not None:
                short = short & (ctx.documents[..., None] == ctx.documents[:, None])
            seen, back = concatenate(short, seen), part.kept + queries - begin + back
            distance = concatenate(back, distance)
        return seen, distance

    def older(self, x: Tensor, ctx: Context) -> Older:
        """Return keys and values (B, n, D) of compressed vectors, and the number of each in its text (1 or B, n); -1:
        it is incomplete."""
        compress, c, rows = self.compress, self.part.rate, PackedRows.from_context(ctx)
        assert compress is not None
        store, (B, T, D) = ctx.store(compress.address), x.shape
        if ctx.documents is not None:  # documents begin anywhere, so every token may complete a vector
            places = ctx.once("text positions", lambda: text_positions(ctx.is_token, ctx.documents))
            assert places is not None
            last = (places + 1) % c == 0 if ctx.tokens is None else ((places + 1) % c == 0) & ctx.tokens
            windows = F.pad(x, (0, 0, c - 1, 0)).unfold(1, c, 1).transpose(2, 3)
            return *self.compressed_keys(windows, ctx), torch.where(last, places // c, -1)
        if store is None:
            real = x.shape[1] if ctx.tokens is None else ctx.tokens.sum(-1, keepdim=True)
            number = torch.arange(T // c, device=x.device)[None]
            windows = rows.pack(x)[:, : T // c * c].unflatten(1, (T // c, c))
            return *self.compressed_keys(windows, ctx), torch.where((number + 1) * c <= real, number, -1)
        ring = compress.ring
        past = torch.cat((store.tensors["window"].expand(B, -1, -1).to(x.dtype), rows.pack(x)), dim=1)
        store.replace("window", rows.last_tokens(past, c - 1))
        begun = tokens_before(ctx)
        number, windows = complete(past, begun, T, c, c)
        done = begun + (T if ctx.tokens is None else ctx.tokens.sum(-1, keepdim=True))
        new = torch.cat(self.compressed_keys(windows, ctx), -1)
        kv = torch.cat((store.tensors["kv"].expand(B, -1, -1).to(new.dtype), new), 1)
        slot = torch.arange(ring, device=x.device)
        latest = self.numbers(done // c, slot)
        at = torch.where(latest >= number[:, :1], ring + latest - number[:, :1], slot)
        store.replace("kv", kv.gather(1, at[..., None].expand(B, -1, 2 * D)))
        new_number = torch.where((number + 1) * c <= done, number, -1)
        old_number = self.numbers(begun // c, slot).expand(new_number.shape[0], -1)
        return kv[..., :D], kv[..., D:], torch.cat((old_number, new_number), 1)

    def compressed_keys(self, windows: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        assert self.compress is not None
        short = ctx.tap(self.address, "short", self.compress(windows))
        return self.k(short), self.v(short)

    def numbers(self, count: Tensor, slot: Tensor) -> Tensor:
        """Return the number of the vector in each slot of the ring after `count` (1 or B, 1) vectors; below 0: none."""
        assert self.compress is not None
        return count - 1 - (count - 1 - slot) % self.compress.ring


Older = tuple[Tensor, Tensor, Tensor]  # keys, values and numbers of compressed vectors


def concatenate(a: Tensor, b: Tensor) -> Tensor:
    """Concatenate along the last dimension; a single row is repeated for all rows of the other tensor."""
    size = max(a.shape[0], b.shape[0])
    return torch.cat((a.expand(size, -1, -1), b.expand(size, -1, -1)), -1)


class Compress(nn.Module):
    """Computes one vector from c tokens. Its state is the last tokens of a text that do not fill a vector yet, and a
    ring of the keys and values of the vectors that the last and the next segment see."""

    def __init__(self, part: RecurrentAttention, site: Site) -> None:
        super().__init__()
        self.part, self.address, self.width = part, site.address, site.width
        self.ring = part.compressed + (part.kept + part.segment) // part.rate
        self.conv = nn.Conv1d(site.width, site.width, part.rate, part.rate) if part.by == "convolution" else None

    def state_spec(self) -> PerRow:
        return PerRow({"window": (self.part.rate - 1, self.width), "kv": (self.ring, 2 * self.width)})

    def forward(self, windows: Tensor) -> Tensor:
        """(B, n, c, D) -> (B, n, D)"""
        if self.conv is None:
            return windows.mean(2) if self.part.by == "mean" else windows.amax(2)
        return F.linear(windows.flatten(2), self.conv.weight.transpose(1, 2).flatten(1), self.conv.bias)
