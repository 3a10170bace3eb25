"""Swin [Liu et al. 2021]: stages of shifted-window attention, each on a grid half as fine and twice as wide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import ConfigField, Field, Ignored, activation_at
from anyformer.families.shared.vision import classify_or_draw, pair, pixel_rules, unpair
from anyformer.models import EncoderModel, Model
from anyformer.parts.activation import activation_named
from anyformer.parts.attention.attention import Attention
from anyformer.parts.embedding.patches import PatchEmbedding
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.grid.merge import Merge
from anyformer.parts.grid.windows import GridBias, Windows
from anyformer.parts.head.classify import PooledOutput
from anyformer.parts.head.image import PixelHead
from anyformer.parts.head.pool import Pool
from anyformer.parts.init import Normal, Value
from anyformer.parts.norm import LayerNorm
from anyformer.parts.position.absolute import Learned
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.stages import Stages
from anyformer.stacks.sublayer import Sublayer
from anyformer.weights.rules import Rename, Reshape, Rule

LAYER = "encoder.stages.0.layers.plain"
BACKBONE = "read by SwinBackbone alone"


def mixers(spec: Any) -> list[Attention]:
    """The attention of each stage's first layer."""
    return [stage.layer(0).steps["attention"].op.mixer for stage in spec.encoder.stages]


def read_ratio(spec: Any) -> float:
    # the last stage is the widest, so its ratio is the finest: floor(floor(r D) / 2) = floor(r D / 2)
    return spec.encoder.stages[-1].layer(0).steps["feedforward"].op.width / spec.encoder.out_width(spec.width)


FIELDS: dict[str, ConfigField] = {
    "image_size": Field(224, lambda spec: unpair(spec.embedding.image_size)),
    "patch_size": Field(4, lambda spec: unpair(spec.embedding.patch_size)),
    "num_channels": Field(3, "embedding.channels"),
    "embed_dim": Field(96, "width"),
    "depths": Field((2, 2, 6, 2), lambda spec: tuple(stage.depth for stage in spec.encoder.stages)),
    "num_heads": Field((3, 6, 12, 24), lambda spec: tuple(mixer.num_heads for mixer in mixers(spec))),
    "window_size": Field(7, f"{LAYER}.attention.op.size"),
    "mlp_ratio": Field(4.0, read_ratio),
    "qkv_bias": Field(True, lambda spec: mixers(spec)[0].bias == "qkvo"),
    "hidden_dropout_prob": Field(0.0, "embedding.dropout"),
    "attention_probs_dropout_prob": Field(0.0, f"{LAYER}.attention.op.mixer.dropout"),
    "drop_path_rate": Field(0.1, f"{LAYER}.attention.drop_path"),
    "hidden_act": Field("gelu", activation_at(f"{LAYER}.feedforward.op.activation")),
    "use_absolute_embeddings": Field(False, lambda spec: spec.embedding.position is not None),
    "initializer_range": Field(0.02, lambda spec: spec.init["*"].std),
    "layer_norm_eps": Field(1e-5, "encoder.norm.eps"),
    "encoder_stride": Field(32, "head.stride"),
    "problem_type": Field(None, "head.problem"),
    "num_layers": Field(None, lambda spec: len(spec.encoder.stages)),
    "hidden_size": Ignored(None, "follows from embed_dim and depths, and published classes do not read it"),
    "out_features": Ignored(None, BACKBONE),
    "out_indices": Ignored(None, BACKBONE),
    "_out_features": Ignored(None, BACKBONE),
    "_out_indices": Ignored(None, BACKBONE),
    "stage_names": Ignored(None, BACKBONE),
    "path_norm": Ignored(True, "written by old versions; nothing ever read it"),
}


def check(c: Any) -> None:
    """`depths` says how many stages there are; one class asks again."""
    stages = len(c.depths)
    if len(c.num_heads) < stages:
        raise ValueError(f"num_heads {c.num_heads} and depths {c.depths} name different numbers of stages")
    if c.num_layers not in (None, stages) and c.architecture.endswith("ForMaskedImageModeling"):
        raise ValueError(f"num_layers is {c.num_layers}, but depths {c.depths} make it {stages}")
    for i, heads in enumerate(c.num_heads[:stages]):
        if heads < 1 or c.embed_dim * 2**i % heads:
            raise ValueError(f"stage {i} is {c.embed_dim * 2**i} wide, not a multiple of its {heads} heads")


def describe(c: Any) -> Model:
    check(c)
    norm, dropout, size = LayerNorm(eps=c.layer_norm_eps), c.hidden_dropout_prob, c.window_size

    def block(i: int, shifted: bool) -> Block:
        mixer = Attention(
            num_heads=c.num_heads[i], bias="qkvo" if c.qkv_bias else "o", dropout=c.attention_probs_dropout_prob,
            position=GridBias(num_heads=c.num_heads[i], size=size),
        )  # fmt: skip
        windows = Windows(mixer=mixer, size=size, shift=size // 2 if shifted else 0)
        attention = Sublayer(pre_norm=norm, op=windows, dropout=dropout, drop_path=c.drop_path_rate)
        return Block(attention=attention, feedforward=Sublayer(pre_norm=norm, op=mlp(c, i), dropout=dropout))

    return model(c, block, Merge(pre_norm=LayerNorm()))


def mlp(c: Any, stage: int) -> MLP:
    return MLP(width=int(c.mlp_ratio * c.embed_dim * 2**stage), activation=activation_named(c.hidden_act))


def model(c: Any, block: Callable[[int, bool], Block], down: Merge) -> Model:
    """`block` makes the layers of a stage, which are shifted in turn; `down` stands between stages."""
    head = classify_or_draw(c, Pool(take="mean"))
    embedding = PatchEmbedding(
        image_size=pair(c.image_size), patch_size=pair(c.patch_size), channels=c.num_channels, norm=LayerNorm(),
        mask_token=isinstance(head, PixelHead), dropout=c.hidden_dropout_prob,
    )  # fmt: skip
    if c.use_absolute_embeddings:
        embedding = embedding.replace(position=Learned(length=embedding.grid[0] * embedding.grid[1]))
    kinds = [{"plain": block(i, False), "shifted": block(i, True)} for i in range(len(c.depths))]
    stages = tuple(
        Stack(layers=layers, pattern=tuple(layers), depth=depth) for layers, depth in zip(kinds, c.depths, strict=True)
    )
    zero, std = Value(value=0.0), c.initializer_range or 0.02  # published: zero means the default
    return EncoderModel(
        width=c.embed_dim,
        embedding=embedding,
        encoder=Stages(stages=stages, down=(down,) * (len(stages) - 1), norm=LayerNorm(eps=c.layer_norm_eps)),
        head=head or PooledOutput(pool=Pool(take="mean")),
        init={"*.position.weight": zero, "embedding.mask_token": zero, "*": Normal(std=std)},
    )


def rules(spec: Any) -> list[Rule]:
    block, ours = "~encoder.layers.{s}.blocks.{i}", "encoder.stages.{s}.layers.{i}"
    mixer, down = f"{ours}.attention.op.mixer", "~encoder.layers.{s}.downsample"
    return [
        Rename("~embeddings.patch_embeddings.projection.{p}", "embedding.patch.{p}"),
        Rename("~embeddings.norm.{p}", "embedding.norm.{p}"),
        Reshape("~embeddings.mask_token", "embedding.mask_token", (1, 1, -1)),
        Reshape("~embeddings.position_embeddings", "embedding.position.weight", (1, -1, spec.width)),
        Rename(f"{block}.layernorm_before.{{p}}", f"{ours}.attention.pre_norm.{{p}}"),
        *[Rename(f"{block}.attention.self.{n}.{{p}}", f"{mixer}.{n[0]}.{{p}}") for n in ("query", "key", "value")],
        Rename(f"{block}.attention.self.relative_position_bias_table", f"{mixer}.position.weight"),
        Rename(f"{block}.attention.output.dense.{{p}}", f"{mixer}.o.{{p}}"),
        Rename(f"{block}.layernorm_after.{{p}}", f"{ours}.feedforward.pre_norm.{{p}}"),
        Rename(f"{block}.intermediate.dense.{{p}}", f"{ours}.feedforward.op.up.{{p}}"),
        Rename(f"{block}.output.dense.{{p}}", f"{ours}.feedforward.op.down.{{p}}"),
        Rename(f"{down}.norm.{{p}}", "encoder.down.{s}.pre_norm.{p}"),
        Rename(f"{down}.reduction.{{p}}", "encoder.down.{s}.project.{p}"),
        Rename("~layernorm.{p}", "encoder.norm.{p}"),
        *pixel_rules(spec, spec.encoder.out_width(spec.width)),
        Rename("classifier.{p}", "head.out.{p}"),
    ]


def size(width: int, depth: int, heads: int, published: float, **more: Any) -> Size:
    config = {"embed_dim": width, "depths": (2, 2, depth, 2), "num_heads": [heads * 2**i for i in range(4)]}
    return Size({**config, "num_labels": 1000, **more}, published)


FAMILIES = (
    Family(
        name="swin",
        about="hierarchical vision encoders with shifted windows",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=("SwinForImageClassification", "SwinModel", "SwinForMaskedImageModeling"),
        base=("SwinModel",),
        prefix="swin.",
        aliases={"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"},
        dropped=("~encoder.layers.{s}.blocks.{i}.attention.self.relative_position_index",),
        sizes={
            "swin-tiny": size(96, 6, 3, 28e6),
            "swin-small": size(96, 18, 3, 50e6),
            "swin-base": size(128, 18, 4, 88e6),
            "swin-large": size(192, 18, 6, 197e6),
        },
    ),
)  # fmt: skip
