"""Swin [Liu et al. 2021]: stages of shifted-window attention, each on a grid half as fine and with twice the width."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Ignored
from anyformer.families.base.template import Class, Config, activation, choice, entry
from anyformer.families.shared.vision import BACKBONE, EMBEDDING_WEIGHTS, IMAGES, patches, pixel_class
from anyformer.parts import (
    Attention, Block, ClassifyHead, EncoderModel, GridBias, LayerNorm, Learned, MLP, MeanTokens, Merge, Model, Normal,
    PatchEmbedding, Pool, PooledOutput, Stack, Stages, Sublayer, Value, Windows,
)  # fmt: skip
from anyformer.specs.addresses import edit, value_at
from anyformer.weights.rules import Rename

LAYERS = "encoder.stages.*.layers"
WINDOWS, INNER = f"{LAYERS}.attention.op", f"{LAYERS}.feedforward.op"
MIXER = f"{WINDOWS}.mixer"
NORM, ZERO = LayerNorm(eps=1e-5), Value(value=0.0)


def block(width: int, num_heads: int, shift: int) -> Block:
    mixer = Attention(num_heads=num_heads, bias="qkvo", position=GridBias(num_heads=num_heads, size=7))
    windows = Windows(mixer=mixer, size=7, shift=shift)
    return Block(
        attention=Sublayer(pre_norm=NORM, op=windows, drop_path=0.1),
        feedforward=Sublayer(pre_norm=NORM, op=MLP(width=4 * width, activation="gelu")),
    )


def stage(width: int, num_heads: int, depth: int) -> Stack:
    blocks = {"plain": block(width, num_heads, 0), "shifted": block(width, num_heads, 3)}
    return Stack(layers=blocks, pattern=("plain", "shifted"), depth=depth)


TEMPLATE = EncoderModel(
    width=96,
    embedding=PatchEmbedding(image_size=(224, 224), patch_size=(4, 4), norm=LayerNorm()),
    encoder=Stages(
        stages=(stage(96, 3, 2), stage(192, 6, 2), stage(384, 12, 6), stage(768, 24, 2)),
        down=(Merge(pre_norm=LayerNorm()),) * 3,
        norm=NORM,
    ),
    init={"*.position.weight": ZERO, "embedding.mask_token": ZERO, "*": Normal(std=0.02)},
)


def check(c: Config) -> None:
    """`depths` determines the number of stages; SwinForMaskedImageModeling reads num_layers too."""
    stages = len(c.depths)
    if len(c.num_heads) < stages:
        raise ValueError(f"num_heads {c.num_heads} must have one entry per stage of depths {c.depths}")
    if c.num_layers not in (None, stages) and c.architecture.endswith("ForMaskedImageModeling"):
        raise ValueError(f"num_layers {c.num_layers} must equal the number of stages in depths {c.depths}")
    for i, heads in enumerate(c.num_heads[:stages]):
        if heads < 1 or c.embed_dim * 2**i % heads:
            raise ValueError(f"embed_dim: width {c.embed_dim * 2**i} of stage {i} is not a multiple of {heads} heads")


def build_stages(spec: Model, depths: Any, c: Config) -> Model:
    """Build one stage per entry of `depths`, each twice as wide as the one before."""
    encoder: Stages = value_at(spec, "encoder")
    first, down = encoder.stages[0], encoder.down[0]
    stages = [
        edit(
            first,
            {
                "depth": depth,
                "layers.attention.op.mixer.num_heads": heads,
                "layers.attention.op.mixer.position.num_heads": heads,
                "layers.feedforward.op.width": int(c.mlp_ratio * c.embed_dim * 2**i),
            },
        )
        for i, (depth, heads) in enumerate(zip(depths, c.num_heads, strict=False))
    ]
    return spec.replace(encoder=encoder.replace(stages=tuple(stages), down=(down,) * (len(stages) - 1)))


def mixers(spec: Model) -> list[Attention]:
    return [stage.layer(0).steps["attention"].op.mixer for stage in value_at(spec, "encoder.stages")]


def mlp_ratio(spec: Model) -> float:
    # the last stage is the widest, so its ratio is the least rounded: floor(floor(r D) / 2) = floor(r D / 2)
    encoder: Stages = value_at(spec, "encoder")
    return encoder.stages[-1].layer(0).steps["feedforward"].op.width / encoder.out_width(spec.width)


CONFIG: dict[str, Any] = {
    **IMAGES,
    "embed_dim": "width",
    "depths": entry(path=lambda spec: [stage.depth for stage in value_at(spec, "encoder.stages")], build=build_stages),
    "num_heads": entry(path=lambda spec: [mixer.num_heads for mixer in mixers(spec)]),
    "window_size": (f"{WINDOWS}.size", f"{MIXER}.position.size"),
    "mlp_ratio": entry(path=mlp_ratio),
    "qkv_bias": choice(f"{MIXER}.bias", {True: "qkvo", False: "o"}),
    "hidden_dropout_prob": ("embedding.dropout", f"{LAYERS}.*.dropout"),
    "attention_probs_dropout_prob": f"{MIXER}.dropout",
    "drop_path_rate": f"{LAYERS}.attention.drop_path",
    "hidden_act": activation(f"{INNER}.activation"),
    "use_absolute_embeddings": entry(
        "embedding.position",
        path=lambda spec: spec.embedding.position is not None,
        read=lambda value, c: Learned(length=patches(c)) if value else None,
    ),
    "initializer_range": entry("init.*.std", read=lambda std, c: std or 0.02),  # published: 0 means the default
    "layer_norm_eps": ("encoder.norm.eps", f"{LAYERS}.*.pre_norm.eps"),
    "encoder_stride": "head.stride",
    "num_layers": entry(default=None, path=lambda spec: len(spec.encoder.stages)),
    "hidden_size": Ignored(None, "follows from embed_dim and depths; published classes do not read it"),
    "path_norm": Ignored(True, "written by old versions; nothing ever read it"),
    **BACKBONE,
}

THEIRS, OURS = "~encoder.layers.{s}.blocks.{i}", "encoder.stages.{s}.layers.{i}"

WEIGHTS = {
    **EMBEDDING_WEIGHTS,
    "~embeddings.norm": "embedding.norm",
    f"{THEIRS}.layernorm_before": f"{OURS}.attention.pre_norm",
    f"{THEIRS}.attention.self.{{query,key,value}}": f"{OURS}.attention.op.mixer.{{q,k,v}}",
    f"{THEIRS}.attention.self.relative_position_bias_table": lambda theirs, spec: [
        Rename(theirs, f"{OURS}.attention.op.mixer.position.weight")
    ],
    f"{THEIRS}.attention.output.dense": f"{OURS}.attention.op.mixer.o",
    f"{THEIRS}.layernorm_after": f"{OURS}.feedforward.pre_norm",
    f"{THEIRS}.intermediate.dense": f"{OURS}.feedforward.op.up",
    f"{THEIRS}.output.dense": f"{OURS}.feedforward.op.down",
    "~encoder.layers.{s}.downsample.norm": "encoder.down.{s}.pre_norm",
    "~encoder.layers.{s}.downsample.reduction": "encoder.down.{s}.project",
    "~layernorm": "encoder.norm",
}


def size(width: int, depth: int, heads: int, published: float, **more: Any) -> Size:
    config = {"embed_dim": width, "depths": (2, 2, depth, 2), "num_heads": [heads * 2**i for i in range(4)]}
    return Size({**config, "num_labels": 1000, **more}, published)


SWIN = Family(
    name="swin",
    about="hierarchical vision encoders with shifted windows",
    template=TEMPLATE,
    classes={
        "SwinForImageClassification": Class(ClassifyHead(num_labels=2, pool=Pool(take=MeanTokens())), "classifier"),
        "SwinModel": Class(PooledOutput(pool=Pool(take=MeanTokens())), prefix=""),
        "SwinForMaskedImageModeling": pixel_class(patch=4, stride=32),
    },
    config=CONFIG,
    computed={f"{LAYERS}.shifted.attention.op.shift": lambda c: c.window_size // 2},
    weights=WEIGHTS,
    prefix="swin.",
    checks=(check,),
    aliases={"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"},
    dropped=(f"{THEIRS}.attention.self.relative_position_index",),
    sizes={
        "swin-tiny": size(96, 6, 3, 28e6),
        "swin-small": size(96, 18, 3, 50e6),
        "swin-base": size(128, 18, 4, 88e6),
        "swin-large": size(192, 18, 6, 197e6),
    },
)
