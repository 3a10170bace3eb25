"""Attention among tokens of one bucket: those whose vectors point in like directions, by a random hash [Kitaev et al.
2020]. A text is sorted by bucket and cut into chunks, so that time and memory grow with the length, not its square.

B batch, T tokens, S tokens seen, H heads, K head width, R rounds, c tokens of a chunk, n chunks of a round, w = c times
the chunks that one looks at, D width.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.attention import EVERYTHING, attend
from anyformer.parts.computed import Computed
from anyformer.parts.init import Normal
from anyformer.parts.op import InHeads, Op
from anyformer.runtime.context import Context
from anyformer.runtime.mask import CAUSAL, FULL, begins
from anyformer.runtime.state import PerToken
from anyformer.runtime.taps import MIXER, TapNames
from anyformer.specs.checks import at_least, chance
from anyformer.specs.part import Sees, Site

MASKS = {True: (CAUSAL, repr(CAUSAL)), False: (FULL, repr(FULL))}
ITSELF = -1e4  # added to the score of a token with itself: seen where there is nothing else


# -- among those of one bucket -----------------------------------------------------------------------------------------


class BucketsModule(InHeads):
    """A mixer whose tokens see others of their buckets: what comes after the buckets are known."""

    hint: ClassVar[str] = "; set head_width"
    part: Any
    chunk: int  # c
    before: int  # chunks
    after: int
    rounds: int
    buckets: int
    own_bucket: bool
    ring: bool = False  # before the first chunk stands the last
    multiple: int | None = None  # a ring is that of the row, made so long; else that of the text in it
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

    def look(self, q: Tensor, k: Tensor, v: Tensor, bucket: Tensor, scale: float, ctx: Context) -> Tensor:
        """(B, H, T, K) of queries, keys and values (B, H, T, K) in buckets (B, H, T, R), a number for each round."""
        state, seen, places = ctx.state, {"k": k, "v": v, **({"bucket": bucket} if self.own_bucket else {})}, ctx.index
        if state is not None:
            if self.state_spec() is None:
                raise ValueError(f"{self.address} sorts a whole text: it cannot be decoded step by step")
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
                bias=pairs.to(q.dtype),
                scale=scale,
                kernel=ctx.kernel,
                on_weights=listen,
                dropout=self.dropout,
            )
            out = dense if out is None or (listen is not None and listen.changed) else out
        return out

    # -- sorted, in chunks --------------------------------------------------------------------------------------------

    def by_chunks(self, q: Tensor, k: Tensor, v: Tensor, bucket: Tensor, scale: float, ctx: Context) -> Tensor:
        """(B, H, T, K)"""
        near, (B, H, _, K), R = self.near(bucket, ctx), q.shape, self.rounds

        def gather(x: Tensor, places: Tensor) -> Tensor:  # (B, H, R n, c or w, K)
            return x.gather(2, places.flatten(2)[..., None].expand(-1, -1, -1, K)).view(*places.shape, K)

        wide = torch.promote_types(q.dtype, torch.float32)
        scores = torch.matmul(gather(q, near.mine).to(wide), gather(k, near.theirs).to(wide).transpose(-1, -2)) * scale
        if self.itself:
            scores = scores + self.itself * (near.mine[..., None] == near.theirs[..., None, :])
        # only pads see nothing; they attend to themselves
        alone = (near.mine[..., None] == near.theirs[..., None, :]) & ~near.seen.any(-1, keepdim=True)
        scores = scores.masked_fill(~(near.seen | alone), torch.finfo(wide).min)
        total = scores.logsumexp(-1, keepdim=True)
        weights = F.dropout(scores.softmax(-1).to(v.dtype), self.dropout)
        mixed = torch.matmul(weights, gather(v, near.theirs))

        def unsort(x: Tensor) -> Tensor:  # (B, H, R n, c, .) -> (B, H, R, T, .)
            x = x.reshape(B, H, R, -1, x.shape[-1])
            return x.gather(3, near.back[..., None].expand(*near.back.shape, x.shape[-1]))

        share = unsort(total).softmax(2)  # of each round, by what was seen in it
        return (unsort(mixed) * share.to(v.dtype)).sum(2)

    @torch.no_grad()
    def near(self, bucket: Tensor, ctx: Context) -> Near:
        """Which tokens stand beside each other."""
        bucket = bucket.transpose(2, 3)  # (B, H, R, T)
        (B, H, R, T), c, device = bucket.shape, self.chunk, bucket.device
        n = -(-T // c) if self.multiple is None else -(-T // self.multiple) * (self.multiple // c)
        if ctx.documents is not None:
            bucket = bucket + (begins(ctx.documents).cumsum(-1) * self.buckets)[:, None, None]
        if ctx.tokens is not None:  # pads come last
            bucket = bucket.masked_fill(~ctx.tokens[:, None, None], torch.iinfo(torch.long).max)
        bucket, order = bucket.sort(dim=-1, stable=True)
        mine = F.pad(order, (0, n * c - T)).reshape(B, H, R * n, c)
        slot = torch.arange(n * c, device=device).view(n, c).expand(R, n, c).reshape(1, 1, R * n, c)  # in its round
        steps = torch.arange(-self.before, self.after + 1, device=device)
        own, turn = torch.arange(n, device=device)[:, None], torch.arange(R, device=device)[:, None, None]
        real = torch.full((1,), T, device=device) if ctx.tokens is None else ctx.tokens.sum(-1)
        real, inside = real.view(-1, 1, 1, 1), None
        if self.ring:  # before the first chunk of a round stands the last of the round before, of those that are held
            held = (-(-real // c)).clamp(min=1) if self.multiple is None else torch.full_like(real, n)
            steps = steps.where(steps.abs() < R * held, 0)  # farther than once around leads nowhere (as published)
            number = (turn * held + own + steps) % (R * held)
            chunk = number // held * n + number % held
        else:
            chunk = own + steps
            inside = ((chunk >= 0) & (chunk < n)).expand(R, -1, -1)
            chunk = (turn * n + chunk.clamp(0, n - 1))[None]
        chunk = chunk.reshape(-1, 1, chunk[0].numel(), 1)  # (1 or B, 1, R n (1 + before + after), 1)

        def neighbours(x: Tensor) -> Tensor:  # (., ., R n, c) -> (., ., R n, w)
            index = chunk.expand(max(x.shape[0], chunk.shape[0]), x.shape[1], -1, c)
            return x.expand(index.shape[0], -1, -1, -1).gather(2, index).view(*index.shape[:2], R * n, -1)

        theirs, their_slot = neighbours(mine), neighbours(slot)[..., None, :]
        seen = (slot < T)[..., None]
        if inside is not None:
            seen = seen & inside.reshape(1, 1, R * n, -1, 1).expand(-1, -1, -1, -1, c).flatten(3)[..., None, :]
        if self.own_bucket:
            kind = F.pad(bucket, (0, n * c - T), value=-1).reshape(B, H, R * n, c)
            apart = slot[..., None] - their_slot
            seen = seen & (kind[..., None] == neighbours(kind)[..., None, :])
            seen = seen & (apart <= self.before * c) & (apart >= -self.after * c)
        else:
            seen = seen & (their_slot < real[..., None])
        if self.part.causal:
            seen = seen & (theirs[..., None, :] <= mine[..., None])
        return Near(mine, theirs, seen.expand(B, H, -1, -1, -1), order.argsort(-1))

    # -- all pairs ----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def pairs(self, bucket: Tensor, theirs: Tensor, places: Tensor, ctx: Context) -> Tensor:
        """(B, H, T, S) what is added to the scores: the logarithm of the number of rounds in which one sees the other.
        The eager kernel, the reference, and a text that goes on are read by it."""
        index = ctx.index
        if self.own_bucket:
            mask, key = MASKS[self.part.causal]
            visible = ctx.visible(mask, key, places).dense()[:, :, None]
            same = (bucket.transpose(2, 3)[..., None] == theirs.transpose(2, 3)[..., None, :]) & visible
            rank = same.cumsum(-1)  # among those of its bucket, which stand in order
            mine = (same & (places[..., None, :] <= index[..., None])[..., None, None, :, :]).sum(-1, keepdim=True)
            apart = mine - rank
            count = (same & (apart <= self.before * self.chunk) & (apart >= -self.after * self.chunk)).sum(2)
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
        """(B, 1, T, S) how often each token sees those at `places`, where a text goes on."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Near:
    """Tokens of each chunk and those that they look at, by their places in the row."""

    mine: Tensor  # (B, H, R n, c)
    theirs: Tensor  # (B, H, R n, w)
    seen: Tensor  # (B, H, R n, c, w) which of these
    back: Tensor  # (B, H, R, T) where each token stands in its round


# -- buckets by a hash -------------------------------------------------------------------------------------------------


class InChunks(Op):
    """A mixer that cuts a row into chunks; each looks at itself and at those near it."""

    num_heads: int
    head_width: int | None = None  # default: width / num_heads
    chunk: int = 64  # c, tokens that are compared with each other
    before: int = 1  # chunks
    after: int = 0
    causal: bool = False  # only earlier tokens are looked at
    loose: bool = False  # which of these, later ones may decide, in a model that writes too (as published)
    multiple: int | None = None  # rows are made so long, or a multiple of it, before chunks are counted (as published)
    bias: bool = False  # of the projections
    dropout: float = 0.0  # on the attention weights

    def check(self) -> None:
        kind = type(self).__name__
        at_least(self, 1, "num_heads", "head_width", "chunk", "multiple")
        at_least(self, 0, "before", "after")
        chance(self, "dropout")
        if self.multiple is not None and self.multiple % self.chunk:
            raise ValueError(f"{kind}.multiple is {self.multiple}, which is no number of chunks of {self.chunk} tokens")
        if self.loose and not self.causal:
            raise ValueError(f"{kind}.loose says which earlier tokens are looked at: set causal=True")


class LSHAttention(InChunks, sees="past", called=("Reformer", "hashing attention", "locality-sensitive hashing")):
    """One projection gives queries and keys, which hash to buckets by the random rotation they are nearest to. In each
    of `rounds` a token looks at its chunk of the row sorted by bucket, at `before` chunks in front of it and at `after`
    behind it, and at itself only where there is nothing else.

    Where a chunk begins depends on the whole text, later tokens too, even where those are not looked at (`causal`).
    With `own_bucket` a token looks at the c `before` tokens before it in its own bucket, and c `after` behind it,
    wherever chunks begin: then only the past decides what is seen, step by step as at once."""

    rounds: int = 4  # of hashing, each by rotations of its own
    buckets: tuple[int, ...] | None = (64,)  # an even number; of several, their product; None: two a chunk of the row
    longest: int | None = None  # row that is read, where the number of buckets is chosen from it
    own_bucket: bool = False  # only tokens of the same one are looked at
    # drawn with the weights and saved with them; by this seed, in every layer alike; or anew for each pass of training
    rotations: int | Literal["saved", "fresh"] = "saved"

    def check(self) -> None:
        super().check()
        at_least(self, 1, "rounds", "longest")
        if self.buckets is None:
            if self.longest is None or self.rotations == "saved" or self.own_bucket:
                line = "need `longest`, rotations that are not saved, and no own_bucket"
                raise ValueError(f"LSHAttention.buckets are None: those that are chosen by the length {line}")
        elif not self.buckets or any(count < 2 or count % 2 for count in self.buckets):
            raise ValueError(f"LSHAttention.buckets are even numbers, a rotation or its opposite; got {self.buckets}")
        elif math.prod(self.buckets) >= 2**31:
            raise ValueError(f"LSHAttention.buckets {self.buckets}: their product is above 2^31")
        if self.own_bucket and (self.loose or self.multiple):
            raise ValueError("LSHAttention.own_bucket: chunks are no ring then, so set no loose and no multiple")
        if self.causal and self.own_bucket and self.after:
            raise ValueError("LSHAttention.after is 0 where a token sees what comes before it in its own bucket alone")

    def reaches(self) -> Sees | None:
        return "past" if self.causal and (self.own_bucket or self.loose) else "all"

    @property
    def causal_alternative(self) -> str:
        more = {} if self.buckets else {"buckets": (64,)}
        return repr(self.replace(causal=True, own_bucket=True, after=0, multiple=None, **more))

    def factors(self, length: int) -> tuple[int, ...]:
        """The buckets of a row of this length; by default a power of 2, in two factors where they are many."""
        if self.buckets is not None:
            return self.buckets
        multiple = self.multiple or self.chunk
        power = max((2 * (-(-length // multiple) * multiple // self.chunk)).bit_length() - 1, 1)
        most = 2 * max(math.isqrt((self.longest or 0) // self.chunk), self.chunk)
        return (2**power,) if 2**power <= most else (2 ** (power // 2), 2 ** (power - power // 2))

    def build(self, site: Site) -> nn.Module:
        return LSHAttentionModule(self, site)


class LSHAttentionModule(BucketsModule):
    tapped: ClassVar[TapNames] = {"qk": None, **{name: MIXER[name] for name in ("v", "weights", "mixed")}}
    starts: ClassVar[dict[str, Any]] = {"rotations": Normal(std=1.0)}
    exact: ClassVar[tuple[str, ...]] = ("rotations",)  # fp32 whatever the model is
    rotations: Tensor

    def __init__(self, part: LSHAttention, site: Site) -> None:
        super().__init__(site, part.num_heads, part.head_width)
        H, K, D = part.num_heads, self.head_width, site.width
        self.part, self.buckets, self.itself = part, math.prod(part.buckets or ()), ITSELF
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
        """As published: by torch's generator for a CPU, wherever they are used."""
        seed = 0 if self.part.rotations == "fresh" else self.part.rotations

        def draw() -> Tensor:
            dice = torch.Generator("cpu").manual_seed(seed)
            return torch.randn(self.shape(buckets), generator=dice, device="cpu").to(torch.empty(0).device)

        return draw

    def turns(self, buckets: tuple[int, ...], x: Tensor) -> Tensor:
        """(H, K, R, n) the rotations of a pass."""
        if self.part.rotations == "saved":
            return self.rotations
        if self.part.rotations == "fresh" and self.training:
            return torch.randn(self.shape(buckets), device=x.device)
        return self.by_seed[self.numbers[buckets]]()

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if ctx.documents is not None and not self.own_bucket:
            raise ValueError(
                f"{self.address}: a sorted row holds one text, so documents cannot be packed; "
                "own_bucket=True keeps them apart"
            )
        q = self.heads(ctx.tap(self.address, "qk", self.qk(x)))
        v = self.heads(ctx.tap(self.address, "v", self.v(x)))
        # keys of length 1, so that no token is looked at for its length
        wide = q.to(torch.promote_types(q.dtype, torch.float32))
        k = (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + 1e-6 * self.head_width)).to(q.dtype)
        out = self.look(q, k, v, self.bucket_ids(q), 1.0, ctx)
        return self.o(ctx.tap(self.address, "mixed", out.transpose(1, 2).flatten(2)))

    @torch.no_grad()
    def bucket_ids(self, q: Tensor) -> Tensor:
        """(B, H, T, K) -> (B, H, T, R) the number of its bucket in each round."""
        wide, buckets = torch.promote_types(q.dtype, torch.float32), self.part.factors(q.shape[2])
        turned = torch.einsum("bhtk,hkrn->bhtrn", q.to(wide), self.turns(buckets, q).to(wide))
        found, step = torch.zeros((), dtype=torch.long, device=q.device), 1
        for count, part in zip(buckets, turned.split([n // 2 for n in buckets], -1), strict=True):
            found = found + step * torch.cat((part, -part), -1).argmax(-1)
            step *= count
        return found
