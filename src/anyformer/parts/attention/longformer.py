"""Attention to a window and to global tokens, which see all tokens and are visible to all [Beltagy et al. 2020].

Time and memory grow with the length times the window: rows are cut into chunks; a chunk sees itself, one window
on either side and the global tokens. A T x T mask is needed only by the eager and flex kernels and, if global tokens
are given at run time, by torch.compile, because their number is then unknown.

B batch, T tokens, H heads, K head width, w window on each side, c tokens per chunk, n chunks, g global tokens, D width.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.attention import Plan, Visible, attend
from anyformer.kernels.capture import can_read_values
from anyformer.parts.embedding.global_text import GlobalTokens
from anyformer.parts.op import InHeads, Op
from anyformer.runtime.context import Context
from anyformer.runtime.taps import MIXER, Listener, TapNames, convert_listener
from anyformer.specs.field_types import Chance, Count
from anyformer.specs.part import Site


class LocalAttention(Op, sees="all", called=("Longformer", "sliding-window attention")):
    """A token sees `window` tokens on each side and the global tokens, which see all, with separate projections."""

    requires: ClassVar[tuple[str, ...]] = ("global tokens",)  # half of the projections are for them

    num_heads: Count
    window: Count
    dropout: Chance = 0.0  # on the attention weights
    shown: Count = 1  # traced weights of global tokens cover a text padded to a multiple of this, as published

    @property
    def causal_alternative(self) -> str:
        return f"Attention(num_heads={self.num_heads}, mask=Causal() & Window(size={self.window + 1}))"


class Chunked(Visible):
    """A `Visible` with a given dense mask."""

    def __init__(self, mask: Tensor) -> None:
        places = torch.arange(0)
        super().__init__(lambda b, q, k: mask, places, places)
        self._dense = mask


class LocalAttentionModule(InHeads, of=LocalAttention):
    tapped: ClassVar[TapNames] = {**MIXER, "global_weights": "global_attentions"}

    def __init__(self, part: LocalAttention, site: Site) -> None:
        super().__init__(site, part.num_heads)
        self.part, width = part, site.width
        self.o, self.q, self.k, self.v = (nn.Linear(width, width) for _ in "oqkv")
        self.global_q, self.global_k, self.global_v = (nn.Linear(width, width) for _ in "qkv")

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, visible: Visible, kernel: str, weights: Listener | None = None
    ) -> Tensor:
        return attend(
            q,
            k,
            v,
            visible,
            Plan(
                self.head_width**-0.5,
                dropout=self.part.dropout if self.training else 0.0,
                on_weights=weights,
                kernel=kernel,
            ),
        )

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if ctx.state is not None:
            raise ValueError(f"{self.address}: the window includes later tokens, so it cannot decode step by step")
        projected = self.q(x), self.k(x), self.v(x)
        q, k, v = (self.heads(ctx.tap(self.address, name, t)) for name, t in zip("qkv", projected, strict=True))
        near, far = ctx.watch(self.address), ctx.watch(self.address, "global_weights")
        global_tokens = ctx.extra(GlobalTokens)
        count_unknown = global_tokens is not None and global_tokens.most is None and not can_read_values()
        out = self.attend_dense(x, q, k, v, ctx) if ctx.kernel in ("eager", "flex") or count_unknown else None
        if out is None or near is not None or far is not None:
            chosen = ctx.once("global places", lambda: global_places(ctx))
            by_chunks = self.chunks(q, k, v, chosen, ctx, near)
            if chosen is not None:
                by_chunks = self.globals(x, by_chunks, chosen, ctx, far)
            changed = any(each is not None and each.changed for each in (near, far))
            out = by_chunks if out is None or changed else out
        return self.o(ctx.tap(self.address, "mixed", out))

    def chunks(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        chosen: tuple[Tensor, Tensor] | None,
        ctx: Context,
        weights: Listener | None,
    ) -> Tensor:
        """Attend to nearby and global tokens -> (B, T, H K); zeros for pads and for queries that are global tokens. The
        listener receives weights (B, H, T, g + 2 w + 1)."""
        (B, H, T, K), w = q.shape, self.part.window
        c = max(w, 32)
        n = -(-T // c)
        q = F.pad(q, (0, 0, 0, n * c - T)).unflatten(2, (n, c)).transpose(1, 2)  # (B, n, H, c, K)
        near = [F.pad(t, (0, 0, w, n * c - T + w)).unfold(2, c + 2 * w, c).permute(0, 2, 1, 4, 3) for t in (k, v)]
        if chosen is not None:
            places = chosen[0][:, None, :, None].expand(-1, H, -1, K)
            far = [t.gather(2, places)[:, None].expand(-1, n, -1, -1, -1) for t in (k, v)]
            near = [torch.cat(pair, dim=3) for pair in zip(far, near, strict=True)]
        mask = ctx.once(f"local {w}", lambda: chunk_mask(ctx, chosen, B, T, n, c, w))
        k, v = (t.flatten(0, 1) for t in near)
        if weights is not None:
            g = k.shape[2] - c - 2 * w
            band = torch.arange(c, device=q.device)[:, None] + torch.arange(g, g + 2 * w + 1, device=q.device)
            columns = torch.cat((torch.arange(g, device=q.device).expand(c, -1), band), dim=1)  # (c, g + 2 w + 1)

            def to_published(seen: Tensor) -> Tensor:
                shown = seen.gather(-1, columns.expand(*seen.shape[:2], -1, -1))
                return shown.unflatten(0, (B, n)).transpose(1, 2).flatten(2, 3)[:, :, :T]

            def from_published(used: Tensor) -> Tensor:
                used = F.pad(used, (0, 0, 0, n * c - T)).unflatten(2, (n, c)).transpose(1, 2).flatten(0, 1)
                return used.new_zeros(B * n, H, c, k.shape[2]).scatter(-1, columns.expand_as(used), used)

            weights = convert_listener(weights, to_published, from_published)
        out = self.attend(q.flatten(0, 1), k, v, Chunked(mask), "sdpa", weights)
        return out.view(B, n, H, c, K).transpose(2, 3).reshape(B, n * c, H * K)[:, :T]

    def globals(
        self, x: Tensor, out: Tensor, chosen: tuple[Tensor, Tensor], ctx: Context, weights: Listener | None
    ) -> Tensor:
        """Return `out` (B, T, H K) with the results of the global tokens filled in."""
        places, real = chosen  # (B, g)
        index = places[..., None].expand(-1, -1, out.shape[-1])
        q = self.heads(self.global_q(x.gather(1, index)))
        k, v = self.heads(self.global_k(x)), self.heads(self.global_v(x))
        seen = real[:, :, None].expand(-1, -1, x.shape[1])
        if ctx.tokens is not None:
            seen = seen & ctx.tokens[:, None]
        if ctx.documents is not None:
            seen = seen & (ctx.documents.gather(1, places)[..., None] == ctx.documents[:, None])
        if weights is not None:
            T, num_pads = x.shape[1], -x.shape[1] % self.part.shown

            def to_published(seen: Tensor) -> Tensor:
                # as published: uniform weights if a row has fewer global tokens than others
                shown = torch.where(real[:, None, :, None], F.pad(seen, (0, num_pads)), 1 / (T + num_pads))
                return shown.transpose(2, 3)

            weights = convert_listener(weights, to_published, lambda used: used.transpose(2, 3)[..., :T])
        global_out = self.attend(q, k, v, Chunked(seen[:, None]), "sdpa", weights).transpose(1, 2).flatten(2)
        return out.scatter(1, index, torch.where(real[..., None], global_out, out.gather(1, index)))

    def attend_dense(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, ctx: Context) -> Tensor:
        """Compute the same with masks over all pairs of tokens."""
        tokens, global_tokens, documents, w = ctx.tokens, ctx.extra(GlobalTokens), ctx.documents, self.part.window
        chosen = None if global_tokens is None else global_tokens.chosen

        def all_of_text(b: Tensor, q: Tensor, k: Tensor) -> Tensor:
            seen = (q >= 0) & (k >= 0)
            if tokens is not None:
                seen = seen & tokens[b, k] & tokens[b, q]
            return seen if documents is None else seen & (documents[b, q] == documents[b, k])

        def nearby(b: Tensor, q: Tensor, k: Tensor) -> Tensor:
            near = (q - k).abs() <= w
            return all_of_text(b, q, k) & (near if chosen is None else near | chosen[b, k])

        def visible(allows: Any) -> Visible:
            return Visible(allows, ctx.index, ctx.index, batch_size=x.shape[0])

        kernel = "sdpa" if ctx.kernel == "auto" else ctx.kernel
        out = self.attend(q, k, v, ctx.once(f"nearby {w}", lambda: visible(nearby)), kernel)
        if chosen is not None:
            q, k, v = (self.heads(layer(x)) for layer in (self.global_q, self.global_k, self.global_v))
            global_out = self.attend(q, k, v, ctx.once("all of text", lambda: visible(all_of_text)), kernel)
            out = torch.where(chosen[:, None, :, None], global_out, out)
        return out.transpose(1, 2).flatten(2)


def global_places(ctx: Context) -> tuple[Tensor, Tensor] | None:
    """(B, g) row indices of each row's global tokens, in order, and which of them exist; None: there are none."""
    global_tokens = ctx.extra(GlobalTokens)
    if global_tokens is None:
        return None
    chosen = global_tokens.chosen
    g = int(chosen.sum(-1).max()) if global_tokens.most is None else global_tokens.most
    if g == 0:
        return None
    places = (~chosen).int().argsort(dim=-1, stable=True)[:, :g]
    return places, chosen.gather(1, places)


def chunk_mask(ctx: Context, chosen: tuple[Tensor, Tensor] | None, B: int, T: int, n: int, c: int, w: int) -> Tensor:
    """(B n, 1, c, g + c + 2 w) visible keys: global tokens, a window before the chunk, the chunk, a window after it."""
    device = ctx.index.device

    def cut(marks: Tensor, value: Any) -> tuple[Tensor, Tensor]:
        """(rows, T) -> queries (rows, n, c) and keys (rows, n, c + 2 w); `value` fills what is outside the text."""
        keys = F.pad(marks, (w, n * c - T + w), value=value)
        return keys[:, w : w + n * c].unflatten(1, (n, c)), keys.unfold(1, c + 2 * w, c)

    real = torch.ones(1, T, dtype=torch.bool, device=device) if ctx.tokens is None else ctx.tokens
    global_tokens = ctx.extra(GlobalTokens)
    local = real if global_tokens is None else real & ~global_tokens.chosen
    queries, keys = cut(local, False)
    offset = torch.arange(c + 2 * w, device=device) - torch.arange(c, device=device)[:, None]
    seen = queries[..., None] & keys[:, :, None] & (offset >= 0) & (offset <= 2 * w)
    documents = None if ctx.documents is None else cut(ctx.documents, -1)
    if documents is not None:
        seen = seen & (documents[0][..., None] == documents[1][:, :, None])
    if chosen is not None:
        places, exists = chosen
        far = queries[..., None] & exists[:, None, None]
        if documents is not None and ctx.documents is not None:
            far = far & (documents[0][..., None] == ctx.documents.gather(1, places)[:, None, None])
        rows = max(far.shape[0], seen.shape[0])
        seen = torch.cat((far.expand(rows, -1, -1, -1), seen.expand(rows, -1, -1, -1)), dim=-1)
    return seen.expand(B, -1, -1, -1).flatten(0, 1)[:, None]
