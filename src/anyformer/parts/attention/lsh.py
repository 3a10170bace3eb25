"""Attention among tokens of one bucket: a random hash puts vectors of similar directions into one bucket [Kitaev et al.
2020]. A text is sorted by bucket and cut into chunks, so that time and memory grow linearly with the length.

B batch, T tokens, S visible tokens, H heads, K head width, R rounds, c tokens per chunk, n chunks per round, w = c
times the chunks that a chunk attends to, D width.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.attention import EVERYTHING, Plan, attend
from anyformer.parts.computed import Computed
from anyformer.parts.init import Normal
from anyformer.parts.mask import CAUSAL, FULL
from anyformer.parts.op import InHeads, Op
from anyformer.runtime.context import Context
from anyformer.runtime.stores import PerToken
from anyformer.runtime.taps import MIXER, TapNames
from anyformer.runtime.visibility import begins
from anyformer.specs.field_types import Chance, Count, Even, Natural
from anyformer.specs.part import Sees, Site

MASKS = {True: (CAUSAL, repr(CAUSAL)), False: (FULL, repr(FULL))}
SELF_BIAS = -1e4  # added to the score of a token with itself, which then counts only if it sees no other token


# -- attention within buckets ------------------------------------------------------------------------------------------


class BucketsModule(InHeads):
    """Attention within buckets. Subclasses compute the bucket of each token."""

    hint: ClassVar[str] = "; set head_width"
    part: Any
    chunk: int  # c
    before: int  # number of visible chunks before a token's own
    after: int  # number of visible chunks after a token's own
    rounds: int
    buckets: int
    own_bucket: bool
    ring: bool = False  # the last chunk precedes the first
    multiple: int | None = None  # the ring is the row, padded to a multiple of this; None: only its real tokens
    itself: float = 0.0  # added to the score of a token with itself

    @property
    def dropout(self) -> float:
        return self.part.dropout if self.training else 0.0

    def state_spec(self) -> PerToken | None:
        if self.ring or self.part.reaches() != "past":
            return None
        shape = (self.part.num_heads, self.head_width)
        shapes: dict[str, tuple[int, ...]] = {"k": shape, "v": shape}
        if self.own_bucket:
            shapes["bucket"] = (self.part.num_heads, self.rounds)
        return PerToken(shapes, dtypes={"bucket": torch.int64} if self.own_bucket else {})

    def attend_in_buckets(self, q: Tensor, k: Tensor, v: Tensor, bucket: Tensor, scale: float, ctx: Context) -> Tensor:
        """Queries, keys and values (B, H, T, K), and their buckets (B, H, T, R) in each round -> (B, H, T, K)."""
        state, seen, places = ctx.state, {"k": k, "v": v, **({"bucket": bucket} if self.own_bucket else {})}, ctx.index
        if state is not None:
            if self.state_spec() is None:
                raise ValueError(f"{self.address}: the whole text is sorted, so it cannot decode step by step")
            seen, places = ctx.append_to_cache(self.address, seen)
        begun = state is not None and (state.capacity is not None or state.length > 0)
        listen, out = ctx.watch(self.address), None
        if not begun and ctx.kernel != "eager":
            out = self.by_chunks(q, k, v, bucket, scale, ctx)
        if out is None or listen is not None:
            pairs = self.pairs(bucket, seen.get("bucket", bucket), places if begun else ctx.index, ctx)
            dense = attend(
                q,
                seen["k"],
                seen["v"],
                EVERYTHING,
                Plan(scale, bias=pairs.to(q.dtype), dropout=self.dropout, on_weights=listen, kernel=ctx.kernel),
            )
            out = dense if out is None or (listen is not None and listen.changed) else out
        return out

    # -- sorted, in chunks --------------------------------------------------------------------------------------------

    def by_chunks(self, q: Tensor, k: Tensor, v: Tensor, bucket: Tensor, scale: float, ctx: Context) -> Tensor:
        """Attend within chunks of the sorted tokens -> (B, H, T, K)."""
        near, (B, H, _, K), R = self.near(bucket, ctx), q.shape, self.rounds

        def gather(x: Tensor, places: Tensor) -> Tensor:  # (B, H, R n, c or w, K)
            return x.gather(2, places.flatten(2)[..., None].expand(-1, -1, -1, K)).view(*places.shape, K)

        f32 = torch.promote_types(q.dtype, torch.float32)
        scores = torch.matmul(gather(q, near.mine).to(f32), gather(k, near.theirs).to(f32).transpose(-1, -2)) * scale
        if self.itself:
            scores = scores + self.itself * (near.mine[..., None] == near.theirs[..., None, :])
        # only pads see nothing; they attend to themselves
        only_itself = (near.mine[..., None] == near.theirs[..., None, :]) & ~near.seen.any(-1, keepdim=True)
        scores = scores.masked_fill(~(near.seen | only_itself), torch.finfo(scores.dtype).min)
        total = scores.logsumexp(-1, keepdim=True)
        weights = F.dropout(scores.softmax(-1).to(v.dtype), self.dropout)
        mixed = torch.matmul(weights, gather(v, near.theirs))

        def unsort(x: Tensor) -> Tensor:  # (B, H, R n, c, .) -> (B, H, R, T, .)
            x = x.reshape(B, H, R, -1, x.shape[-1])
            return x.gather(3, near.back[..., None].expand(*near.back.shape, x.shape[-1]))

        share = unsort(total).softmax(2)  # the weight of each round, by the sum of its exponentials
        return (unsort(mixed) * share.to(v.dtype)).sum(2)

    @torch.no_grad()
    def near(self, bucket: Tensor, ctx: Context) -> Near:
        """Sort the tokens, cut them into chunks and return which tokens each chunk may attend to."""
        bucket = bucket.transpose(2, 3)  # (B, H, R, T)
        (B, H, R, T), c, device = bucket.shape, self.chunk, bucket.device
        n = -(-T // c) if self.multiple is None else -(-T // self.multiple) * (self.multiple // c)
        if ctx.documents is not None:
            bucket = bucket + (begins(ctx.documents).cumsum(-1) * self.buckets)[:, None, None]
        if ctx.tokens is not None:  # pads last
            bucket = bucket.masked_fill(~ctx.tokens[:, None, None], torch.iinfo(torch.long).max)
        bucket, order = bucket.sort(dim=-1, stable=True)
        mine = F.pad(order, (0, n * c - T)).reshape(B, H, R * n, c)
        slot = torch.arange(n * c, device=device).view(n, c).expand(R, n, c).reshape(1, 1, R * n, c)  # sorted index
        steps = torch.arange(-self.before, self.after + 1, device=device)
        own_chunk, round_index = torch.arange(n, device=device)[:, None], torch.arange(R, device=device)[:, None, None]
        real = torch.full((1,), T, device=device) if ctx.tokens is None else ctx.tokens.sum(-1)
        real, inside = real.view(-1, 1, 1, 1), None
        if self.ring:  # the first chunk of a round follows the last used chunk of the previous round
            used = (-(-real // c)).clamp(min=1) if self.multiple is None else torch.full_like(real, n)
            steps = steps.where(steps.abs() < R * used, 0)  # a full turn or more counts as no step (as published)
            number = (round_index * used + own_chunk + steps) % (R * used)
            chunk = number // used * n + number % used
        else:
            chunk = own_chunk + steps
            inside = ((chunk >= 0) & (chunk < n)).expand(R, -1, -1)
            chunk = (round_index * n + chunk.clamp(0, n - 1))[None]
        chunk = chunk.reshape(-1, 1, chunk[0].numel(), 1)  # (1 or B, 1, R n (1 + before + after), 1)

        def neighbours(x: Tensor) -> Tensor:  # (., ., R n, c) -> (., ., R n, w)
            index = chunk.expand(max(x.shape[0], chunk.shape[0]), x.shape[1], -1, c)
            return x.expand(index.shape[0], -1, -1, -1).gather(2, index).view(*index.shape[:2], R * n, -1)

        theirs, their_slot = neighbours(mine), neighbours(slot)[..., None, :]
        seen = (slot < T)[..., None]
        if inside is not None:
            seen = seen & inside.reshape(1, 1, R * n, -1, 1).expand(-1, -1, -1, -1, c).flatten(3)[..., None, :]
        if self.own_bucket:
            bucket_ids = F.pad(bucket, (0, n * c - T), value=-1).reshape(B, H, R * n, c)
            distance = slot[..., None] - their_slot
            seen = seen & (bucket_ids[..., None] == neighbours(bucket_ids)[..., None, :])
            seen = seen & (distance <= self.before * c) & (distance >= -self.after * c)
        else:
            seen = seen & (their_slot < real[..., None])
        if self.part.causal:
            seen = seen & (theirs[..., None, :] <= mine[..., None])
        return Near(mine, theirs, seen.expand(B, H, -1, -1, -1), order.argsort(-1))

    # -- all pairs ----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def pairs(self, bucket: Tensor, theirs: Tensor, places: Tensor, ctx: Context) -> Tensor:
        """(B, H, T, S) the bias of the scores of all pairs: the logarithm of the number of rounds in which the query
        sees the key. Used by the eager kernel (the reference) and if a text is continued."""
        index = ctx.index
        if self.own_bucket:
            mask, key = MASKS[self.part.causal]
            visible = ctx.visible(mask, key, places).dense()[:, :, None]
            same = (bucket.transpose(2, 3)[..., None] == theirs.transpose(2, 3)[..., None, :]) & visible
            rank = same.cumsum(-1)  # the key's rank among the tokens of its bucket, in the order of the text
            mine = (same & (places[..., None, :] <= index[..., None])[..., None, None, :, :]).sum(-1, keepdim=True)
            distance = mine - rank
            count = (same & (distance <= self.before * self.chunk) & (distance >= -self.after * self.chunk)).sum(2)
        elif places is not index:
            count = self.visit_counts(places, ctx)
        else:
            near, (B, H, T, _) = self.near(bucket, ctx), bucket.shape
            count = near.mine.new_zeros(B, H, T * T)
            pair = near.mine[..., None] * T + near.theirs[..., None, :]
            count = count.scatter_add(2, pair.flatten(2), near.seen.long().flatten(2)).view(B, H, T, T)
        itself = (index[..., None] == places[..., None, :]).view(-1, 1, index.shape[-1], places.shape[-1])
        if self.itself:
            return torch.where(itself, self.itself, count.float().log())
        return torch.where(itself & (count.sum(-1, keepdim=True) == 0), 0.0, count.float().log())

    def visit_counts(self, places: Tensor, ctx: Context) -> Tensor:
        """(B, 1, T, S) how often each token sees the keys at row indices `places`, if a text is continued."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Near:
    """Row indices of the tokens of each chunk and of the keys that they may attend to."""

    mine: Tensor  # (B, H, R n, c)
    theirs: Tensor  # (B, H, R n, w)
    seen: Tensor  # (B, H, R n, c, w) which keys are visible
    back: Tensor  # (B, H, R, T) sorted index of each token in its round


# -- buckets by a hash -------------------------------------------------------------------------------------------------


class InChunks(Op, abstract=True):
    """A mixer that cuts a row into chunks; each chunk attends to itself and to chunks near it."""

    num_heads: Count
    head_width: Count | None = None  # default: width / num_heads
    chunk: Count = 64  # c, tokens per chunk
    before: Natural = 1  # number of visible chunks before a token's own
    after: Natural = 0  # number of visible chunks after a token's own
    causal: bool = False  # see only earlier tokens
    loose: bool = False  # allow later tokens to decide which earlier ones are seen, even in a decoder (as published)
    multiple: Count | None = None  # pad rows to a multiple of this before they are cut into chunks (as published)
    bias: bool = False  # bias of the projections
    dropout: Chance = 0.0  # on the attention weights

    def check(self) -> None:
        kind = type(self).__name__
        if self.multiple is not None and self.multiple % self.chunk:
            raise ValueError(f"{kind}.multiple is {self.multiple}; it must be a multiple of chunk, {self.chunk}")
        if self.loose and not self.causal:
            raise ValueError(f"{kind}.loose has no effect without a causal mask; set causal=True too")


class LSHAttention(InChunks, sees="past", called=("Reformer", "hashing attention", "locality-sensitive hashing")):
    """One projection gives queries and keys. Each is hashed to the bucket of the random rotation that it is nearest to.
    In each of `rounds`, a token attends to its chunk of the row sorted by bucket, to `before` chunks before it and to
    `after` chunks after it, and to itself only if it sees no other token.

    Where a chunk begins depends on the whole text, including later tokens, even with `causal`. With `own_bucket` a
    token attends to c * `before` tokens before it in its own bucket and c * `after` after it, wherever chunks begin.
    With `causal` this depends only on the past, so decoding step by step gives the same result."""

    rounds: Count = 4  # rounds of hashing, each with its own rotations
    buckets: tuple[Even, ...] | None = (64,)  # several numbers are multiplied; None: two per chunk of the row
    longest: Count | None = None  # maximum length of a row, needed if buckets is None
    own_bucket: bool = False  # see only tokens of the same bucket
    # drawn with the weights and saved, drawn with this seed (the same in every layer), or drawn in every training pass
    rotations: int | Literal["saved", "fresh"] = "saved"

    def check(self) -> None:
        super().check()
        if self.buckets is None:
            if self.longest is None or self.rotations == "saved" or self.own_bucket:
                raise ValueError(
                    "LSHAttention.buckets is None: set longest, rotations='fresh' or a seed, own_bucket=False"
                )
        elif not self.buckets:
            raise ValueError("LSHAttention.buckets is empty; give one or more even numbers")
        elif math.prod(self.buckets) >= 2**31:
            raise ValueError(f"LSHAttention.buckets is {self.buckets}; their product must be below 2^31")
        if self.own_bucket and (self.loose or self.multiple):
            raise ValueError("LSHAttention.own_bucket cannot be used with loose or multiple")
        if self.causal and self.own_bucket and self.after:
            raise ValueError("LSHAttention.after must be 0 with causal=True and own_bucket=True")

    def reaches(self) -> Sees | None:
        return "past" if self.causal and (self.own_bucket or self.loose) else "all"

    @property
    def causal_alternative(self) -> str:
        more = {} if self.buckets else {"buckets": (64,)}
        return repr(self.replace(causal=True, own_bucket=True, after=0, multiple=None, **more))

    def factors(self, length: int) -> tuple[int, ...]:
        """Return the buckets for a row of this length; by default a power of 2, as two factors if it is large."""
        if self.buckets is not None:
            return self.buckets
        multiple = self.multiple or self.chunk
        power = max((2 * (-(-length // multiple) * multiple // self.chunk)).bit_length() - 1, 1)
        most = 2 * max(math.isqrt((self.longest or 0) // self.chunk), self.chunk)
        return (2**power,) if 2**power <= most else (2 ** (power // 2), 2 ** (power - power // 2))


class LSHAttentionModule(BucketsModule, of=LSHAttention):
    tapped: ClassVar[TapNames] = {"qk": None, **{name: MIXER[name] for name in ("v", "weights", "mixed")}}
    starts: ClassVar[dict[str, Any]] = {"rotations": Normal(std=1.0)}
    exact: ClassVar[tuple[str, ...]] = ("rotations",)  # fp32, whatever the model's dtype
    rotations: Tensor

    def __init__(self, part: LSHAttention, site: Site) -> None:
        super().__init__(site, part.num_heads, part.head_width)
        H, K, D = part.num_heads, self.head_width, site.width
        self.part, self.buckets, self.itself = part, math.prod(part.buckets or ()), SELF_BIAS
        self.chunk, self.before, self.after, self.rounds = part.chunk, part.before, part.after, part.rounds
        self.own_bucket, self.ring, self.multiple = part.own_bucket, not part.own_bucket, part.multiple
        self.qk, self.v = (nn.Linear(D, H * K, bias=part.bias) for _ in range(2))
        self.o = nn.Linear(H * K, D, bias=part.bias)
        if part.rotations == "saved":
            self.register_buffer("rotations", torch.empty(self.shape(part.buckets or ())))
        else:
            lengths = (1,) if part.buckets else (2**n for n in range((2 * (part.longest or 1)).bit_length()))
            self.numbers = {kind: i for i, kind in enumerate(dict.fromkeys(map(part.factors, lengths)))}
            self.by_seed = nn.ModuleList(Computed(self.random_rotations(kind)) for kind in self.numbers)

    def shape(self, buckets: tuple[int, ...]) -> tuple[int, ...]:
        return (self.part.num_heads, self.head_width, self.rounds, sum(buckets) // 2)

    def random_rotations(self, buckets: tuple[int, ...]) -> Callable[[], Tensor]:
        """Return a function that draws the rotations as published: with torch's CPU generator, on every device."""
        seed = 0 if self.part.rotations == "fresh" else self.part.rotations

        def draw() -> Tensor:
            generator = torch.Generator("cpu").manual_seed(seed)
            return torch.randn(self.shape(buckets), generator=generator, device="cpu").to(torch.empty(0).device)

        return draw

    def pass_rotations(self, buckets: tuple[int, ...], x: Tensor) -> Tensor:
        """(H, K, R, sum of buckets / 2) the rotations of this pass."""
        if self.part.rotations == "saved":
            return self.rotations
        if self.part.rotations == "fresh" and self.training:
            return torch.randn(self.shape(buckets), device=x.device)
        return self.by_seed[self.numbers[buckets]]()

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if ctx.documents is not None and not self.own_bucket:
            raise ValueError(
                f"{self.address}: documents cannot be packed, because the whole row is sorted; set own_bucket=True"
            )
        q = self.heads(ctx.tap(self.address, "qk", self.qk(x)))
        v = self.heads(ctx.tap(self.address, "v", self.v(x)))
        # keys of length 1, so that the length of a key does not matter
        q32 = q.to(torch.promote_types(q.dtype, torch.float32))
        k = (q32 * torch.rsqrt(q32.square().sum(-1, keepdim=True) + 1e-6 * self.head_width)).to(q.dtype)
        out = self.attend_in_buckets(q, k, v, self.bucket_ids(q), 1.0, ctx)
        return self.o(ctx.tap(self.address, "mixed", out.transpose(1, 2).flatten(2)))

    @torch.no_grad()
    def bucket_ids(self, q: Tensor) -> Tensor:
        """(B, H, T, K) -> (B, H, T, R) the bucket of each token in each round."""
        dtype, buckets = torch.promote_types(q.dtype, torch.float32), self.part.factors(q.shape[2])
        rotated = torch.einsum("bhtk,hkrn->bhtrn", q.to(dtype), self.pass_rotations(buckets, q).to(dtype))
        ids, step = torch.zeros((), dtype=torch.long, device=q.device), 1
        for count, part in zip(buckets, rotated.split([n // 2 for n in buckets], -1), strict=True):
            ids = ids + step * torch.cat((part, -part), -1).argmax(-1)
            step *= count
        return ids
