"""Multi-head latent attention: keys and values of all heads are computed from one narrow vector per token, and only
this vector is cached [DeepSeek-V2, 2024].

B batch, T tokens, S visible keys, H heads, R rank of the latent, P rotary width, K head width without P, V value width.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.attention import Plan, Visible, attend
from anyformer.parts.base import PartModule
from anyformer.parts.forward_override import is_plain
from anyformer.parts.mask import FULL, Mask
from anyformer.parts.norm import Norm, RMSNorm
from anyformer.parts.op import Op
from anyformer.parts.position import bias
from anyformer.parts.position.relative import InputRope
from anyformer.parts.position.rotary import Rope
from anyformer.runtime.context import Context
from anyformer.runtime.stores import PerToken
from anyformer.runtime.taps import MIXER, Listener, TapNames, convert_listener
from anyformer.specs.field_types import Chance, Count, Positive
from anyformer.specs.part import Site


class LatentAttention(Op, sees="past", called=("MLA", "multi-head latent attention", "DeepSeek")):
    """A head's keys have K channels computed from the cached latent, and P rotary channels that all heads share."""

    num_heads: Count
    rank: Count  # R, width of the latent
    head_width: Count  # K, channels per head that do not rotate
    rotary_width: Count  # P, channels per head that rotate
    value_width: Count  # V, channels per head
    position: Rope
    query_rank: Count | None = None  # width to which queries are compressed; default: they are not
    bias: bool = False  # bias of the compressing projections and of the output
    norm: Norm = RMSNorm()  # norm of the compressed vectors
    mask: Mask = FULL
    scale: Positive | None = None  # factor of the scores; default: 1 / sqrt(K + P)
    dropout: Chance = 0.0  # on the attention weights

    def check(self) -> None:
        if isinstance(self.position, InputRope):
            raise ValueError("LatentAttention.position is InputRope, which rotates the input; use Rope")


class LatentAttentionModule(PartModule, of=LatentAttention):
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
        """The latent and the rotary key in one vector, so that one product compares both."""
        return PerToken({"latent": (self.part.rank + self.part.rotary_width,)})

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        part = self.part
        source = x if self.q_down is None or self.q_norm is None else self.q_norm(self.q_down(x))
        q = ctx.tap(self.address, "q", self.q(source))
        q = q.unflatten(-1, (part.num_heads, -1)).transpose(1, 2)  # (B, H, T, K + P)
        plain, rotary = q.split((part.head_width, part.rotary_width), dim=-1)
        latent, key = self.kv_down(x)[:, None].split((part.rank, part.rotary_width), dim=-1)
        rotary, key = bias.rotate_and_tap(self.position, rotary, key, ctx, self.address)
        latent = torch.cat((self.kv_norm(latent), key), dim=-1)  # (B, 1, T, R + P)
        seen, places = ctx.append_to_cache(self.address, {"latent": latent[:, 0]})
        cached = seen["latent"][:, None]
        visible = ctx.visible(part.mask, self.mask_key, places)
        traced = ctx.wants(self.address, "k") or ctx.wants(self.address, "v")  # only the expanded path computes them
        absorb = x.shape[1] == 1 and ctx.state is not None and ctx.kernel != "flex" and is_plain(self.kv_up)
        if absorb and not traced:
            out = self.attend_absorbed(plain, rotary, cached, visible, ctx)
        else:
            out = self.attend_expanded(plain, rotary, cached, visible, ctx)
        return self.o(ctx.tap(self.address, "mixed", out.transpose(1, 2).flatten(2)))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, visible: Visible, ctx: Context, weights: Listener | None
    ) -> Tensor:
        dropout = self.part.dropout if self.training else 0.0
        return attend(q, k, v, visible, Plan(self.scale, dropout=dropout, on_weights=weights, kernel=ctx.kernel))

    def attend_expanded(self, plain: Tensor, rotary: Tensor, cached: Tensor, visible: Visible, ctx: Context) -> Tensor:
        """Attend to the expanded keys and values of every head; cheaper for many queries."""
        part = self.part
        latent, key = cached.split((part.rank, part.rotary_width), dim=-1)
        both = self.kv_up(latent[:, 0]).unflatten(-1, (part.num_heads, -1)).transpose(1, 2)  # (B, H, S, K + V)
        k, v = both.split((part.head_width, part.value_width), dim=-1)
        k = torch.cat((k, key.expand(-1, part.num_heads, -1, -1)), dim=-1)
        if ctx.taps is not None:
            flat = (ctx.tap(self.address, name, t.transpose(1, 2).flatten(2)) for name, t in (("k", k), ("v", v)))
            k, v = (t.unflatten(-1, (part.num_heads, -1)).transpose(1, 2) for t in flat)
        if (missing := k.shape[-1] - part.value_width) > 0 and not k.is_cuda:
            v = F.pad(v, (0, missing))  # the fused CPU kernel is twice as fast, and needs equal widths
        weights = ctx.weights(self.address)
        return self.attend(torch.cat((plain, rotary), dim=-1), k, v, visible, ctx, weights)[..., : part.value_width]

    def attend_absorbed(self, plain: Tensor, rotary: Tensor, cached: Tensor, visible: Visible, ctx: Context) -> Tensor:
        """Attend with one query. The matrices that would expand the latents are applied to the query and to the result
        instead. The heads become the queries of a single head, whose keys and values are the cached latents."""
        part = self.part
        up = self.kv_up.weight.unflatten(0, (part.num_heads, -1))  # (H, K + V, R)
        to_key, to_value = up.split((part.head_width, part.value_width), dim=1)
        q = torch.cat((plain @ to_key, rotary), dim=-1).transpose(1, 2)  # (B, 1, H, R + P)
        weights = ctx.weights(self.address)
        if weights is not None:  # H queries of one head are one query of H heads
            weights = convert_listener(weights, _transpose, _transpose)
        out = self.attend(q, cached, cached[..., : part.rank], visible, ctx, weights)
        return out.transpose(1, 2) @ to_value.transpose(-2, -1)  # (B, H, 1, V)


def _transpose(weights: Tensor) -> Tensor:
    return weights.transpose(1, 2)
