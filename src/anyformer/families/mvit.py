"""MViT [Fan et al. 2021, Li et al. 2022] for videos: one stack; its pooling attention makes the grid coarser and the
stream wider. The class is torchvision's, which writes no config.json: our fields are its arguments, and its
block settings are lists with one entry per block."""

from __future__ import annotations

import math
from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.template import Class, Config, Entry
from anyformer.families.shared import mvit
from anyformer.parts import (
    FirstToken, GridVectors, LayerNorm, MLP, Model, Pool, PooledAttention, PrefixTokens, SeparableLearned,
    VideoEmbedding,
)  # fmt: skip
from anyformer.weights.rules import Rename, Reshape, Rule

LISTS = ("num_heads", "input_channels", "output_channels", "kernel_q", "kernel_kv", "stride_q", "stride_kv")


def describe(c: Config) -> Model:
    settings = {name: getattr(c, name) for name in LISTS}
    if len({len(values) for values in settings.values()}) > 1 or not c.num_heads:
        raise ValueError(f"{', '.join(LISTS)} must be lists of equal length, with one entry per block")
    if list(c.input_channels[1:]) != list(c.output_channels[:-1]):
        raise ValueError(f"input_channels {c.input_channels} do not continue output_channels {c.output_channels}")
    norm = LayerNorm(eps=1e-6)
    grid = [n // step for n, step in zip((c.temporal_size, *c.spatial_size), c.patch_embed_stride, strict=True)]
    embedding = VideoEmbedding(
        frames=c.temporal_size,
        image_size=tuple(c.spatial_size),
        pad=False,
        prefix=(PrefixTokens(),),
        frame_step=c.patch_embed_stride[0],
        patch_size=tuple(c.patch_embed_stride[1:]),
        frame_kernel=c.patch_embed_kernel[0],
        kernel=tuple(c.patch_embed_kernel[1:]),
        frame_edge=c.patch_embed_padding[0],
        edge=tuple(c.patch_embed_padding[1:]),
    )
    if list(embedding.grid) != grid:
        raise ValueError(f"patch_embed_* fields give a grid of {tuple(embedding.grid)} patches, not {tuple(grid)}")
    if not c.rel_pos_embed:
        learned = SeparableLearned(length=math.prod(grid), frames=grid[0], offset=1)
        embedding = embedding.replace(position=learned)
    blocks = []
    for heads, width, out, kernel_q, kernel_kv, stride_q, stride_kv in zip(*settings.values(), strict=True):
        position = None
        if c.rel_pos_embed:
            finest = max(max(grid[1:]) // (stride[1] if stride else 1) for stride in (stride_q, stride_kv))
            position = GridVectors(size=(grid[0], finest, finest))
        inner = out if c.proj_after_attn else width
        attention = PooledAttention(
            num_heads=heads,
            out=inner if inner != width else None,
            position=position,
            queries=mvit.pool(kernel_q, stride_q, "convolution", norm),
            keys=mvit.pool(kernel_kv, stride_kv, "convolution", norm),
            add_queries="none" if not c.residual_pool else "all" if c.residual_with_cls_embed else "rest",
        )
        mlp = MLP(width=4 * inner, out=out if out != inner else None, dropout=c.attention_dropout)
        blocks.append(mvit.block(attention, mlp, norm, c.attention_dropout, c.stochastic_depth_prob))
        grid = [n // step for n, step in zip(grid, stride_q or (1, 1, 1), strict=True)]
    return mvit.model(
        c.input_channels[0], embedding, blocks, norm, c.num_labels, Pool(take=FirstToken(), dropout=c.dropout)
    )


CONFIG: dict[str, Any] = {
    "problem_type": None,
    "spatial_size": Entry((224, 224), "embedding.image_size"),
    "temporal_size": Entry(16, "embedding.frames"),
    "num_heads": Entry((1,), mvit.per_block(lambda attention, mlp: attention.num_heads)),
    "input_channels": Entry((96,), lambda spec: mvit.channels(spec)[:-1]),
    "output_channels": Entry((96,), lambda spec: mvit.channels(spec)[1:]),
    "kernel_q": Entry(((),), mvit.per_block(lambda attention, mlp: mvit.sides(attention.queries, "kernel"))),
    "kernel_kv": Entry(((),), mvit.per_block(lambda attention, mlp: mvit.sides(attention.keys, "kernel"))),
    "stride_q": Entry(((),), mvit.per_block(lambda attention, mlp: mvit.sides(attention.queries, "stride"))),
    "stride_kv": Entry(((),), mvit.per_block(lambda attention, mlp: mvit.sides(attention.keys, "stride"))),
    "residual_pool": Entry(False, lambda spec: next(mvit.layers(spec))[0].add_queries != "none"),
    "residual_with_cls_embed": Entry(True, lambda spec: next(mvit.layers(spec))[0].add_queries == "all"),
    "rel_pos_embed": Entry(False, lambda spec: next(mvit.layers(spec))[0].position is not None),
    "proj_after_attn": Entry(False, lambda spec: any(attention.out for attention, _ in mvit.layers(spec))),
    "dropout": Entry(0.5, "head.pool.dropout"),
    "attention_dropout": Entry(0.0, f"{mvit.OUT}.dropout"),
    "stochastic_depth_prob": Entry(0.0, f"{mvit.OUT}.drop_path"),
    "num_labels": Entry(400, "head.num_labels"),
    "patch_embed_kernel": Entry((3, 7, 7), lambda spec: spec.embedding.kernels),
    "patch_embed_stride": Entry((2, 4, 4), lambda spec: spec.embedding.steps),
    "patch_embed_padding": Entry((1, 3, 3), lambda spec: spec.embedding.edges),
}


def rules(spec: Model) -> list[Rule]:
    theirs, ours = "blocks.{i}", "encoder.layers.{i}"
    names = {"attn.project.0": "attention.op.o", "mlp.0": "feedforward.op.up", "mlp.3": "feedforward.op.down"}
    for letter, name in mvit.POOLS.items():
        names |= {f"attn.pool_{letter}.pool": f"attention.op.{name}.convolution"}
        names |= {f"attn.pool_{letter}.norm_act.0": f"attention.op.{name}.norm"}
    return [
        Rename("conv_proj.{p}", "embedding.patch.{p}"),
        Reshape("pos_encoding.class_token", "embedding.prefix.0.weight", (spec.width,)),
        Reshape("pos_encoding.class_pos", "embedding.position.before", (spec.width,)),
        Rename("pos_encoding.temporal_pos", "embedding.position.frames"),
        Rename("pos_encoding.spatial_pos", "embedding.position.places"),
        *mvit.block_rules(theirs, ours, names),
        Rename(f"{theirs}.project.{{p}}", f"{ours}.attention.skip.project.{{p}}"),  # only one of the two exists
        Rename(f"{theirs}.project.{{p}}", f"{ours}.feedforward.skip.project.{{p}}"),
        Rename("norm.{p}", "encoder.norm.{p}"),
        Rename("head.1.{p}", "head.out.{p}"),
    ]


def size(wider: tuple[int, ...], v2: bool, published: float) -> Size:
    """A size with 16 blocks: blocks in `wider` double the channels, blocks 1, 3 and 14 halve the grid."""
    out, heads, every = [96], [1], [3, 3, 3]
    stride_kv = [8]
    for i in range(16):
        out.append(out[-1] * (2 if i in wider else 1))
        heads.append(heads[-1] * (2 if i + 1 in (1, 3, 14) else 1))
        stride_kv.append(stride_kv[-1] // (2 if i + 1 in (1, 3, 14) else 1))
    pooled = [i in (1, 3, 14) for i in range(16)]
    flags = {"residual_pool": v2, "rel_pos_embed": v2, "proj_after_attn": v2, "residual_with_cls_embed": False}
    lists = {
        "num_heads": heads[:16],
        "input_channels": out[:16],
        "output_channels": out[1:],
        "kernel_q": [every if v2 or here else [] for here in pooled],
        "kernel_kv": [every] * 16,
        "stride_q": [[1, 2, 2] if here else [1, 1, 1] if v2 else [] for here in pooled],
        "stride_kv": [[1, step, step] for step in stride_kv[:16]],
    }
    return Size({**lists, **flags, "stochastic_depth_prob": 0.2}, published, "for Kinetics-400: 16 frames of 224 x 224")


MVIT = Family(
    name="mvit",
    about="video encoders with pooling attention",
    template=describe,
    config=CONFIG,
    weights=rules,
    classes={"MViT": Class()},
    aliases={"num_classes": "num_labels"},
    library="torchvision",
    sizes={
        "mvit-v1-b": size((0, 2, 13), False, 36.6e6),
        "mvit-v2-s": size((1, 3, 14), True, 34.5e6),
    },
)
