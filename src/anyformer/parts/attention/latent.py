"""Multi-head latent attention: keys and values of all heads are made from one narrow vector a token, and only that is
remembered [DeepSeek-V2, 2024].

B batch, T tokens, S keys seen, H heads, R rank of the latent, P width that turns, K width that does not, V value width.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.attention import Visible, attend
from anyformer.parts.norm import Norm, RMSNorm
from anyformer.parts.op import Op
from anyformer.parts.position import bias
from anyformer.parts.position.relative import InputRope
from anyformer.parts.position.rotary import Rope
from anyformer.runtime.context import Context
from anyformer.runtime.mask import FULL, Mask
from anyformer.runtime.state import PerToken
from anyformer.runtime.taps import MIXER, Listener, TapNames, convert_listener
from anyformer.specs.checks import at_least, chance, positive
from anyformer.specs.part import Site


class LatentAttention(Op, sees="past", called=("MLA", "multi-head latent attention", "DeepSeek")):
    """Each head's keys are K channels from the latent and P that turn with the position, the same for all heads."""

    num_heads: int
    rank: int
    head_width: int
    rotary_width: int
    value_width: int
    position: Rope
    query_rank: int | None = None  # queries are compressed too
    bias: bool = False  # of the projections that compress, and of the output
    norm: Norm = RMSNorm()  # of what is compressed
    mask: Mask = FULL
    scale: float | None = None  # of the scores; default: 1 / sqrt(K + P)
    dropout: float = 0.0  # on the attention weights

    def check(self) -> None:
        at_least(self, 1, "num_heads", "rank", "head_width", "rotary_width", "value_width", "query_rank")
        positive(self, "scale")
        chance(self, "dropout")
        if isinstance(self.position, InputRope):
            raise ValueError("LatentAttention turns queries and keys, not what they are projected from: use Rope")

    def build(self, site: Site) -> nn.Module:
        return LatentAttentionModule(self, site)


class LatentAttentionModule(nn.Module):
    tapped: ClassVar[TapNames] = {**MIXER, "position": None}
    position: Any

    def __init__(self, part: LatentAttention, site: Site) -> None:
        super().__init__()
        D, H, R, P = site.width, part.num_heads, part.rank, part.rotary_width
        self.q_down = self.q_norm = None
        if part.query_rank is not None:
            self.q_down = nn.Linear(D, part.query_rank, bias=part.bias)
            self.q_norm = part.norm.build(Site(width=part.query_rank))
        self.q = nn.Linear(part.query_rank or D, H * (part.head_width + P), bias=False)
        self.kv_down = nn.Linear(D, R + P, bias=part.bias)
        self.kv_norm = part.norm.build(Site(width=R))
        self.kv_up = nn.Linear(R, H * (part.head_width + part.value_width), bias=False)
        self.o = nn.Linear(H * part.value_width, D, bias=part.bias)
        self.position = part.position.build(site.child("position", width=P))
        self.scale = (part.head_width + P) ** -0.5 if part.scale is None else part.scale
        self.part, self.address, self.mask_key = part, site.address, repr(part.mask)

    def state_spec(self) -> PerToken:
        """The latent, and behind it the keys that turn: one vector, which one product then compares."""
        return PerToken({"latent": (self.part.rank + self.part.rotary_width,)})

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        part = self.part
        source = x if self.q_down is None or self.q_norm is None else self.q_norm(self.q_down(x))
        q = ctx.tap(self.address, "q", self.q(source))
        q = q.unflatten(-1, (part.num_heads, -1)).transpose(1, 2)  # (B, H, T, K + P)
        plain, turned = q.split((part.head_width, part.rotary_width), dim=-1)
        latent, key = self.kv_down(x)[:, None].split((part.rank, part.rotary_width), dim=-1)
        turned, key = bias.rotate_and_tap(self.position, turned, key, ctx, self.address)
        latent = torch.cat((self.kv_norm(latent), key), dim=-1)  # (B, 1, T, R + P)
        seen, places = ctx.append_to_cache(self.address, {"latent": latent[:, 0]})
        kept = seen["latent"][:, None]
        visible = ctx.visible(part.mask, self.mask_key, places)
        asked = ctx.wants(self.address, "k") or ctx.wants(self.address, "v")  # which only the longer way makes
        short = x.shape[1] == 1 and ctx.state is not None and ctx.kernel != "flex" and type(self.kv_up) is nn.Linear
        if short and not asked:
            out = self.attend_absorbed(plain, turned, kept, visible, ctx)
        else:
            out = self.attend_expanded(plain, turned, kept, visible, ctx)
        return self.o(ctx.tap(self.address, "mixed", out.transpose(1, 2).flatten(2)))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, visible: Visible, ctx: Context, weights: Listener | None
    ) -> Tensor:
        dropout = self.part.dropout if self.training else 0.0
        return attend(q, k, v, visible, scale=self.scale, kernel=ctx.kernel, on_weights=weights, dropout=dropout)

    def attend_expanded(self, plain: Tensor, turned: Tensor, kept: Tensor, visible: Visible, ctx: Context) -> Tensor:
        """Keys and values of every head: the shorter way while there are many queries."""
        part = self.part
        latent, key = kept.split((part.rank, part.rotary_width), dim=-1)
        both = self.kv_up(latent[:, 0]).unflatten(-1, (part.num_heads, -1)).transpose(1, 2)  # (B, H, S, K + V)
        k, v = both.split((part.head_width, part.value_width), dim=-1)
        k = torch.cat((k, key.expand(-1, part.num_heads, -1, -1)), dim=-1)
        if ctx.taps is not None:
            flat = (ctx.tap(self.address, name, t.transpose(1, 2).flatten(2)) for name, t in (("k", k), ("v", v)))
            k, v = (t.unflatten(-1, (part.num_heads, -1)).transpose(1, 2) for t in flat)
        if (narrower := k.shape[-1] - part.value_width) > 0 and not k.is_cuda:
            v = F.pad(v, (0, narrower))  # the fused kernel of CPUs wants one width for all and is twice as fast
        weights = ctx.weights(self.address)
        return self.attend(torch.cat((plain, turned), dim=-1), k, v, visible, ctx, weights)[..., : part.value_width]

    def attend_absorbed(self, plain: Tensor, turned: Tensor, kept: Tensor, visible: Visible, ctx: Context) -> Tensor:
        """One query: the matrices that would expand the memory act on the query and on the result instead, and the
        heads are the queries of a single head whose keys and values are what is remembered."""
        part = self.part
        up = self.kv_up.weight.unflatten(0, (part.num_heads, -1))  # (H, K + V, R)
        to_key, to_value = up.split((part.head_width, part.value_width), dim=1)
        q = torch.cat((plain @ to_key, turned), dim=-1).transpose(1, 2)  # (B, 1, H, R + P)
        weights = ctx.weights(self.address)
        if weights is not None:  # one head with many queries stands for many heads with one query
            weights = convert_listener(weights, _transpose, _transpose)
        out = self.attend(q, kept, kept[..., : part.rank], visible, ctx, weights)
        return out.transpose(1, 2) @ to_value.transpose(-2, -1)  # (B, H, 1, V)


def _transpose(weights: Tensor) -> Tensor:
    return weights.transpose(1, 2)
