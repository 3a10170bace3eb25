"""MViT [Fan et al. 2021, Li et al. 2022]: one stack whose attention pools, so that the stream gets coarser and wider.

Video models have the names of torchvision's `MViT` and of its block settings, one entry a block; image models those of
timm's `MultiScaleVit`, one entry a stage. Neither library writes a config.json: ours has their arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from anyformer.block import Block, Stack, Sublayer
from anyformer.families.family import ConfigField, Family, Field, Inert, Only, Size
from anyformer.model import EncoderModel, Model
from anyformer.parts.embed import Embedding
from anyformer.parts.feedforward import MLP
from anyformer.parts.grid import GridVectors, SeparableLearned, Sides
from anyformer.parts.head import ClassifyHead, Pool
from anyformer.parts.image import PatchEmbedding, VideoEmbedding
from anyformer.parts.init import Kaiming, Normal
from anyformer.parts.norm import LayerNorm
from anyformer.parts.pooling import GridPool, PooledAttention, Skip
from anyformer.parts.position import Learned
from anyformer.weights.rules import Rename, Reshape, Rule, Split

# -- what both are made of ---------------------------------------------------------------------------------------------


def pool(kernel: Sequence[int], stride: Sequence[int], by: str, norm: LayerNorm) -> GridPool | None:
    """None where published models pool nothing."""
    if math.prod(kernel) == 1 and math.prod(stride) == 1:
        return None
    kind: Any = by
    return GridPool(kernel=tuple(kernel), stride=tuple(stride), by=kind, norm=norm if by == "convolution" else None)


def block(attention: PooledAttention, mlp: MLP, norm: LayerNorm, dropout: float, drop_path: float) -> Block:
    """Where the stream gets wider, its projection reads what the norm made."""

    def step(op: PooledAttention | MLP) -> Sublayer:
        return Sublayer(
            pre_norm=norm, op=op, skip=Skip() if op.reshapes else None, normed_skip=op.out is not None,
            dropout=dropout, drop_path=drop_path,
        )  # fmt: skip

    return Block(attention=step(attention), feedforward=step(mlp))


def model(width: int, embedding: Embedding, blocks: list[Block], norm: LayerNorm, labels: int, pool: Pool) -> Model:
    kinds: dict[str, Block] = {}
    names = {block: "" for block in blocks}
    for each in names:
        what = "coarser" if any(math.prod(s.op.stride) > 1 for s in each.steps.values()) else "same"
        what = "wider" if each.reshapes and what == "same" else what
        names[each] = f"{what}_{sum(name.startswith(what) for name in kinds)}"
        kinds[names[each]] = each
    return EncoderModel(
        width=width, embedding=embedding,
        encoder=Stack(layers=kinds, pattern=tuple(names[each] for each in blocks), depth=len(blocks), norm=norm),
        head=ClassifyHead(num_labels=labels, pool=pool),
        init={"embedding.patch.weight": Kaiming(gain=3**-0.5, normal=False), "*": Normal(std=0.02)},
    )  # fmt: skip


def of_blocks(read: Callable[[Any, Any], Any]) -> Callable[[Any], list[Any]]:
    """Reads a list back: `read` is given the attention and the feed-forward of each layer."""
    return lambda spec: [read(*ops) for ops in layers(spec)]


def layers(spec: Any) -> Iterator[tuple[Any, Any]]:
    for i in range(spec.encoder.depth):
        steps = spec.encoder.layer(i).steps
        yield steps["attention"].op, steps["feedforward"].op


def sides(pool: GridPool | None, name: str) -> Sides:
    return () if pool is None else getattr(pool, name)


def plain(theirs: str, ours: str, names: dict[str, str]) -> list[Rule]:
    return [Rename(f"{theirs}.{a}.{{p}}", f"{ours}.{b}.{{p}}") for a, b in names.items()]


def block_rules(theirs: str, ours: str) -> list[Rule]:
    """What both libraries call the same."""
    qkv = [Split(f"{theirs}.attn.qkv.{p}", [f"{ours}.attention.op.{n}.{p}" for n in "qkv"]) for p in ("weight", "bias")]
    return [*qkv, *plain(theirs, ours, {"norm1": "attention.pre_norm", "norm2": "feedforward.pre_norm"})]


POOLS = {"q": "queries", "k": "keys", "v": "values"}
TABLES = {"rel_pos_t": "frames", "rel_pos_h": "rows", "rel_pos_w": "columns"}

# -- torchvision's -----------------------------------------------------------------------------------------------------

LISTS = ("num_heads", "input_channels", "output_channels", "kernel_q", "kernel_kv", "stride_q", "stride_kv")
OUT = "encoder.layers.0.attention"


def channels(spec: Any) -> list[int]:
    return spec.encoder.widths(spec.width)


def table_size(spec: Any) -> Any:
    return spec.encoder.layer(0).steps["attention"].op.position


VIDEO: dict[str, ConfigField] = {
    "spatial_size": Field((224, 224), "embedding.image_size"),
    "temporal_size": Field(16, "embedding.frames"),
    "num_heads": Field((1,), of_blocks(lambda attention, mlp: attention.num_heads)),
    "input_channels": Field((96,), lambda spec: channels(spec)[:-1]),
    "output_channels": Field((96,), lambda spec: channels(spec)[1:]),
    "kernel_q": Field(((),), of_blocks(lambda attention, mlp: sides(attention.queries, "kernel"))),
    "kernel_kv": Field(((),), of_blocks(lambda attention, mlp: sides(attention.keys, "kernel"))),
    "stride_q": Field(((),), of_blocks(lambda attention, mlp: sides(attention.queries, "stride"))),
    "stride_kv": Field(((),), of_blocks(lambda attention, mlp: sides(attention.keys, "stride"))),
    "residual_pool": Field(False, lambda spec: next(layers(spec))[0].add_queries != "none"),
    "residual_with_cls_embed": Field(True, lambda spec: next(layers(spec))[0].add_queries == "all"),
    "rel_pos_embed": Field(False, lambda spec: next(layers(spec))[0].position is not None),
    "proj_after_attn": Field(False, lambda spec: any(attention.out for attention, _ in layers(spec))),
    "dropout": Field(0.5, "head.pool.dropout"),
    "attention_dropout": Field(0.0, f"{OUT}.dropout"),
    "stochastic_depth_prob": Field(0.0, f"{OUT}.drop_path"),
    "num_labels": Field(400, "head.num_labels"),
    "patch_embed_kernel": Field((3, 7, 7), lambda spec: spec.embedding.kernels),
    "patch_embed_stride": Field((2, 4, 4), lambda spec: spec.embedding.steps),
    "patch_embed_padding": Field((1, 3, 3), lambda spec: spec.embedding.edges),
}


def describe_video(c: Any) -> Model:
    settings = {name: getattr(c, name) for name in LISTS}
    if len({len(values) for values in settings.values()}) > 1 or not c.num_heads:
        raise ValueError(f"{', '.join(LISTS)} have an entry for each block: as many in one as in the others")
    if list(c.input_channels[1:]) != list(c.output_channels[:-1]):
        raise ValueError(f"input_channels {c.input_channels} do not follow from output_channels {c.output_channels}")
    norm = LayerNorm(eps=1e-6)
    grid = [n // step for n, step in zip((c.temporal_size, *c.spatial_size), c.patch_embed_stride, strict=True)]
    embedding = VideoEmbedding(
        frames=c.temporal_size, image_size=tuple(c.spatial_size), pad=False, prefix=1,
        frame_step=c.patch_embed_stride[0], patch_size=tuple(c.patch_embed_stride[1:]),
        frame_kernel=c.patch_embed_kernel[0], kernel=tuple(c.patch_embed_kernel[1:]),
        frame_edge=c.patch_embed_padding[0], edge=tuple(c.patch_embed_padding[1:]),
    )  # fmt: skip
    if list(embedding.grid) != grid:
        raise ValueError(f"a video of {embedding.sides} is cut into {tuple(embedding.grid)} patches, not {tuple(grid)}")
    if not c.rel_pos_embed:
        position = SeparableLearned(length=math.prod(grid), frames=grid[0], offset=1)
        embedding = embedding.replace(position=position)
    blocks = []
    for heads, width, out, kernel_q, kernel_kv, stride_q, stride_kv in zip(*settings.values(), strict=True):
        position = None
        if c.rel_pos_embed:
            finest = max(max(grid[1:]) // (stride[1] if stride else 1) for stride in (stride_q, stride_kv))
            position = GridVectors(size=(grid[0], finest, finest))
        inner = out if c.proj_after_attn else width
        attention = PooledAttention(
            num_heads=heads, out=inner if inner != width else None, position=position,
            queries=pool(kernel_q, stride_q, "convolution", norm), keys=pool(kernel_kv, stride_kv, "convolution", norm),
            add_queries="none" if not c.residual_pool else "all" if c.residual_with_cls_embed else "rest",
        )  # fmt: skip
        mlp = MLP(width=4 * inner, out=out if out != inner else None, dropout=c.attention_dropout)
        blocks.append(block(attention, mlp, norm, c.attention_dropout, c.stochastic_depth_prob))
        grid = [n // step for n, step in zip(grid, stride_q or (1, 1, 1), strict=True)]
    return model(c.input_channels[0], embedding, blocks, norm, c.num_labels, Pool(take="first", dropout=c.dropout))


def video_rules(spec: Any) -> list[Rule]:
    theirs, ours = "blocks.{i}", "encoder.layers.{i}"
    names = {"attn.project.0": "attention.op.o", "mlp.0": "feedforward.op.up", "mlp.3": "feedforward.op.down"}
    for letter, name in POOLS.items():
        names |= {f"attn.pool_{letter}.pool": f"attention.op.{name}.convolution"}
        names |= {f"attn.pool_{letter}.norm_act.0": f"attention.op.{name}.norm"}
    return [
        Rename("conv_proj.{p}", "embedding.patch.{p}"),
        Reshape("pos_encoding.class_token", "embedding.prefix", (spec.width,)),
        Reshape("pos_encoding.class_pos", "embedding.position.before", (spec.width,)),
        Rename("pos_encoding.temporal_pos", "embedding.position.frames"),
        Rename("pos_encoding.spatial_pos", "embedding.position.places"),
        *block_rules(theirs, ours),
        *plain(theirs, ours, names),
        *[Rename(f"{theirs}.project.{{p}}", f"{ours}.{step}.skip.project.{{p}}") for step in ("attention", "feedforward")],
        *[Rename(f"{theirs}.attn.{a}", f"{ours}.attention.op.position.{b}") for a, b in TABLES.items()],
        Rename("norm.{p}", "encoder.norm.{p}"),
        Rename("head.1.{p}", "head.out.{p}"),
    ]


def video_size(wider: tuple[int, ...], v2: bool, published: float) -> Size:
    """16 blocks; those of `wider` leave twice the channels they read, and blocks 1, 3 and 14 a grid half as fine."""
    out, heads, every = [96], [1], [3, 3, 3]
    stride_kv = [8]
    for i in range(16):
        out.append(out[-1] * (2 if i in wider else 1))
        heads.append(heads[-1] * (2 if i + 1 in (1, 3, 14) else 1))
        stride_kv.append(stride_kv[-1] // (2 if i + 1 in (1, 3, 14) else 1))
    pooled = [i in (1, 3, 14) for i in range(16)]
    flags = {"residual_pool": v2, "rel_pos_embed": v2, "proj_after_attn": v2, "residual_with_cls_embed": False}
    lists = {
        "num_heads": heads[:16], "input_channels": out[:16], "output_channels": out[1:],
        "kernel_q": [every if v2 or here else [] for here in pooled], "kernel_kv": [every] * 16,
        "stride_q": [[1, 2, 2] if here else [1, 1, 1] if v2 else [] for here in pooled],
        "stride_kv": [[1, step, step] for step in stride_kv[:16]],
    }  # fmt: skip
    return Size({**lists, **flags, "stochastic_depth_prob": 0.2}, published, "for Kinetics-400, 16 frames of 224 x 224")


# -- timm's ------------------------------------------------------------------------------------------------------------

MODES = {"conv": "convolution", "max": "max", "avg": "mean"}


def stages(spec: Any) -> list[int]:
    """How many layers each stage has: one begins where heads, pooling or width are others."""
    found: list[int] = []
    before, widened = None, False
    for attention, mlp in layers(spec):
        kind = attention.num_heads, sides(attention.keys, "stride")
        if kind != before or attention.reshapes or widened:
            found.append(0)
        found[-1] += 1
        before, widened = kind, mlp.reshapes
    return found


def of_stages(read: Callable[[Any, Any, int], Any], last: bool = False) -> Callable[[Any], list[Any]]:
    """Reads a list back, of the first layer of each stage or of the last: its ops, and the width that leaves them."""

    def recover(spec: Any) -> list[Any]:
        found, ends = [], 0
        ops, widths = [*layers(spec)], channels(spec)
        for depth in stages(spec):
            at, ends = ends + (depth - 1 if last else 0), ends + depth
            found.append(read(*ops[at], (ops[at][0].out_width(widths[at]))))
        return found

    return recover


def ratio(spec: Any) -> float:
    """Of the widest layer: the others follow, rounded down."""
    return max((mlp.width, mlp.width / attention.out_width(width)) for (attention, mlp), width in
               zip(layers(spec), channels(spec), strict=False))[1]  # fmt: skip


def mode(spec: Any) -> str:
    found = next(pool for attention, _ in layers(spec) for pool in (attention.keys, attention.queries) if pool)
    return {by: name for name, by in MODES.items()}[found.by]


def kernel(spec: Any) -> Sides:
    return next(pool for attention, _ in layers(spec) for pool in (attention.keys, attention.queries) if pool).kernel


NOWHERE = "read nowhere in the published class"

IMAGE: dict[str, ConfigField] = {
    "img_size": Field((224, 224), "embedding.image_size"),
    "in_chans": Field(3, "embedding.channels"),
    "num_labels": Field(1000, "head.num_labels"),
    "global_pool": Field(None, lambda spec: "token" if spec.head.pool.take == "first" else "avg"),
    "drop_rate": Field(0.0, "head.pool.dropout"),
    "drop_path_rate": Field(0.0, f"{OUT}.drop_path"),
    "depths": Field((2, 3, 16, 3), stages),
    "embed_dim": Field(96, of_stages(lambda attention, mlp, width: width)),
    "num_heads": Field(1, of_stages(lambda attention, mlp, width: attention.num_heads)),
    "mlp_ratio": Field(4.0, ratio),
    "expand_attn": Field(True, lambda spec: not any(mlp.reshapes for _, mlp in layers(spec))),
    "qkv_bias": Field(True, lambda spec: next(layers(spec))[0].bias == "qkvo"),
    "use_cls_token": Field(False, lambda spec: spec.embedding.prefix == 1),
    "use_abs_pos": Field(False, lambda spec: spec.embedding.position is not None),
    "residual_pooling": Field(True, lambda spec: next(layers(spec))[0].add_queries == "all"),
    "mode": Field("conv", mode),
    "kernel_qkv": Field((3, 3), kernel),
    "stride_q": Field(((1, 1), (2, 2), (2, 2), (2, 2)), of_stages(lambda a, m, w: sides(a.queries, "stride") or (1, 1))),
    "stride_kv": Field(None, of_stages(lambda attention, mlp, width: sides(attention.keys, "stride") or (1, 1))),
    "stride_kv_adaptive": Field((4, 4)),
    "patch_kernel": Field((7, 7), lambda spec: spec.embedding.kernels),
    "patch_stride": Field((4, 4), "embedding.patch_size"),
    "patch_padding": Field((3, 3), "embedding.edge"),
    "rel_pos_type": Field("spatial", lambda spec: "spatial" if next(layers(spec))[0].position else "none"),
    "norm_eps": Field(1e-6, "encoder.norm.eps"),
    "norm_layer": Only("layernorm", "norms that are no LayerNorm"),
    "pool_first": Only(False, "pooling before the projections, which fails where it is published"),
    "pool_type": Inert("max", NOWHERE),
    "act_layer": Inert("gelu", NOWHERE),
}


def adaptive(stride_q: Sequence[Sequence[int]], first: Sequence[int]) -> list[Sequence[int]]:
    """Keys are pooled less where the grid is coarser already."""
    found, stride = [], list(first)
    for each in stride_q:
        stride = [max(a // b, 1) for a, b in zip(stride, each, strict=True)] if min(each) > 1 else stride
        found.append(stride)
    return found


def describe_image(c: Any) -> Model:
    count, norm = len(c.depths), LayerNorm(eps=c.norm_eps)
    if c.mode not in MODES:
        raise ValueError(f"mode {c.mode!r} is not supported; one of {', '.join(MODES)} is")
    widths, all_heads = (
        [value * 2**i for i in range(count)] if isinstance(value, int) else list(value)
        for value in (c.embed_dim, c.num_heads)
    )
    stride_kv = adaptive(c.stride_q, c.stride_kv_adaptive) if c.stride_kv is None else c.stride_kv
    if {len(values) for values in (widths, all_heads, c.stride_q, stride_kv)} != {count}:
        raise ValueError(f"depths {c.depths} and what else has an entry a stage name different numbers of stages")
    if c.global_pool not in (None, "token", "avg"):
        raise ValueError(f"global_pool {c.global_pool!r} is not supported; 'token' or 'avg' is")
    first = c.use_cls_token if c.global_pool is None else c.global_pool == "token"
    take: Any = "first" if first else "rest" if c.use_cls_token else "mean"
    embedding = PatchEmbedding(
        image_size=tuple(c.img_size), patch_size=tuple(c.patch_stride), kernel=tuple(c.patch_kernel),
        edge=tuple(c.patch_padding), channels=c.in_chans, pad=False, prefix=int(c.use_cls_token),
    )  # fmt: skip
    if c.use_abs_pos:
        length = math.prod(embedding.grid)
        embedding = embedding.replace(position=Learned(length=length, offset=embedding.prefix))
    grid, blocks = [n // step for n, step in zip(c.img_size, c.patch_stride, strict=True)], []
    if c.rel_pos_type == "spatial" and grid[0] != grid[1]:
        raise ValueError(f"rel_pos_type 'spatial' is for square grids, and this one is {grid[0]} x {grid[1]}")
    for stage, depth in enumerate(c.depths):
        for i in range(depth):
            width = widths[max(stage - (c.expand_attn and not i), 0)]
            out = widths[min(stage + (not c.expand_attn and i == depth - 1), count - 1)]
            stride_q, inner = c.stride_q[stage] if i == 0 else (1, 1), out if c.expand_attn else width
            finest = max(grid[0] // stride[1] for stride in (stride_q, stride_kv[stage]))
            attention = PooledAttention(
                num_heads=all_heads[stage], out=inner if inner != width else None,
                bias="qkvo" if c.qkv_bias else "o", add_queries="all" if c.residual_pooling else "none",
                queries=pool(c.kernel_qkv, stride_q, MODES[c.mode], norm),
                keys=pool(c.kernel_qkv, stride_kv[stage], MODES[c.mode], norm),
                position=GridVectors(size=(finest, finest)) if c.rel_pos_type == "spatial" else None,
            )  # fmt: skip
            mlp = MLP(width=int(inner * c.mlp_ratio), out=out if out != inner else None)
            blocks.append(block(attention, mlp, norm, 0.0, c.drop_path_rate))
            grid = [n // step for n, step in zip(grid, stride_q, strict=True)]
    return model(widths[0], embedding, blocks, norm, c.num_labels, Pool(take=take, dropout=c.drop_rate))


def image_rules(spec: Any) -> list[Rule]:
    names = {"attn.proj": "attention.op.o", "mlp.fc1": "feedforward.op.up", "mlp.fc2": "feedforward.op.down"}
    names |= {"shortcut_proj_attn": "attention.skip.project", "shortcut_proj_mlp": "feedforward.skip.project"}
    for letter, name in POOLS.items():
        names |= {f"attn.pool_{letter}": f"attention.op.{name}.convolution", f"attn.norm_{letter}": f"attention.op.{name}.norm"}
    found: list[Rule] = [
        Rename("patch_embed.proj.{p}", "embedding.patch.{p}"),
        Rename("cls_token", "embedding.prefix"),
        Reshape("pos_embed", "embedding.position.weight", (1, -1, spec.width)),
        Rename("norm.{p}", "encoder.norm.{p}"),
        Rename("head.fc.{p}", "head.out.{p}"),
    ]
    places = [(stage, i) for stage, depth in enumerate(stages(spec)) for i in range(depth)]
    for layer, (stage, i) in enumerate(places):
        theirs, ours = f"stages.{stage}.blocks.{i}", f"encoder.layers.{layer}"
        found += [*block_rules(theirs, ours), *plain(theirs, ours, names)]
        found += [Rename(f"{theirs}.attn.{a}", f"{ours}.attention.op.position.{b}") for a, b in TABLES.items()]
    return found


def image_size(published: float, *depths: int, **more: Any) -> Size:
    return Size({"depths": depths, **more}, published)


LARGE = {"embed_dim": 144, "num_heads": 2}

FAMILIES = (
    Family(
        name="mvit",
        about="encoders of videos whose grid gets coarser and wider",
        fields=VIDEO,
        describe=describe_video,
        rules=video_rules,
        architectures=("MViT",),
        aliases={"num_classes": "num_labels"},
        library="torchvision",
        sizes={
            "mvit-v1-b": video_size((0, 2, 13), False, 36.6e6),
            "mvit-v2-s": video_size((1, 3, 14), True, 34.5e6),
        },
    ),
    Family(
        name="mvitv2",
        about="encoders of images whose grid gets coarser and wider",
        fields=IMAGE,
        describe=describe_image,
        rules=image_rules,
        architectures=("MultiScaleVit",),
        aliases={"num_classes": "num_labels"},
        library="timm",
        sizes={
            "mvitv2-tiny": image_size(24.2e6, 1, 2, 5, 2),
            "mvitv2-small": image_size(34.9e6, 1, 2, 11, 2),
            "mvitv2-base": image_size(51.5e6, 2, 3, 16, 3),
            "mvitv2-large": image_size(218e6, 2, 6, 36, 4, **LARGE, expand_attn=False),
            "mvitv2-base-cls": image_size(65.4e6, 2, 3, 16, 3, use_cls_token=True, num_labels=19168),
            "mvitv2-large-cls": image_size(234.6e6, 2, 6, 36, 4, **LARGE, use_cls_token=True, num_labels=19168),
            "mvitv2-huge-cls": image_size(694.8e6, 4, 8, 60, 8, embed_dim=192, num_heads=3, use_cls_token=True,
                                          num_labels=19168),
        },
    ),
)  # fmt: skip
