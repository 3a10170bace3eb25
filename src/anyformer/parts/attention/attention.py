"""Multi-head attention: self- or cross-attention, any number of key/value heads, any mask, any position scheme.

B batch, T tokens, S visible keys, H heads, G key/value heads, K head width, D width.
"""

from __future__ import annotations

import functools
import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from anyformer.kernels.attention import attend
from anyformer.kernels.entmax import NORMALIZERS, Normalizer
from anyformer.kernels.linear import cast_for_autocast
from anyformer.parts.fused_linear import Joined
from anyformer.parts.norm import Norm
from anyformer.parts.op import InHeads, Op
from anyformer.parts.position.absolute import AttentionPosition
from anyformer.parts.position.bias import HeadwisePosition, rotate_and_tap
from anyformer.runtime.context import Context
from anyformer.runtime.mask import FULL, All, Causal, Full, Mask, Window
from anyformer.runtime.state import PerMemory, PerToken
from anyformer.runtime.taps import MIXER, TapNames
from anyformer.specs.checks import at_least, chance, positive
from anyformer.specs.messages import quote
from anyformer.specs.part import Part, Sees, Site, farthest


class LearnedScale(Part, sees="itself"):
    """Multiplies the scores of each head by a learned number of at most `most`; used with cosines of queries and keys
    [Liu et al. 2022]. `build` gets the number of heads as `site.width`."""

    start: float = 10.0
    most: float = 100.0

    def check(self) -> None:
        positive(self, "start", "most")

    def build(self, site: Site) -> nn.Module:
        return LearnedScaleModule(self, site.width)


class LearnedScaleModule(nn.Module):
    def __init__(self, part: LearnedScale, heads: int) -> None:
        super().__init__()
        self.starts, self.most = {"weight": math.log(part.start)}, math.log(part.most)
        self.weight = nn.Parameter(torch.full((heads, 1, 1), math.log(part.start)))  # logarithm of the scale

    def forward(self, q: Tensor) -> Tensor:
        return q * self.weight.clamp(max=self.most).exp()


class TalkingHeads(nn.Module):
    """Mixes heads with two matrices (H, H): scores before softmax and weights after it [Shazeer et al. 2020]."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.scores, self.weights = nn.Linear(heads, heads, bias=False), nn.Linear(heads, heads, bias=False)

    def forward(self, x: Tensor, after_softmax: bool) -> Tensor:
        """Mix the heads of scores, or with `after_softmax` of weights: (B, H, T, S) -> (B, H, T, S)."""
        return (self.weights if after_softmax else self.scores)(x.movedim(1, -1)).movedim(-1, 1)


class Attention(
    Op,
    sees="past",
    called=(
        "self-attention",
        "multi-head",
        "multi-head attention",
        "MHA",
        "SDPA",
        "GQA (num_kv_heads=...)",
        "grouped-query (num_kv_heads=...)",
        "MQA (num_kv_heads=1)",
        "multi-query (num_kv_heads=1)",
        "cross-attention (memory=True)",
        "encoder-decoder attention (memory=True)",
        'entmax (normalizer="entmax")',
        'sparsemax (normalizer="sparsemax")',
    ),
):
    """Scaled dot-product attention in several heads: softmax(q k^T / sqrt(K)) v [Vaswani et al. 2017]."""

    num_heads: int
    num_kv_heads: int | None = None  # fewer: grouped-query [Ainslie et al. 2023]; 1: multi-query [Shazeer 2019]
    head_width: int | None = None  # default: width / num_heads
    value_width: int | None = None  # width of a head's values; default: head_width
    bias: str = "qkvo"  # projections that have a bias
    mask: Mask = FULL
    position: AttentionPosition | None = None
    scale: float | None = None  # factor of the scores; default: 1 / sqrt(head_width)
    learned_scale: LearnedScale | None = None  # replaces `scale`
    scale_by_layer: bool = False  # divide the scale by the layer's number, counted from 1 (Mistral's GPT-2)
    qk_norm: Norm | None = None  # norm of each head's queries and keys
    softcap: float | None = None  # bound of the scores: softcap * tanh(scores / softcap) (Gemma 2)
    dropout: float = 0.0  # on the attention weights
    normalizer: Normalizer = "softmax"  # of the scores; entmax and sparsemax give exact zeros, in plain torch
    talking: bool = False  # mix heads before and after softmax [Shazeer et al. 2020]
    memory: bool = False  # cross-attention: keys and values are computed from the memory
    memory_width: int | None = None  # default: the model's width

    def check(self) -> None:
        at_least(self, 1, "num_heads", "num_kv_heads", "head_width", "value_width", "memory_width")
        positive(self, "softcap", "scale")
        chance(self, "dropout")
        if self.num_heads % (self.num_kv_heads or self.num_heads):
            raise ValueError(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}")
        if self.learned_scale is not None and (self.scale is not None or self.scale_by_layer):
            raise ValueError("Attention.learned_scale replaces scale and scale_by_layer; do not set them")
        if set(self.bias) - set("qkvo"):
            raise ValueError(f"Attention.bias is {quote(self.bias)}; use only letters of 'qkvo'")
        if isinstance(self.position, HeadwisePosition) and self.position.num_heads != self.num_heads:
            heads = self.position.num_heads
            raise ValueError(f"Attention.position.num_heads is {heads}; it must equal num_heads, {self.num_heads}")
        if self.memory and (self.position is not None or not isinstance(self.mask, Full)):
            raise ValueError("Attention(memory=True) is cross-attention: it takes no mask and no position")
        if self.memory_width is not None and not self.memory:
            raise ValueError("Attention.memory_width is only for cross-attention; set memory=True too")

    @property
    def bias_heads(self) -> int | None:
        return None if self.memory else self.num_heads

    @property
    def reads_memory(self) -> bool:
        return self.memory

    def reaches(self) -> Sees | None:
        return farthest("itself", self.qk_norm) if self.memory else super().reaches()

    def build(self, site: Site) -> nn.Module:
        return AttentionModule(self, site)


class AttentionModule(InHeads):
    hint: ClassVar[str] = "; set head_width"

    def __init__(self, part: Attention, site: Site) -> None:
        super().__init__(site, part.num_heads, part.head_width)
        H, G, K = part.num_heads, part.num_kv_heads or part.num_heads, self.head_width
        source = part.memory_width or site.width
        self.q = nn.Linear(site.width, H * K, bias="q" in part.bias)
        self.k = nn.Linear(source, G * K, bias="k" in part.bias)
        self.value_width = part.value_width or K
        self.v = nn.Linear(source, G * self.value_width, bias="v" in part.bias)
        self.o = nn.Linear(H * self.value_width, site.width, bias="o" in part.bias)
        self.q_norm = part.qk_norm.build(Site(width=K)) if part.qk_norm else None
        self.k_norm = part.qk_norm.build(Site(width=K)) if part.qk_norm else None
        self.position = part.position.build(site.child("position", width=K)) if part.position else None
        at, scheme = f"{site.address}.position", type(part.position).__name__
        if self.position is not None and self.position.turns_stream and site.width % K:
            raise ValueError(
                f"{at}: {scheme} rotates the input in heads of {K}, which do not divide width {site.width}"
            )
        if self.position is not None and self.position.has_values and self.value_width != K:
            raise ValueError(
                f"{at}: {scheme} adds vectors of width {K} to values of {self.value_width}; omit value_width"
            )
        needed = None if self.position is None else self.position.needs_width
        if needed not in (None, site.width):
            raise ValueError(f"{at}: {scheme} has vectors of width {needed}; set its width to {site.width}")
        self.scale = part.scale if part.scale is not None else K**-0.5
        self.learned_scale: nn.Module | None = None
        if part.learned_scale is not None:
            self.scale, self.learned_scale = 1.0, part.learned_scale.build(site.child("learned_scale", width=H))
        if part.scale_by_layer:
            self.scale /= site.layer + 1
        self.normalize = NORMALIZERS[part.normalizer]
        self.talk = TalkingHeads(H) if part.talking else None
        self.num_kv_heads = G
        self.qkv: Joined | None = None  # set by transforms/fuse.py: all three as one product
        self.part, self.mask_key = part, repr(part.mask)
        self.tapped: TapNames = {
            **MIXER,
            **({"position": None} if self.position is not None and not self.position.silent else {}),
            **({"weights": "cross_attentions"} if part.memory else {}),
        }

    def state_spec(self) -> PerToken | PerMemory:
        shapes = {"k": (self.num_kv_heads, self.head_width), "v": (self.num_kv_heads, self.value_width)}
        return PerMemory(shapes) if self.part.memory else PerToken(shapes, window=self.window)

    @property
    def window(self) -> int | None:
        """Size of a causal window: keys before it are never needed again. None: all keys are needed."""
        masks = self.part.mask.masks if isinstance(self.part.mask, All) else (self.part.mask,)
        sizes = [mask.size for mask in masks if isinstance(mask, Window)]
        return min(sizes) if sizes and any(isinstance(mask, Causal) for mask in masks) else None

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        source = x if self.position is None else self.position.source(x, ctx)
        if source is not x:
            source = ctx.tap(self.address, "position", source)
        if self.part.memory:
            mixed = self.mix(self.by_head("q", self.q(source), ctx), None, None, ctx)
        else:
            q, k, v = self.projections(x, source, ctx)
            mixed = self.mix(q, k, v, ctx)
        return self.output(ctx.tap(self.address, "mixed", mixed), ctx)

    def mix(self, q: Tensor, k: Tensor | None, v: Tensor | None, ctx: Context) -> Tensor:
        """Queries (B, H, T, K), keys and values (B, G, T, K; None: from the memory) -> (B, T, H K)."""
        if k is None or v is None:
            k, v = ctx.from_memory(self.address, lambda states: self.memory_keys(states, ctx))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.learned_scale is not None:
            q = self.learned_scale(q)
        if self.part.memory:
            return self.attend(q, k, v, None, ctx)
        if self.position is not None:
            q, k = rotate_and_tap(self.position, q, k, ctx, self.address)
        seen, places = ctx.append_to_cache(self.address, {"k": k, "v": v})
        return self.attend(q, seen["k"], seen["v"], places, ctx)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, places: Tensor | None, ctx: Context) -> Tensor:
        """Queries (B, H, T, K), keys and values (B, G, S, K) -> (B, T, H K). `places` (S,) or (B, S) are the row
        indices of the keys; None: the keys are from the memory."""
        visible = ctx.visible_memory() if places is None else ctx.visible(self.part.mask, self.mask_key, places)
        bias = None if self.part.memory else ctx.bias
        if bias is not None and places is not None and ctx.state is not None and self.window is not None:
            bias = bias.take_along_dim(places.clamp(min=0).view(-1, 1, 1, places.shape[-1]), 3)  # for the cached keys
        if self.position is not None and places is not None:
            q, position_bias = self.position.key_bias(q, k, places, self.scale, ctx, (self.q, self.k))
            if position_bias is not None:
                position_bias = ctx.tap(self.address, "position", position_bias)
                bias = position_bias if bias is None else bias + position_bias
        value_bias = None
        if self.position is not None and places is not None and self.position.has_values:
            value_bias = functools.partial(self.position.values, places=places, ctx=ctx)
        out = attend(
            q,
            k,
            v,
            visible,
            bias=bias,
            scale=self.scale,
            softcap=self.part.softcap,
            kernel=ctx.kernel,
            dropout=self.part.dropout if self.training else 0.0,
            on_weights=ctx.weights(self.address),
            value_bias=value_bias,
            mix_heads=self.talk,
            normalize=self.normalize,
        )
        return self.finish(out, v, ctx).transpose(1, 2).flatten(2)

    def finish(self, out: Tensor, v: Tensor, ctx: Context) -> Tensor:
        """Return the mixed values (B, H, T, K), given all values (B, G, S, K); subclasses may change them."""
        return out

    def output(self, mixed: Tensor, ctx: Context) -> Tensor:
        """Apply the output projection to the mixed values (B, T, H K)."""
        return self.o(mixed)

    def projections(self, x: Tensor, source: Tensor, ctx: Context) -> tuple[Tensor, ...]:
        """Return queries, keys and values by head. `source` is the input of queries and keys, x of values."""
        if ctx.key_states is not None:  # pooled queries attend to the longer sequence (Funnel)
            projected = self.q(source), self.k(ctx.key_states), self.v(ctx.key_states)
        elif self.qkv is not None and source is x and self.qkv.covers(self.q, self.k, self.v):
            projected = self.qkv(x)
        else:
            read = cast_for_autocast(x)
            source = read if source is x else cast_for_autocast(source)
            projected = self.q(source), self.k(source), self.v(read)
        q, k, v = projected
        return self.by_head("q", q, ctx), self.by_head("k", k, ctx), self.by_head("v", v, ctx)

    def by_head(self, name: str, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, H K) -> (B, H, T, K), traced as `name`; values have the width `value_width`."""
        width = self.value_width if name == "v" else self.head_width
        x = ctx.tap(self.address, name, x)
        return x.view(*x.shape[:-1], -1, width).transpose(1, 2)

    def memory_keys(self, states: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """Return keys and values (B, G, M, K) of the memory."""
        return self.by_head("k", self.k(states), ctx), self.by_head("v", self.v(states), ctx)
