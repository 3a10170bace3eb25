"""Block-sparse attention [Zaheer et al. 2020]: a block of tokens attends to its neighbours, to the first and the last
block, and to a few random blocks; the first and the last block attend to all blocks.

Time and memory grow linearly with the length. Only the eager kernel (the reference) and traced weights need T x T
numbers.

B batch, T tokens, H heads, K head width, b tokens per block, n blocks, r random blocks, S keys per block, D width.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.kernels.attention import EVERYTHING, Plan, Visible, attend
from anyformer.parts.attention.attention import Attention, AttentionModule
from anyformer.parts.attention.longformer import Chunked
from anyformer.parts.embedding.block_text import BlockText, max_full_length
from anyformer.parts.mask import FULL, Full, Mask
from anyformer.parts.op import Op
from anyformer.runtime.context import Context
from anyformer.runtime.taps import Listener, convert_listener
from anyformer.specs.field_types import Count, Natural
from anyformer.specs.part import Site

OLD_LENGTHS, OLD_REACH = (1024, 3072, 4096), 1024  # texts of these lengths draw random blocks from their first tokens


class BlockSparseAttention(Op, sees="past", called=("BigBird", "sparse attention")):
    """Each block of tokens attends to a few other blocks. In training, random blocks are drawn per layer and head; in
    evaluation, the first block counts `random_blocks` times more instead (both as published). Short texts get full
    attention; with a causal mask, longer texts are refused. A position bias that layers share is not added."""

    num_heads: int
    block_size: Count
    random_blocks: Natural
    length: Count  # maximum length of a text; the older rule for random blocks depends on it
    bias: str = "qkvo"  # projections that have a bias
    mask: Mask = FULL
    dropout: float = 0.0  # on the attention weights of short texts only, as published

    def check(self) -> None:
        self.full_attention()

    def full_attention(self) -> Attention:
        return Attention(num_heads=self.num_heads, bias=self.bias, mask=self.mask, dropout=self.dropout)


class BlockSparseModule(AttentionModule, of=BlockSparseAttention):
    def __init__(self, sparse: BlockSparseAttention, site: Site) -> None:
        super().__init__(sparse.full_attention(), site)
        self.sparse, self.layer = sparse, site.layer
        self.limit = max_full_length(sparse.block_size, sparse.random_blocks)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        (B, T), b = x.shape[:2], self.sparse.block_size
        text = ctx.extra(BlockText)
        if x.shape[1] <= self.limit or (text is not None and text.all_pairs):
            return super().forward(x, ctx.replace(bias=None))
        if not isinstance(self.part.mask, Full):
            raise ValueError(
                f"{self.address}: blocks see later tokens, so a decoder reads at most {self.limit} tokens at once;"
                " use full attention for longer texts (attention_type='original_full')"
            )
        if ctx.documents is not None:
            raise ValueError(f"{self.address}: rows of more than {self.limit} tokens must contain a single document")
        n = -(-T // b)
        fused = self.qkv is not None and self.qkv.covers(self.q, self.k, self.v)
        projected = self.qkv(x) if fused and self.qkv is not None else (self.q(x), self.k(x), self.v(x))
        projected = (ctx.tap(self.address, name, t) for name, t in zip("qkv", projected, strict=True))
        q, k, v = (F.pad(t, (0, 0, 0, n * b - T)).view(B, n, b, -1, self.head_width) for t in projected)
        real = ctx.tokens
        if n * b > T:
            real = torch.ones(B, T, dtype=torch.bool, device=x.device) if real is None else real
            real = F.pad(real, (0, n * b - T))
        weights = ctx.watch(self.address)
        out = None if ctx.kernel == "eager" else self.blocks(q, k, v, real, ctx)
        if out is None or weights is not None:
            dense = self.dense(q, k, v, real, weights)
            out = dense if out is None or (weights is not None and weights.changed) else out
        out = out if real is None else out * real[..., None]  # zeros for pads
        return self.o(ctx.tap(self.address, "mixed", out[:, :T]))

    def table(self, n: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the blocks (n - 2, 1 or H, 5 + r) that each inner block attends to, and the bias (n - 2, 1, 5 + r) of
        their scores: the logarithm of how often each counts."""
        r, places = self.sparse.random_blocks, torch.arange(1, n - 1, device=device)
        near = places[:, None] + torch.arange(-1, 2, device=device)
        first, last = torch.zeros_like(near[:, :1]), torch.full_like(near[:, :1], n - 1)
        blocks = torch.cat((first, near, last), dim=1)
        repeated = F.pad((near == 0) | (near == n - 1), (1, 1))  # neighbours that are the first or last block
        log_counts = torch.zeros(n - 2, 5, device=device).masked_fill(repeated, float("-inf"))
        if not r or not self.training:
            log_counts[:, 0] = math.log(1 + r)
            return blocks[:, None], log_counts[:, None]
        drawn: Any = random_blocks(self.layer, n, self.sparse, self.part.num_heads)
        drawn = torch.tensor(drawn, device=device).transpose(0, 1)  # (n - 2, H, r)
        blocks = torch.cat((blocks[:, None].expand(-1, drawn.shape[1], -1), drawn), dim=-1)
        return blocks, F.pad(log_counts, (0, r))[:, None]

    def blocks(self, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None, ctx: Context) -> Tensor:
        """q, k, v (B, n, b, H, K) -> (B, n b, H K), block by block."""
        B, n, b, H, K = q.shape

        def make() -> tuple[Tensor, Tensor]:
            """Return indices ((n - 2) H (5 + r),) of (block, head) pairs, and the bias (B (n - 2), 1 or H, 1, S)."""
            chosen, log_counts = self.table(n, q.device)
            bias = log_counts[..., None].expand(-1, -1, -1, b)
            if real is not None:
                bias = torch.where(real.view(B, n, b)[:, chosen], bias, float("-inf"))
            bias = bias.expand(B, -1, -1, -1, -1).flatten(3).flatten(0, 1)[:, :, None].to(q.dtype)
            return (chosen * H + torch.arange(H, device=q.device)[:, None]).flatten(), bias

        random = self.training and self.sparse.random_blocks
        key = f"blocks {b} {self.sparse.random_blocks} {H} {q.dtype}"
        chosen, bias = make() if random else ctx.once(key, make)
        S = chosen.shape[0] // ((n - 2) * H) * b

        def select_blocks(t: Tensor) -> Tensor:
            """(B (n - 2), H, S, K)"""
            t = t.transpose(2, 3).reshape(B, n * H, b, K)
            return t.index_select(1, chosen).view(B * (n - 2), H, S, K)

        inner = q[:, 1:-1].reshape(B * (n - 2), b, H, K).transpose(1, 2)
        inner = attend(inner, select_blocks(k), select_blocks(v), EVERYTHING, Plan(self.scale, bias=bias))
        inner = inner.transpose(1, 2).reshape(B, n - 2, b, H * K)
        ends = torch.cat((q[:, 0], q[:, -1]), dim=1).transpose(1, 2)  # (B, H, 2 b, K)
        k, v = (t.flatten(1, 2).transpose(1, 2) for t in (k, v))
        outer = attend(ends, k, v, visible(real), Plan(self.scale))
        outer = outer.transpose(1, 2).reshape(B, 2, b, H * K)
        return torch.cat((outer[:, :1], inner, outer[:, 1:]), dim=1).flatten(1, 2)

    def dense(self, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None, weights: Listener | None) -> Tensor:
        """Compute the same over all pairs of tokens. If a block counts several times, the listener receives the weights
        (B, H, n b, n b) of one of them, as published."""
        _, n, b, H, _ = q.shape
        chosen, log_counts = self.table(n, q.device)
        counts = torch.ones(H, n, n, device=q.device)
        inner = torch.zeros(n - 2, H, n, device=q.device)
        inner = inner.scatter_add(2, chosen.expand(-1, H, -1), log_counts.exp().expand(-1, H, -1).contiguous())
        counts[:, 1:-1] = inner.transpose(0, 1)
        counts = counts.repeat_interleave(b, 1).repeat_interleave(b, 2)[None]
        q, k, v = (t.flatten(1, 2).transpose(1, 2) for t in (q, k, v))
        bias = counts.log().to(q.dtype)
        if weights is not None:
            often = counts.clamp(min=1).to(v.dtype)
            weights = convert_listener(weights, lambda seen: seen / often, lambda used: used * often)
        out = attend(q, k, v, visible(real), Plan(self.scale, bias=bias, on_weights=weights, kernel="eager"))
        return out.transpose(1, 2).flatten(2)


def visible(real: Tensor | None) -> Visible:
    return EVERYTHING if real is None else Chunked(real[:, None, None])


# -- random blocks -----------------------------------------------------------------------------------------------------


def random_blocks(seed: int, n: int, sparse: BlockSparseAttention, num_heads: int) -> list[Any]:
    """(H, n - 2, r) random blocks, drawn as published: by numpy's generator, seeded with the layer's index."""
    drawn = _random_plan(seed, n, sparse.random_blocks, num_heads, sparse.block_size, sparse.length)
    if drawn is None:
        raise ValueError(
            f"{n} blocks of {sparse.block_size} tokens are too few for {sparse.random_blocks} random blocks"
        )
    return drawn


# what torch.compiler.assume_constant_result does, without importing the compiler, which takes seconds
random_blocks._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=256)
def _random_plan(seed: int, n: int, r: int, num_heads: int, b: int, length: int) -> list[Any] | None:
    draw = np.random.RandomState(seed)
    plan: list[list[list[int]]] = [[] for _ in range(num_heads)]
    if n * b in OLD_LENGTHS:  # as published: the first rows of the plan for `length`
        for rows in plan:
            rows += [draw.permutation(candidates)[:r].tolist() for candidates in _old_candidates(length // b, b)]
            del rows[n - 2 :]
    else:  # drawn from the first 2 r + 5 blocks
        reach = 2 * r + 5
        for i in range(1, n - 1):
            used = {0, i - 1, i, i + 1, reach - 1, *([reach - 2] if i == 1 else []), *([1] if i == reach - 2 else [])}
            for rows in plan:
                rows.append([int(j) for j in draw.permutation(np.arange(reach)) if j not in used][:r])
    return plan if all(len(row) == r for rows in plan for row in rows) else None


def _old_candidates(n: int, b: int) -> list[Any]:
    """Return the blocks that each block from 1 to n - 2 draws from; as published, they may include neighbours."""
    inner, last = np.arange(1, n - 1), OLD_REACH // b - 1 if 2 * b < OLD_REACH else n - 1

    def candidates(i: int) -> Any:
        if i <= 2:
            return inner[i + 1 : last]
        if i >= n - 3 or i - 2 > last:
            return inner[:last]
        return inner[: i - 2] if i + 1 == last else np.concatenate((inner[: i - 2], inner[i + 1 : last]))

    return [candidates(i) for i in range(1, n - 1)]
