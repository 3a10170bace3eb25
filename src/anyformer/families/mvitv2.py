"""MViT v2 [Li et al. 2022] for images. The class is timm's, whose config.json does not describe the model: our fields
are its arguments, many of them lists with one entry per stage."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Absent, Fixed, Ignored
from anyformer.families.base.template import Class, Config, Entry
from anyformer.families.shared import mvit
from anyformer.parts import (
    FirstToken, GridPool, GridVectors, LayerNorm, Learned, MLP, MeanColumns, MeanTokens, Model, PatchEmbedding, Pool,
    PooledAttention, PrefixTokens,
)  # fmt: skip
from anyformer.runtime.grid import Sides
from anyformer.specs.messages import quote
from anyformer.weights.rules import Rename, Reshape, Rule

MODES: dict[str, mvit.By] = {"conv": "convolution", "max": "max", "avg": "mean"}


def adaptive_strides(stride_q: Sequence[Sequence[int]], first: Sequence[int]) -> list[list[int]]:
    """Return the key stride of each stage: smaller if the grid is already coarser."""
    strides, stride = [], list(first)
    for each in stride_q:
        stride = [max(a // b, 1) for a, b in zip(stride, each, strict=True)] if min(each) > 1 else stride
        strides.append(stride)
    return strides


def describe(c: Config) -> Model:
    count, norm = len(c.depths), LayerNorm(eps=c.norm_eps)
    if c.mode not in MODES:
        raise ValueError(f"mode={quote(c.mode)} is not supported; valid: {', '.join(MODES)}")
    widths, all_heads = (
        [value * 2**i for i in range(count)] if isinstance(value, int) else list(value)
        for value in (c.embed_dim, c.num_heads)
    )
    stride_kv = adaptive_strides(c.stride_q, c.stride_kv_adaptive) if c.stride_kv is None else c.stride_kv
    if {len(values) for values in (widths, all_heads, c.stride_q, stride_kv)} != {count}:
        raise ValueError(f"embed_dim, num_heads, stride_q and stride_kv need one entry per stage of depths {c.depths}")
    if c.global_pool not in (None, "token", "avg"):
        raise ValueError(f"global_pool={quote(c.global_pool)} is not supported; valid: token, avg")
    first = c.use_cls_token if c.global_pool is None else c.global_pool == "token"
    take = FirstToken() if first else MeanColumns(skip=1) if c.use_cls_token else MeanTokens()
    embedding = PatchEmbedding(
        image_size=tuple(c.img_size),
        patch_size=tuple(c.patch_stride),
        kernel=tuple(c.patch_kernel),
        edge=tuple(c.patch_padding),
        channels=c.in_chans,
        pad=False,
        prefix=(PrefixTokens(),) * c.use_cls_token,
    )
    if c.use_abs_pos:
        length = math.prod(embedding.grid)
        embedding = embedding.replace(position=Learned(length=length, offset=embedding.num_prefix))
    grid, blocks = [n // step for n, step in zip(c.img_size, c.patch_stride, strict=True)], []
    if c.rel_pos_type == "spatial" and grid[0] != grid[1]:
        raise ValueError(f"rel_pos_type='spatial' needs a square grid of patches, got {grid[0]} x {grid[1]}")
    for stage, depth in enumerate(c.depths):
        for i in range(depth):
            width = widths[max(stage - (c.expand_attn and not i), 0)]
            out = widths[min(stage + (not c.expand_attn and i == depth - 1), count - 1)]
            stride_q, inner = c.stride_q[stage] if i == 0 else (1, 1), out if c.expand_attn else width
            finest = max(grid[0] // stride[1] for stride in (stride_q, stride_kv[stage]))
            attention = PooledAttention(
                num_heads=all_heads[stage],
                out=inner if inner != width else None,
                bias="qkvo" if c.qkv_bias else "o",
                add_queries="all" if c.residual_pooling else "none",
                queries=mvit.pool(c.kernel_qkv, stride_q, MODES[c.mode], norm),
                keys=mvit.pool(c.kernel_qkv, stride_kv[stage], MODES[c.mode], norm),
                position=GridVectors(size=(finest, finest)) if c.rel_pos_type == "spatial" else None,
            )
            mlp = MLP(width=int(inner * c.mlp_ratio), out=out if out != inner else None)
            blocks.append(mvit.block(attention, mlp, norm, 0.0, c.drop_path_rate))
            grid = [n // step for n, step in zip(grid, stride_q, strict=True)]
    return mvit.model(widths[0], embedding, blocks, norm, c.num_labels, Pool(take=take, dropout=c.drop_rate))


def stages(spec: Model) -> list[int]:
    """Return the number of layers per stage. A new stage has different heads, pooling or width."""
    depths: list[int] = []
    before, widened = None, False
    for attention, mlp in mvit.layers(spec):
        kind = attention.num_heads, mvit.sides(attention.keys, "stride")
        if kind != before or attention.reshapes or widened:
            depths.append(0)
        depths[-1] += 1
        before, widened = kind, mlp.reshapes
    return depths


def per_stage(read: Callable[[Any, int], Any]) -> Callable[[Any], list[Any]]:
    """Return a path function that lists `read(attention, output width)` of each stage's first layer."""

    def recover(spec: Model) -> list[Any]:
        ops, widths, depths = [*mvit.layers(spec)], mvit.channels(spec), stages(spec)
        first = [sum(depths[:i]) for i in range(len(depths))]
        return [read(ops[i][0], ops[i][0].out_width(widths[i])) for i in first]

    return recover


def ratio(spec: Model) -> float:
    """Return the ratio of the widest layer; the widths of the others are rounded down."""
    return max(
        (mlp.width, mlp.width / attention.out_width(width))
        for (attention, mlp), width in zip(mvit.layers(spec), mvit.channels(spec), strict=False)
    )[1]


def first_pool(spec: Model) -> GridPool:
    """Return the pooling of the first layer that has one; all layers use the same kernel and mode."""
    for attention, _ in mvit.layers(spec):
        if (pool := attention.queries or attention.keys) is not None:
            return pool
    raise Absent


def stride(pool: GridPool | None) -> Sides:
    return mvit.sides(pool, "stride") or (1, 1)


UNREAD = "not read by the published class"

CONFIG: dict[str, Any] = {
    "problem_type": None,
    "img_size": Entry((224, 224), "embedding.image_size"),
    "in_chans": Entry(3, "embedding.channels"),
    "num_labels": Entry(1000, "head.num_labels"),
    "global_pool": Entry(None, lambda spec: "token" if isinstance(spec.head.pool.take, FirstToken) else "avg"),
    "drop_rate": Entry(0.0, "head.pool.dropout"),
    "drop_path_rate": Entry(0.0, f"{mvit.OUT}.drop_path"),
    "depths": Entry((2, 3, 16, 3), stages),
    "embed_dim": Entry(96, per_stage(lambda op, width: width)),
    "num_heads": Entry(1, per_stage(lambda op, width: op.num_heads)),
    "mlp_ratio": Entry(4.0, ratio),
    "expand_attn": Entry(True, lambda spec: not any(mlp.reshapes for _, mlp in mvit.layers(spec))),
    "qkv_bias": Entry(True, lambda spec: next(mvit.layers(spec))[0].bias == "qkvo"),
    "use_cls_token": Entry(False, lambda spec: spec.embedding.num_prefix == 1),
    "use_abs_pos": Entry(False, lambda spec: spec.embedding.position is not None),
    "residual_pooling": Entry(True, lambda spec: next(mvit.layers(spec))[0].add_queries == "all"),
    "mode": Entry("conv", lambda spec: next(name for name, by in MODES.items() if by == first_pool(spec).by)),
    "kernel_qkv": Entry((3, 3), lambda spec: first_pool(spec).kernel),
    "stride_q": Entry(((1, 1), (2, 2), (2, 2), (2, 2)), per_stage(lambda op, width: stride(op.queries))),
    "stride_kv": Entry(None, per_stage(lambda op, width: stride(op.keys))),
    "stride_kv_adaptive": Entry((4, 4)),
    "patch_kernel": Entry((7, 7), lambda spec: spec.embedding.kernels),
    "patch_stride": Entry((4, 4), "embedding.patch_size"),
    "patch_padding": Entry((3, 3), "embedding.edge"),
    "rel_pos_type": Entry(
        "spatial",
        lambda spec: "spatial" if next(mvit.layers(spec))[0].position else "none",
        choices=("spatial", "none", ""),
    ),
    "norm_eps": Entry(1e-6, "encoder.norm.eps"),
    "norm_layer": Fixed("layernorm", "only LayerNorm is supported"),
    "pool_first": Fixed(False, "the published class fails if it pools before the projections"),
    "pool_type": Ignored("max", UNREAD),
    "num_features": Ignored(None, "follows from the widths; timm writes it next to the name of a size"),
    "pretrained_cfg": Ignored(None, "the origin of the weights and the image preprocessing, written by timm"),
    "act_layer": Ignored("gelu", UNREAD),
}


def rules(spec: Model) -> list[Rule]:
    names = {"attn.proj": "attention.op.o", "mlp.fc1": "feedforward.op.up", "mlp.fc2": "feedforward.op.down"}
    names |= {"shortcut_proj_attn": "attention.skip.project", "shortcut_proj_mlp": "feedforward.skip.project"}
    for letter, name in mvit.POOLS.items():
        names |= {f"attn.pool_{letter}": f"attention.op.{name}.convolution"}
        names |= {f"attn.norm_{letter}": f"attention.op.{name}.norm"}
    rules: list[Rule] = [
        Rename("patch_embed.proj.{p}", "embedding.patch.{p}"),
        Rename("cls_token", "embedding.prefix.0.weight"),
        Reshape("pos_embed", "embedding.position.weight", (1, -1, spec.width)),
        Rename("norm.{p}", "encoder.norm.{p}"),
        Rename("head.fc.{p}", "head.out.{p}"),
    ]
    blocks = [(stage, i) for stage, depth in enumerate(stages(spec)) for i in range(depth)]
    for layer, (stage, i) in enumerate(blocks):
        rules += mvit.block_rules(f"stages.{stage}.blocks.{i}", f"encoder.layers.{layer}", names)
    return rules


def size(published: float, *depths: int, **more: Any) -> Size:
    return Size({"depths": depths, **more}, published)


LARGE = {"embed_dim": 144, "num_heads": 2}

MVITV2 = Family(
    name="mvitv2",
    about="image encoders with pooling attention",
    template=describe,
    config=CONFIG,
    weights=rules,
    classes={"MultiScaleVit": Class()},
    aliases={"num_classes": "num_labels"},
    library="timm",
    sizes={
        "mvitv2-tiny": size(24.2e6, 1, 2, 5, 2),
        "mvitv2-small": size(34.9e6, 1, 2, 11, 2),
        "mvitv2-base": size(51.5e6, 2, 3, 16, 3),
        "mvitv2-large": size(218e6, 2, 6, 36, 4, **LARGE, expand_attn=False),
        "mvitv2-base-cls": size(65.4e6, 2, 3, 16, 3, use_cls_token=True, num_labels=19168),
        "mvitv2-large-cls": size(234.6e6, 2, 6, 36, 4, **LARGE, use_cls_token=True, num_labels=19168),
        "mvitv2-huge-cls": size(694.8e6, 4, 8, 60, 8, embed_dim=192, num_heads=3, use_cls_token=True, num_labels=19168),
    },
)
