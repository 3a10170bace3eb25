"""Multi-head attention: self- or cross-attention, any number of key/value heads, any mask, any position scheme.

B batch, T tokens, S visible keys, H heads, G key/value heads, K head width, D width.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn

from anyformer.kernels import few_rows
from anyformer.kernels.attention import Plan, attend
from anyformer.kernels.decode import attend_new, attends_new
from anyformer.kernels.few_rows import NormWeights
from anyformer.kernels.linear import cast_for_autocast
from anyformer.parts.attention.scores import (
    SOFTMAX,
    HeadMixing,
    HeadMixingModule,
    Normalizer,
    PointwiseModule,
    QueryChange,
    ScoreChange,
    Softmax,
)
from anyformer.parts.decode_step import DecodeStep, linear
from anyformer.parts.fused_linear import Joined
from anyformer.parts.mask import FULL, All, Causal, Full, Mask, Window
from anyformer.parts.norm import Norm
from anyformer.parts.op import InHeads, Op
from anyformer.parts.position.absolute import AttentionPosition
from anyformer.parts.position.bias import HeadwisePosition, rotate_and_tap
from anyformer.parts.position.rotary import RopeModule
from anyformer.runtime.context import Context
from anyformer.runtime.stores import PerMemory, PerToken, Static
from anyformer.runtime.taps import MIXER, TapNames
from anyformer.specs.field_types import QKVO, Chance, Count, Positive
from anyformer.specs.part import Sees, Site, farthest


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
    ),
):
    """Scaled dot-product attention in several heads: softmax(q k^T / sqrt(K)) v [Vaswani et al. 2017]."""

    num_heads: Count
    num_kv_heads: Count | None = None  # fewer: grouped-query [Ainslie et al. 2023]; 1: multi-query [Shazeer 2019]
    head_width: Count | None = None  # default: width / num_heads
    value_width: Count | None = None  # width of a head's values; default: head_width
    bias: QKVO = "qkvo"  # projections that have a bias
    mask: Mask = FULL
    position: AttentionPosition | None = None
    scale: Positive | None = None  # factor of the scores; default: 1 / sqrt(head_width)
    scores: tuple[ScoreChange, ...] = ()  # changes of the scores, in order
    normalizer: Normalizer = SOFTMAX  # of the scores
    qk_norm: Norm | None = None  # norm of each head's queries and keys
    dropout: Chance = 0.0  # on the attention weights
    memory: bool = False  # cross-attention: keys and values are computed from the memory
    memory_width: Count | None = None  # default: the model's width

    def check(self) -> None:
        if self.num_heads % (self.num_kv_heads or self.num_heads):
            raise ValueError(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}")
        if sum(isinstance(change, HeadMixing) for change in self.scores) > 1:
            raise ValueError("Attention.scores: at most one change can mix heads")
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
        return farthest("itself", self.qk_norm, self.normalizer, *self.scores) if self.memory else super().reaches()

    @classmethod
    def upgrade(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Earlier versions had a field for each change of the scores, and for two subclasses."""
        for field, kind in (("mean_at_pads", "DebertaAttention"), ("memory_by_layer", "TransparentAttention")):
            if data.pop(field, False):
                data["kind"] = kind
        learned = data.pop("learned_scale", None)
        old = {
            "LearnedScale": learned,
            "ScaleByLayer": {} if data.pop("scale_by_layer", False) else None,
            "SoftCap": {"bound": cap} if (cap := data.pop("softcap", None)) is not None else None,
            "TalkingHeads": {} if data.pop("talking", False) else None,
        }
        if changes := [{**fields, "kind": kind} for kind, fields in old.items() if fields is not None]:
            data["scores"] = changes
        if learned is not None:
            data["scale"] = 1.0
        if isinstance(data.get("normalizer"), str):
            data["normalizer"] = {"kind": data["normalizer"].capitalize()}
        return data


class AttentionModule(InHeads, of=Attention):
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
        self.q_norm = part.qk_norm.build(site.child("q_norm", width=K)) if part.qk_norm else None
        self.k_norm = part.qk_norm.build(site.child("k_norm", width=K)) if part.qk_norm else None
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
        self.scores: nn.ModuleList | None = None
        self.normalizer: nn.Module | None = None
        self.mix_heads: HeadMixingModule | None = None
        self.query_changes: tuple[nn.Module, ...] = ()
        self.score_changes: tuple[PointwiseModule, ...] = ()
        if part.scores:
            self.add_score_changes(part, site)
        if not isinstance(part.normalizer, Softmax):
            self.normalizer = part.normalizer.build(site.child("normalizer", width=H))
        self.num_kv_heads = G
        self.qkv: Joined | None = None  # set by transforms/fuse.py: all three as one product
        self.part, self.mask_key = part, repr(part.mask)
        self.tapped: TapNames = {
            **MIXER,
            **({"position": None} if self.position is not None and not self.position.silent else {}),
            **({"weights": "cross_attentions"} if part.memory else {}),
        }

    def add_score_changes(self, part: Attention, site: Site) -> None:
        changes = part.scores
        sites = (site.child(f"scores.{i}", width=part.num_heads) for i in range(len(changes)))
        self.scores = nn.ModuleList(change.build(at) for change, at in zip(changes, sites, strict=True))
        self.scale *= math.prod(change.factor(site.layer) for change in changes)
        pairs = list(zip(changes, self.scores, strict=True))
        self.query_changes = tuple(module for change, module in pairs if isinstance(change, QueryChange))
        self.score_changes = tuple(module for module in self.scores if isinstance(module, PointwiseModule))
        mixing = next((module for module in self.scores if isinstance(module, HeadMixingModule)), None)
        object.__setattr__(self, "mix_heads", mixing)  # not a second registration of the module

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
        for change in self.query_changes:
            q = change(q)
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
        out = attend(q, k, v, visible, self.plan(ctx, bias, value_bias, ctx.weights(self.address)))
        return self.finish(out, v, ctx).transpose(1, 2).flatten(2)

    def plan(
        self,
        ctx: Context,
        bias: Tensor | None = None,
        value_bias: Callable[[Tensor], Tensor] | None = None,
        on_weights: Callable[[Tensor], Tensor] | None = None,
    ) -> Plan:
        """Return how scores become weights; see Plan."""
        return Plan(
            scale=self.scale,
            bias=bias,
            changes=self.score_changes,
            mix_heads=self.mix_heads,
            normalize=self.normalizer,
            dropout=self.part.dropout if self.training else 0.0,
            value_bias=value_bias,
            on_weights=on_weights,
            kernel=ctx.kernel,
        )

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


# -- the fused decoding step -------------------------------------------------------------------------------------------


class AttentionStep(DecodeStep, of=AttentionModule):
    layers = ("q", "k", "v", "o")

    def obstacle(self, rows: int) -> str | None:
        if (why := super().obstacle(rows)) is not None:
            return why
        position = self.op.position
        turns = position is not None and position.turns_stream
        return f"{type(position).__name__} rotates the stream" if turns else None

    def __call__(self, x: Tensor, norm: NormWeights | None, shortcut: Tensor | None, ctx: Context) -> Tensor:
        op = self.op
        layers = [op.q] if op.part.memory else [op.q, op.k, op.v]
        projected = linear(x, *layers, norm=norm)
        if op.part.memory:
            mixed = op.mix(one_token_by_head(projected, op.head_width), None, None, ctx)
        elif self.appends_in_place(ctx):
            mixed = self.append_and_attend(projected, ctx)
        else:
            parts = projected.split([layer.out_features for layer in layers], dim=1)
            widths = op.head_width, op.head_width, op.value_width
            mixed = op.mix(*map(one_token_by_head, parts, widths), ctx)
        return linear(mixed[:, 0], op.o, onto=shortcut)

    def appends_in_place(self, ctx: Context) -> bool:
        """Whether attention has rotary positions or none, no further change of queries and keys, and a static cache."""
        op = self.op
        plain = op.q_norm is None and not op.query_changes and op.value_width == op.head_width
        turned = op.position is None or type(op.position) is RopeModule
        return plain and turned and isinstance(ctx.store(op.address), Static)

    def append_and_attend(self, qkv: Tensor, ctx: Context) -> Tensor:
        op, store = self.op, ctx.store(self.op.address)
        assert isinstance(store, Static)
        columns, places = store.reserve(ctx.index, ctx.once)
        angles, interleaved, rope = None, False, op.position
        if isinstance(rope, RopeModule):
            angles = ctx.once(f"{rope.key} of pairs", lambda: rope.tables(ctx, qkv.dtype))
            interleaved = rope.part.interleaved
        heads = op.part.num_heads, op.num_kv_heads, op.head_width
        keys, values = store.tensors["k"], store.tensors["v"]
        new = (qkv, heads, angles, interleaved, keys, values, columns)
        fused = op.plan(ctx).chosen_kernel() == "sdpa"
        if fused and ctx.bias is None and attends_new(heads, keys):
            return attend_new(*new, ctx.visible(op.part.mask, op.mask_key, places).dense(), op.scale)
        return op.attend(few_rows.rotate_append(*new), keys, values, places, ctx)


def one_token_by_head(x: Tensor, width: int) -> Tensor:
    """(B, H K) -> (B, H, 1, K)"""
    return x.unflatten(1, (-1, width))[:, :, None]
