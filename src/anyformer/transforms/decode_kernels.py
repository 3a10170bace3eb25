"""Fused Triton kernels for a decoding step, which need few launches (kernels/few_rows.py).

    with decode_kernels(model, rows=1) as used:      # one token per row, on CUDA, without gradients
        ...

A residual step with attention, Mamba's mixer, a feed-forward or experts becomes two to eight launches: the norm is
fused into the input projections, gate and activation into the inner layer, the residual sum into the last layer. Other
norms and linear layers have separate kernels, and modules without a kernel run unchanged. Outputs differ only by the
order of sums. The model is restored after the block. `used` reports how many residual steps were fused, and why others
were not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.kernels import few_experts, few_rows
from anyformer.kernels.decode import attend_new, attends_new
from anyformer.kernels.few_rows import NormWeights
from anyformer.kernels.mamba_step import conv_step, dual_step, selective_step
from anyformer.parts.activation import ACTIVATIONS
from anyformer.parts.attention.attention import AttentionModule
from anyformer.parts.feedforward.mlp import GatedMLPModule, MLPModule
from anyformer.parts.feedforward.moe import ExpertsModule, MoEModule
from anyformer.parts.feedforward.routers import TopKModule
from anyformer.parts.norm import RMSNormModule
from anyformer.parts.position.rotary import RopeModule
from anyformer.parts.recurrent.mamba import ConvolvingModule, SelectiveStateModule
from anyformer.parts.recurrent.mamba2 import DualStateModule
from anyformer.parts.residual import ScaledModule
from anyformer.runtime.context import Context
from anyformer.runtime.stores import Static
from anyformer.stacks.block import ParallelModule
from anyformer.stacks.sublayer import SublayerModule, apply
from anyformer.transforms.pack import PackedLinear
from anyformer.transforms.quantize import FP8Linear, Int4Linear, Int8Linear, QuantizedLinear

NAMES = {function: name for name, function in ACTIVATIONS.items() if name in few_rows.ACTIVATIONS}


@dataclasses.dataclass
class Used:
    """Which residual steps run as fused kernels."""

    fused: int = 0  # number of fused residual steps
    others: Counter[str] = dataclasses.field(default_factory=Counter)  # number of others, by reason

    def __str__(self) -> str:
        others = "; ".join(f"{count} not: {why}" for why, count in self.others.items())
        return f"{self.fused} of {self.fused + self.others.total()} residual steps fused" + (others and f" ({others})")


@contextlib.contextmanager
def decode_kernels(model: nn.Module, rows: int) -> Iterator[Used]:
    """Use fused kernels for decoding steps of `rows` rows inside the block, if the device has them."""
    used, before = Used(), []
    like = next(model.parameters())
    if few_rows.fits(like, rows) and not torch.is_autocast_enabled("cuda"):
        for module in list(model.modules()):
            kind = KINDS.get(type(module))
            why = obstacle(module, rows) if isinstance(module, SublayerModule) else None
            if why is not None:
                used.others[why] += 1
            used.fused += isinstance(module, SublayerModule) and why is None
            if kind is not None and why is None:
                before.append((module, type(module)))
                module.__class__ = kind
    else:
        used.others.update(f"{rows} rows of {like.dtype}" for m in model.modules() if isinstance(m, SublayerModule))
    try:
        yield used
    finally:
        for module, kind in before:
            module.__class__ = kind


# -- what can be fused -------------------------------------------------------------------------------------------------


def obstacle(step: SublayerModule, rows: int) -> str | None:
    """Return the reason why a residual step of this many rows has no fused kernel, or None."""
    op: Any = step.op
    if type(step) is not SublayerModule or step.skip is not None:
        return "an unusual residual step"
    if step.pre_norm is not None and norm_weights(step.pre_norm) is None:
        return f"{type(step.pre_norm).__name__} before {type(op).__name__}"
    if (why := op_obstacle(op, rows)) is not None:
        return why
    dtype, first = weight_dtype(op), next(op.parameters(), None)
    if step.fp32_stream and (first is None or first.dtype != dtype):  # the stream is rounded to the first type
        return f"{type(op).__name__} with several dtypes"
    norm = None if step.pre_norm is None else getattr(step.pre_norm, "weight", None)
    if norm is not None and dtype.is_floating_point and dtype.itemsize > 1 and norm.dtype != dtype:
        return "a norm with a different dtype than the next layer"
    return None


def op_obstacle(op: Any, rows: int) -> str | None:
    """Return the reason why the op of a residual step has no fused kernel, or None."""
    if type(op) is MoEModule:
        return experts_obstacle(op)
    layers = LAYERS.get(type(op))
    if layers is None:
        return type(op).__name__
    linears = [getattr(op, name) for name in layers]
    if not all(is_plain(layer, rows) for layer in linears) or len({layer.weight.dtype for layer in linears}) > 1:
        return f"a layer of {type(op).__name__} is not a plain one"
    if isinstance(op, ConvolvingModule) and (isinstance(linears[0], QuantizedLinear) or type(op.conv) is not nn.Conv1d):
        return f"a layer of {type(op).__name__} is not a plain one"
    if isinstance(op, DualStateModule):
        types = {weight.dtype for weight in op.norm.parameters()} - {linears[0].weight.dtype}
        if types or norm_weights(op.norm) is None:
            return f"{type(op.norm).__name__} in {type(op).__name__}"
    if not isinstance(op, AttentionModule) and op.activation not in NAMES:
        return "an activation without a kernel"
    if isinstance(op, AttentionModule) and op.position is not None and op.position.turns_stream:
        return f"{type(op.position).__name__} rotates the stream"
    return None


def experts_obstacle(op: MoEModule) -> str | None:
    experts = op.experts
    weights = list(experts.parameters(recurse=False))
    if type(experts) is not ExpertsModule or not all(weight.is_contiguous() for weight in weights):
        return "an unusual kind of experts"
    if len({weight.dtype for weight in weights}) > 1:
        return "experts with several dtypes"
    return None if experts.activation in NAMES else "an activation without a kernel"


def weight_dtype(op: Any) -> torch.dtype:
    return op.experts.up.dtype if isinstance(op, MoEModule) else getattr(op, LAYERS[type(op)][0]).weight.dtype


LAYERS: dict[type, tuple[str, ...]] = {
    AttentionModule: ("q", "k", "v", "o"),
    GatedMLPModule: ("gate", "up", "down"),
    MLPModule: ("up", "down"),
    SelectiveStateModule: ("up", "gate", "select", "step", "down"),
    DualStateModule: ("gate", "up", "step", "down"),
}


def is_plain(layer: Any, rows: int) -> bool:
    """Whether a layer is only a product with a weight. For one row, the weight may be quantized."""
    kinds = (nn.Linear, PackedLinear, FewRowsLinear)
    few_bits = rows == 1 and isinstance(layer, QuantizedLinear)
    return (type(layer) in kinds or few_bits) and layer.weight.is_contiguous()


def linear(x: Tensor, *layers: Any, **options: Any) -> Tensor:
    """Apply parallel linear layers to x (B, D) and concatenate their outputs."""
    if isinstance(layers[0], QuantizedLinear):
        options["scales"] = [layer.scale for layer in layers]
        options["offsets"] = [layer.offset for layer in layers if layer.offset is not None]
    return few_rows.linear(x, [layer.weight for layer in layers], [layer.bias for layer in layers], **options)


def norm_weights(norm: Any) -> NormWeights | None:
    """Return the weights of a norm for a kernel; None if the norm is not supported or too wide."""
    if isinstance(norm, RMSNormModule):
        weights = NormWeights("rms", norm.weight, None, norm.eps)
    elif type(norm) in (nn.LayerNorm, FewRowsLayerNorm) and len(norm.normalized_shape) == 1:
        weights = NormWeights("layer", norm.weight, norm.bias, norm.eps)
    else:
        return None
    return weights if weights.weight is None or len(weights.weight) <= few_rows.WIDEST else None


def takes(x: Tensor, like: Tensor | None = None) -> bool:
    """Whether x is one token per row and has few enough rows; `like` is a weight (default: dtype and device of x)."""
    return x.dim() == 3 and x.shape[1] == 1 and few_rows.fits(x if like is None else like, x.shape[0])


def remembers(op: ConvolvingModule, x: Tensor, ctx: Context) -> bool:
    """Whether the state of a recurrence is updated in place, and no row has padding or a new document."""
    store = ctx.store(op.address)
    in_place = store is not None and store.static and all(len(held) == len(x) for held in store.tensors.values())
    return in_place and ctx.is_token is None and ctx.documents is None


# -- modules that use the kernels --------------------------------------------------------------------------------------


class FewRowsLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        rows = x.numel() // max(x.shape[-1], 1)
        if x.dtype != self.weight.dtype or not few_rows.fits(x, rows) or not self.weight.is_contiguous():
            return super().forward(x)
        flat = x.reshape(rows, x.shape[-1])
        return few_rows.linear(flat, [self.weight], [self.bias]).view(*x.shape[:-1], self.out_features)


class FewRowsQuantized(QuantizedLinear):
    def forward(self, x: Tensor) -> Tensor:
        if not few_rows.fits(x, 1) or x.numel() != self.in_features:
            return super().forward(x)
        return linear(x.reshape(1, -1), self).view(*x.shape[:-1], self.out_features)


class FewRowsInt8(FewRowsQuantized, Int8Linear):
    pass


class FewRowsFP8(FewRowsQuantized, FP8Linear):
    pass


class FewRowsInt4(FewRowsQuantized, Int4Linear):
    pass


class FewRowsNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        norm, rows = norm_weights(self), x.numel() // max(x.shape[-1], 1)
        mixed = norm is None or (norm.weight is not None and norm.weight.dtype != x.dtype)
        if norm is None or mixed or not few_rows.fits(x, 1) or rows > 4096:
            return super().forward(x)
        return few_rows.norm_rows(x.reshape(rows, x.shape[-1]), norm).view(x.shape)


class FewRowsLayerNorm(FewRowsNorm, nn.LayerNorm):
    pass


class FewRowsRMSNorm(FewRowsNorm, RMSNormModule):
    pass


class FewRowsSublayer(SublayerModule):
    def forward(self, x: Tensor, ctx: Context, shortcut: Tensor | None = None) -> Tensor:
        shortcut = x if shortcut is None else shortcut
        like = next(self.op.parameters()) if self.fp32_stream else x
        if self.is_skipped(ctx) or ctx.taps is not None or not takes(x, like):
            return super().forward(x, ctx, shortcut)
        if isinstance(self.op, ConvolvingModule) and not remembers(self.op, x, ctx):
            return super().forward(x, ctx, shortcut)
        adds = (
            self.post_norm is None
            and isinstance(self.residual, ScaledModule)
            and (self.residual.plain or self.fp32_stream)
        )
        shortcut = shortcut.float() if self.fp32_stream else shortcut
        op = OPS.get(type(self.op), feedforward)
        norm = None if self.pre_norm is None else norm_weights(self.pre_norm)
        y = op(self.op, x[:, 0], norm, shortcut[:, 0] if adds else None, ctx)[:, None]
        if not adds:
            y = y if self.post_norm is None else apply(self.post_norm, ctx, y)
            y = apply(self.residual, ctx, shortcut, y)
        return y if self.out_norm is None else apply(self.out_norm, ctx, y)


class FewRowsParallel(ParallelModule):
    """Parallel residual steps: all read x, and each adds its branch to the sum so far."""

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        steps = list(self.children())
        if not takes(x) or not all(isinstance(step, FewRowsSublayer) for step in steps):
            return super().forward(x, ctx)
        y = x
        for step in steps:
            y = step(x, ctx, y)
        return y


KINDS: dict[type, type] = {
    nn.Linear: FewRowsLinear,
    PackedLinear: FewRowsLinear,
    Int8Linear: FewRowsInt8,
    FP8Linear: FewRowsFP8,
    Int4Linear: FewRowsInt4,
    nn.LayerNorm: FewRowsLayerNorm,
    RMSNormModule: FewRowsRMSNorm,
    SublayerModule: FewRowsSublayer,
    ParallelModule: FewRowsParallel,
}


def feedforward(op: Any, x: Tensor, norm: NormWeights | None, shortcut: Tensor | None, ctx: Context) -> Tensor:
    """(B, D) -> (B, D)"""
    gated = isinstance(op, GatedMLPModule)
    layers = (op.gate, op.up) if gated else (op.up,)
    inner = linear(x, *layers, norm=norm, activation=NAMES[op.activation], gated=gated)
    return linear(inner, op.down, onto=shortcut)


def attention(
    op: AttentionModule, x: Tensor, norm: NormWeights | None, shortcut: Tensor | None, ctx: Context
) -> Tensor:
    """(B, D) -> (B, D)"""
    layers = [op.q] if op.part.memory else [op.q, op.k, op.v]
    found = linear(x, *layers, norm=norm)
    if op.part.memory:
        mixed = op.mix(by_head(found, op.head_width), None, None, ctx)
    elif turns_and_keeps(op, ctx):
        mixed = append_and_attend(op, found, ctx)
    else:
        q, k, v = found.split([layer.out_features for layer in layers], dim=1)
        heads = by_head(q, op.head_width), by_head(k, op.head_width), by_head(v, op.value_width)
        mixed = op.mix(*heads, ctx)
    return linear(mixed[:, 0], op.o, onto=shortcut)


def selective_state(
    op: SelectiveStateModule, x: Tensor, norm: NormWeights | None, shortcut: Tensor | None, ctx: Context
) -> Tensor:
    """(B, D) -> (B, D)"""
    store = ctx.store(op.address)
    assert store is not None
    both = linear(x, op.up, op.gate, norm=norm)  # (B, 2 I)
    mixed = conv_step(both, op.conv.weight, op.conv.bias, store.tensors["window"], NAMES[op.activation])
    chosen, gate = linear(mixed, op.select), both[:, op.part.width :]
    by_channel = op.step.weight, op.step_bias, op.rate, op.skip
    return linear(selective_step(mixed, gate, chosen, *by_channel, store.tensors["state"]), op.down, onto=shortcut)


def dual_state(
    op: DualStateModule, x: Tensor, norm: NormWeights | None, shortcut: Tensor | None, ctx: Context
) -> Tensor:
    """(B, D) -> (B, D)"""
    store, part, behind = ctx.store(op.address), op.part, norm_weights(op.norm)
    assert store is not None and behind is not None
    gate, up, step = linear(x, op.gate, op.up, op.step, norm=norm).split(
        [op.sizes[0], sum(op.sizes), part.num_heads], dim=1
    )
    mixed = conv_step(up, op.conv.weight, op.conv.bias, store.tensors["window"], NAMES[op.activation])
    limits = part.step_low, math.inf if part.step_high is None else part.step_high
    y = dual_step(mixed, gate, step, op.step_bias, op.rate, op.skip, store.tensors["state"], limits)
    return linear(few_rows.norm_rows(y, behind), op.down, onto=shortcut)


def experts(op: MoEModule, x: Tensor, norm: NormWeights | None, shortcut: Tensor | None, ctx: Context) -> Tensor:
    """(B, D) -> (B, D)"""
    inside, dtype = op.experts, weight_dtype(op)
    assert inside.activation is not None  # see `experts_obstacle`
    x = x.to(dtype) if norm is None else few_rows.norm_rows(x, norm, dtype)
    chosen, weights = route(op, x, ctx)
    layers = inside.up, inside.up_bias, inside.down
    sums = few_experts.expert_rows(x, chosen, *layers, NAMES[inside.activation], inside.gated)
    shared = None
    if op.shared is not None:
        fused = op_obstacle(op.shared, len(x)) is None
        shared = feedforward(op.shared, x, None, None, ctx) if fused else op.shared(x[:, None], ctx)[:, 0]
    return few_experts.combine(sums, chosen, weights, inside.down_bias, inside.num_experts, dtype, shared, shortcut)


def route(op: MoEModule, x: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
    """Return the experts of each row (B, k) and their weights (B, k), given x (B, D)."""
    if not chooses_plainly(op.router, x.dtype):
        routing = op.router(x[:, None], ctx)
        return routing.experts, routing.weights
    logits, part = few_rows.linear(x, [op.router.weight], [op.router.bias]), op.router.part
    return few_experts.choose(logits, part.top_k, part.score, part.normalize, part.scale)


def chooses_plainly(router: Any, dtype: torch.dtype) -> bool:
    """Whether the router is a plain top-k, without groups or correction, in the model's dtype."""
    if type(router) is not TopKModule or router.part.groups > 1 or router.part.float32:
        return False
    few = len(router.weight) <= few_experts.MOST_EXPERTS
    return few and router.correction is None and router.weight.dtype == dtype and router.weight.is_contiguous()


OPS: dict[type, Any] = {  # all others are feed-forwards
    AttentionModule: attention,
    SelectiveStateModule: selective_state,
    DualStateModule: dual_state,
    MoEModule: experts,
}


def by_head(x: Tensor, width: int) -> Tensor:
    """(B, H K) -> (B, H, 1, K)"""
    return x.unflatten(1, (-1, width))[:, :, None]


def turns_and_keeps(op: AttentionModule, ctx: Context) -> bool:
    """Whether attention has rotary positions or none, no further change of queries and keys, and a static cache."""
    plain = op.q_norm is None and not op.query_changes and op.value_width == op.head_width
    turned = op.position is None or type(op.position) is RopeModule
    return plain and turned and isinstance(ctx.store(op.address), Static)


def append_and_attend(op: AttentionModule, qkv: Tensor, ctx: Context) -> Tensor:
    store = ctx.store(op.address)
    assert isinstance(store, Static)
    columns, places = store.reserve(ctx.index, ctx.once)
    angles, interleaved = None, False
    if isinstance(op.position, RopeModule):
        rope = op.position
        angles = ctx.once(f"{rope.key} of pairs", lambda: rope.tables(ctx, qkv.dtype))
        interleaved = rope.part.interleaved
    heads, keys, values = (op.part.num_heads, op.num_kv_heads, op.head_width), store.tensors["k"], store.tensors["v"]
    new = (qkv, heads, angles, interleaved, keys, values, columns)
    fused = op.plan(ctx).chosen_kernel() == "sdpa"
    if fused and ctx.bias is None and attends_new(heads, keys):
        return attend_new(*new, ctx.visible(op.part.mask, op.mask_key, places).dense(), op.scale)
    return op.attend(few_rows.rotate_append(*new), keys, values, places, ctx)
