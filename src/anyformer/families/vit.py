"""ViT [Dosovitskiy et al. 2021]: an encoder over image patches; the vector of a class token represents the image."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, size_table
from anyformer.families.base.fields import Absent
from anyformer.families.base.template import Class, Config, Entry, activation, choice, entry
from anyformer.families.shared.vision import (
    EMBEDDING_WEIGHTS,
    IMAGES,
    SHOWS,
    head_width,
    patches,
    pixel_class,
    read_head_width,
    tokens,
)
from anyformer.parts import (
    Attention, Block, ClassifyHead, EncoderModel, FirstToken, LayerNorm, Learned, MLP, Model, Normal, PatchEmbedding,
    Pool, PooledOutput, PrefixTokens, Stack, Sublayer, Value,
)  # fmt: skip

ATTENTION, INNER, LAYER = "encoder.layers.attention.op", "encoder.layers.feedforward.op", "encoder.layers.{i}"
NORM = LayerNorm(eps=1e-12)

TEMPLATE = EncoderModel(
    width=768,
    embedding=PatchEmbedding(
        image_size=(224, 224),
        patch_size=(16, 16),
        prefix=(PrefixTokens(),),
        pad=False,
        position=Learned(length=196, offset=1),
    ),
    encoder=Stack(
        depth=12,
        layers=Block(
            attention=Sublayer(pre_norm=NORM, op=Attention(num_heads=12, bias="qkvo")),
            feedforward=Sublayer(pre_norm=NORM, op=MLP(width=3072, activation="gelu")),
        ),
        norm=NORM,
        shows="stream",
    ),
    init={"embedding.mask_token": Value(value=0.0), "*": Normal(std=0.02)},
)
POOLED = PooledOutput(pool=Pool(take=FirstToken(), dense=True, activation="tanh"))


def build_pooler(spec: Model, has_pooler: bool, c: Config) -> Model:
    return spec if has_pooler or not isinstance(spec.head, PooledOutput) else spec.replace(head=None)


def has_pooler(spec: Model) -> bool:
    """Written only if False. It is our own field: published classes have a constructor argument instead."""
    if spec.head is not None:
        raise Absent
    return False


CONFIG: dict[str, Any] = {
    "hidden_size": "width",
    "num_hidden_layers": "encoder.depth",
    "num_attention_heads": f"{ATTENTION}.num_heads",
    "head_dim": Entry(None, head_width),
    "intermediate_size": f"{INNER}.width",
    "hidden_act": activation(f"{INNER}.activation"),
    "hidden_dropout_prob": ("embedding.dropout", "encoder.layers.*.dropout"),
    "attention_probs_dropout_prob": f"{ATTENTION}.dropout",
    "initializer_range": "init.*.std",
    "layer_norm_eps": ("encoder.norm.eps", "encoder.layers.*.pre_norm.eps"),
    **IMAGES,
    "qkv_bias": choice(f"{ATTENTION}.bias", {True: "qkvo", False: "o"}),
    "encoder_stride": "head.stride",
    "pooler_output_size": entry(
        "head[PooledOutput].pool.width",
        default=None,
        path="head.pool.width",
        read=lambda width, c: None if width in (0, c.hidden_size) else width,
    ),
    "pooler_act": activation("head[PooledOutput].pool.activation"),
    "has_pooler": Entry(True, has_pooler, build=build_pooler),
    **SHOWS,
}

WEIGHTS = {
    "~embeddings": tokens("cls_token"),
    **EMBEDDING_WEIGHTS,
    "~encoder.layer.{i}.layernorm_before": f"{LAYER}.attention.pre_norm",
    "~encoder.layer.{i}.attention.attention.{query,key,value}": f"{LAYER}.attention.op.{{q,k,v}}",
    "~encoder.layer.{i}.attention.output.dense": f"{LAYER}.attention.op.o",
    "~encoder.layer.{i}.layernorm_after": f"{LAYER}.feedforward.pre_norm",
    "~encoder.layer.{i}.intermediate.dense": f"{LAYER}.feedforward.op.up",
    "~encoder.layer.{i}.output.dense": f"{LAYER}.feedforward.op.down",
    "~layernorm": "encoder.norm",
    "~pooler.dense": "head.pool.dense",
}

SHAPE = "hidden_size num_hidden_layers num_attention_heads intermediate_size"
VIT = Family(
    name="vit",
    about="image encoders over patches",
    template=TEMPLATE,
    classes={
        "ViTForImageClassification": Class(ClassifyHead(num_labels=2, pool=Pool(take=FirstToken())), "classifier"),
        "ViTModel": Class(POOLED, prefix=""),
        "ViTForMaskedImageModeling": pixel_class(patch=16, stride=16),
    },
    config=CONFIG,
    computed={"embedding.position.length": patches, f"{ATTENTION}.head_width": read_head_width},
    weights=WEIGHTS,
    prefix="vit.",
    dropped=("~pooler.dense.{p}",),
    absent={"~pooler.dense.weight": {"has_pooler": False}},
    sizes=size_table(
        f"{SHAPE} patch_size",
        {
            "vit-b16": (768, 12, 12, 3072, 16, 86e6),
            "vit-b32": (768, 12, 12, 3072, 32, 86e6),
            "vit-l16": (1024, 24, 16, 4096, 16, 307e6),
            "vit-l32": (1024, 24, 16, 4096, 32, 307e6),
            "vit-h14": (1280, 32, 16, 5120, 14, 632e6),
        },
        num_labels=1000,
    ),
)
