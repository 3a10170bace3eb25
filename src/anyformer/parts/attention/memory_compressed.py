"""Attention for decoders of long texts: within blocks, and to keys and values that a strided convolution compresses
[Liu et al. 2018].

B batch, T tokens, H heads, K head width, D width, n blocks, C compressed keys, k kernel size, s stride.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.attention import Visible, attend
from anyformer.kernels.batch_rows import longer, stack_rows
from anyformer.kernels.convolution import convolve
from anyformer.parts.attention.attention import Attention, AttentionModule
from anyformer.parts.mask import CAUSAL, Causal, Mask, SameBlock, Window
from anyformer.parts.op import InHeads, Op
from anyformer.parts.recurrent.mamba import PackedRows
from anyformer.runtime.context import Context, select_tokens
from anyformer.runtime.stores import PerRow, Store
from anyformer.runtime.taps import MIXER, TapNames
from anyformer.runtime.visibility import see, text_positions
from anyformer.specs.field_types import QKVO, Chance, Count
from anyformer.specs.part import Site

# -- within blocks -----------------------------------------------------------------------------------------------------


class BlockAttention(Attention, sees="past"):
    """Causal attention within consecutive blocks of `size` tokens of a text. A text that is read at once is cut into
    blocks, which become rows of one batch: time and memory grow linearly with the length."""

    size: Count = 256  # tokens per block
    mask: Mask = CAUSAL

    def check(self) -> None:
        super().check()
        if not isinstance(self.mask, Causal) or self.memory:
            raise ValueError("BlockAttention needs mask=Causal() and memory=False")


class BlockAttentionModule(AttentionModule, of=BlockAttention):
    def __init__(self, part: BlockAttention, site: Site) -> None:
        super().__init__(part, site)
        self.size, mask = part.size, part.mask & Window(size=part.size) & SameBlock(size=part.size)
        # with the window, the cache drops tokens that no block can see any more
        plain = {name: value for name, value in part.items() if name != "size"}
        self.part, self.mask_key = Attention(**{**plain, "mask": mask}), repr(mask)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        B, T, size, state = x.shape[0], x.shape[1], self.size, ctx.state
        starts_text = state is None or (state.capacity is None and state.length == 0)
        plain_scores = all(each is None for each in (self.position, self.q_norm, self.mix_heads))
        plain = plain_scores and not self.query_changes and ctx.bias is None and ctx.documents is None
        traced = ctx.wants(self.address, "weights")  # traced weights cover whole texts
        if size >= T or not starts_text or not plain or traced or ctx.kernel == "eager":
            return super().forward(x, ctx)
        q, k, v = (ctx.tap(self.address, name, layer(x)) for name, layer in zip("qkv", (self.q, self.k, self.v)))
        if state is not None:
            kept = (t.unflatten(-1, (self.num_kv_heads, -1)).transpose(1, 2) for t in (k, v))
            ctx.append_to_cache(self.address, dict(zip("kv", kept, strict=True)))
        rows = PackedRows.from_context(ctx)  # real tokens first, so that none of them sees a pad
        n = -(-T // size)
        q, k, v = (
            F.pad(rows.pack(t), (0, 0, 0, n * size - T)).view(B * n, size, count, -1).transpose(1, 2)
            for t, count in ((q, self.part.num_heads), (k, self.num_kv_heads), (v, self.num_kv_heads))
        )
        index = torch.arange(size, device=x.device)
        visible = ctx.once(f"visible block {size}", lambda: see(CAUSAL, index, index))
        out = attend(q, k, v, visible, self.plan(ctx))
        out = out.transpose(1, 2).reshape(B, n * size, -1)[:, :T]
        return self.o(ctx.tap(self.address, "mixed", rows.unpack(out)))


# -- compressed keys and values ----------------------------------------------------------------------------------------


class CompressedAttention(Op, sees="past", called=("memory-compressed attention", "T-DMCA")):
    """Attention to keys and values that are compressed by a convolution of size `kernel` and stride `stride`.

    Compressed key j is computed from the tokens j s to j s + k - 1 of a text, counted from its first token. A token
    sees it only if none of these tokens is later than itself. The paper does not specify this; this way no token
    sees the future, and kernel = stride = 1 is plain attention. The first k - 1 tokens see nothing and get 0."""

    num_heads: Count
    kernel: Count = 3
    stride: Count = 3
    bias: QKVO = "qkvo"  # projections that have a bias; the convolutions always have one
    dropout: Chance = 0.0  # on the attention weights


class CompressedAttentionModule(InHeads, of=CompressedAttention):
    tapped: ClassVar[TapNames] = {**MIXER, "short_k": None, "short_v": None}

    def __init__(self, part: CompressedAttention, site: Site) -> None:
        super().__init__(site, part.num_heads)
        self.part, D = part, site.width
        self.q, self.k, self.v, self.o = (nn.Linear(D, D, bias=name in part.bias) for name in "qkvo")
        self.short_k, self.short_v = (nn.Conv1d(D, D, part.kernel, part.stride) for _ in "kv")

    def state_spec(self) -> Compressed:
        D, kernel = self.q.in_features, self.part.kernel
        return Compressed({"window": (kernel - 1, 2 * D), "k": (D,), "v": (D,)}, kernel=kernel, stride=self.part.stride)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        q, k, v = (ctx.tap(self.address, name, layer(x)) for name, layer in zip("qkv", (self.q, self.k, self.v)))
        kept = None if ctx.state is None else self.update_cache(k, v, ctx)
        places = ctx.once("text positions", lambda: text_positions(ctx.is_token, ctx.documents))
        if ctx.documents is not None:
            k, v, visible = self.within_documents(k, v, places, ctx)
        else:
            k, v = self.shorten(k, v, ctx) if kept is None else kept
            visible = self.visible(k.shape[1], places, ctx)
        k, v = ctx.tap(self.address, "short_k", k), ctx.tap(self.address, "short_v", v)
        out = attend(self.heads(q), self.heads(k), self.heads(v), visible, self.attention_plan(ctx, self.part.dropout))
        return self.o(ctx.tap(self.address, "mixed", out.transpose(1, 2).flatten(2)))

    def shorten(self, k: Tensor, v: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """(B, T, D) -> (B, C, D) for texts that begin here; pads are skipped."""
        rows = PackedRows.from_context(ctx)
        if k.shape[1] < self.part.kernel:
            return k[:, :1], v[:, :1]  # no token sees it
        return (
            convolve(rows.pack(k), self.short_k.weight, self.short_k.bias, self.part.stride),
            convolve(rows.pack(v), self.short_v.weight, self.short_v.bias, self.part.stride),
        )

    def visible(self, count: int, places: Tensor | None, ctx: Context) -> Visible:
        part, index = self.part, ctx.index

        def allows(b: Tensor, q: Tensor, j: Tensor) -> Tensor:
            return j * part.stride + part.kernel - 1 <= (q if places is None else places[b, q])

        def make() -> Visible:
            size = next((t.shape[0] for t in (places, index) if t is not None and t.dim() == 2), 1)
            return Visible(allows, index, torch.arange(count, device=index.device), batch_size=size)

        return ctx.once(f"visible compressed {part.kernel} {part.stride} {count}", make)

    def within_documents(self, k: Tensor, v: Tensor, places: Tensor, ctx: Context) -> tuple[Tensor, Tensor, Visible]:
        """Return a key and value per token, as if a window ended there, and which of these windows are visible."""
        part, documents, index = self.part, ctx.documents, ctx.index
        assert documents is not None
        short = [
            convolve(F.pad(t, (0, 0, part.kernel - 1, 0)), conv.weight, conv.bias, 1)
            for t, conv in ((k, self.short_k), (v, self.short_v))
        ]
        real = ctx.is_token

        def allows(b: Tensor, q: Tensor, j: Tensor) -> Tensor:
            at = places[b, j] - (part.kernel - 1)
            seen = (j <= q) & (documents[b, q] == documents[b, j]) & (at >= 0) & (at % part.stride == 0)
            return seen if real is None else seen & real[b, j]

        key = f"visible compressed {part.kernel} {part.stride} of documents"
        return *short, ctx.once(key, lambda: Visible(allows, index, index, batch_size=places.shape[0]))

    def update_cache(self, k: Tensor, v: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """Add these tokens and return all compressed keys and values (B, C, D). Keys that become complete are computed
        from the last k - 1 cached tokens and these tokens. Each row has its own phase, because pads do not count."""
        state, part = ctx.state, self.part
        assert state is not None
        store = state.stores[self.address]
        assert isinstance(store, CompressedStore)
        rows = PackedRows.from_context(ctx)
        (B, T, D), kernel, stride = k.shape, part.kernel, part.stride
        new = rows.pack(torch.cat((k, v), dim=-1))
        past = torch.cat((store.tensors["window"].expand(B, -1, -1).to(new.dtype), new), dim=1)
        store.replace("window", rows.last_tokens(past, kernel - 1))
        number, windows = complete(past, tokens_before(ctx), T, kernel, stride)
        short = [
            F.linear(windows[..., i * D : (i + 1) * D].flatten(2), conv.weight.transpose(1, 2).flatten(1), conv.bias)
            for i, conv in enumerate((self.short_k, self.short_v))
        ]
        length = state.capacity if state.capacity is not None else state.length + T
        return store.write(number.expand(B, -1), short[0], short[1], num_keys(length, kernel, stride))


def tokens_before(ctx: Context) -> Tensor:
    """(1 or B, 1) the number of real tokens before this call."""
    if ctx.is_token is None:
        return ctx.index[..., :1].view(-1, 1)
    real = ctx.is_token.long()
    return select_tokens(real.cumsum(-1) - real, ctx.index[..., :1])


def complete(past: Tensor, begun: Tensor, count: int, kernel: int, stride: int) -> tuple[Tensor, Tensor]:
    """Return the numbers in the text (1 or B, n) and the tokens (B, n, k, D) of windows that may be complete now.
    `past` (B, k - 1 + T, D) has the last k - 1 of the `begun` (1 or B, 1) earlier tokens, and `count` new tokens."""
    first = ((begun - kernel + stride) // stride).clamp(min=0)
    number = first + torch.arange(-(-count // stride), device=past.device)
    at = (number * stride - begun + kernel - 1)[..., None] + torch.arange(kernel, device=past.device)  # (1 or B, n, k)
    at = at.clamp(max=past.shape[1] - 1).flatten(1).expand(past.shape[0], -1)
    return number, past.gather(1, at[..., None].expand(-1, -1, past.shape[2])).unflatten(1, (-1, kernel))


def num_keys(length: int, kernel: int, stride: int) -> int:
    """Return the number of compressed keys of a row, plus one invisible key for incomplete windows."""
    return max((length - kernel) // stride + 1, 0) + 1


@dataclasses.dataclass(frozen=True)
class Compressed(PerRow):
    """The compressed keys and values of a text, and its last tokens, which the next key will be computed from."""

    kernel: int
    stride: int

    def sizes(self, rows: int, tokens: int, memory: int = 0) -> dict[str, tuple[int, ...]]:
        sizes, keys = super().sizes(rows, tokens), num_keys(tokens, self.kernel, self.stride)
        return sizes | {name: (rows, keys, *self.shapes[name]) for name in "kv"}

    def store(self, rows: int, capacity: int | None, dtype: torch.dtype, device: torch.device) -> Store:
        return CompressedStore(self, self.zeros(rows, capacity or 0, dtype, device), static=capacity is not None)


class CompressedStore(Store):
    """Compressed keys and values (B, C, D), indexed by their number in the text and not by row index, and the last
    tokens (B, k - 1, 2 D). Keys are written when they are complete; no token sees them before that."""

    def write(self, number: Tensor, k: Tensor, v: Tensor, size: int) -> tuple[Tensor, Tensor]:
        for name, value in (("k", k), ("v", v)):
            stored = self.tensors[name]
            if not self.static:
                stored = longer(stored.expand(value.shape[0], -1, -1), 1, size)
            at = number.clamp(max=stored.shape[1] - 1)[..., None].expand_as(value)
            value = value.to(stored.dtype)
            self.tensors[name] = stored.scatter_(1, at, value) if self.static else stored.scatter(1, at, value)
        return self.tensors["k"], self.tensors["v"]

    def adopt(self, other: Store, lengths: Tensor) -> None:
        for name, tensor in self.tensors.items():
            count = min(tensor.shape[1], other.tensors[name].shape[1])
            tensor.zero_()[:, :count] = other.tensors[name][:, :count]

    def join(self, others: Sequence[Store]) -> None:
        for name in self.tensors:
            self.tensors[name] = stack_rows([store.tensors[name] for store in (self, *others)], 1)
