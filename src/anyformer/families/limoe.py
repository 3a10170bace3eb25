"""LIMoE [Mustafa et al. 2022]: one stack for images and texts, with experts in some layers and one expert per token. It
is a CLIP whose towers share their stack. No checkpoints are published, so models are saved only in our own format.
Experts have no capacity limit, so that the result of a pair does not depend on its batch."""

from __future__ import annotations

import math
from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Entry
from anyformer.families.base.template import Class, Config, Weights, activation, entry
from anyformer.parts import (
    Attention, Block, EncoderModel, EntropyBalance, Initializer, LayerNorm, Learned, MLP, MeanTokens, MoE, Normal, Op,
    PatchEmbedding, Pool, ProjectionHead, SimilarityHead, Stack, Sublayer, TextEmbedding, Tokens, TopK, TwoTowerModel,
    Xavier,
)  # fmt: skip

NORM = LayerNorm(eps=1e-6)
MLP_OP = MLP(width=3072, activation="gelu")


def layer(op: Op) -> Block:
    return Block(
        attention=Sublayer(pre_norm=NORM, op=Attention(num_heads=12)), feedforward=Sublayer(pre_norm=NORM, op=op)
    )


def init(width: int, inner: int) -> dict[str, Initializer]:
    each = Normal(std=(2 / (width + inner)) ** 0.5)  # Xavier, for each expert
    return {
        **{f"*.{part}.weight": Normal(std=0.02) for part in ("position", "tokens", "router")},
        **{f"*.experts.{part}": each for part in ("up", "down")},
        "*": Xavier(),
    }


ROUTER = TopK(top_k=1, normalize=False, float32=True)
STACK = Stack(
    depth=12,
    pattern=("dense", "experts") * 6,
    layers={"dense": layer(MLP_OP), "experts": layer(MoE(num_experts=32, router=ROUTER, expert=MLP_OP))},
    norm=NORM,
)
# texts have far fewer tokens than images: without these losses, their routing would collapse
TEXT = EntropyBalance(local=0.04, whole=0.04, experts=9.0, z_weight=1e-4)
PICTURES = EntropyBalance(local=0.0, whole=0.04, experts=20.0, z_weight=1e-4)

TEMPLATE = TwoTowerModel(
    width=768,
    text=EncoderModel(
        width=768,
        embedding=TextEmbedding(tokens=Tokens(vocab_size=32000), position=Learned(length=16)),
        encoder=STACK,
        head=ProjectionHead(pool=Pool(take=MeanTokens()), width=768, name="text_embeds", balance=TEXT),
        init=init(768, 3072),
    ),
    image=EncoderModel(
        width=768,
        embedding=PatchEmbedding(
            image_size=(224, 224), patch_size=(16, 16), channels=3, position=Learned(length=14 * 14)
        ),
        encoder=STACK,
        head=ProjectionHead(pool=Pool(take=MeanTokens()), width=768, name="image_embeds", balance=PICTURES),
        init=init(768, 3072),
    ),
    head=SimilarityHead(scale=2.3026),
    ties=(("image.encoder", "text.encoder"),),
)


def pattern(c: Config) -> tuple[str, ...]:
    """Return the kinds of layers: every other layer has experts, counted from the last one."""
    sparse = c.num_expert_layers
    return ("dense",) * (c.num_hidden_layers - 2 * sparse) + ("dense", "experts") * sparse


def patches(c: Config) -> int:
    size, patch = (c.image_size, c.image_size), (c.patch_size, c.patch_size)
    return math.prod(PatchEmbedding(image_size=size, patch_size=patch).grid)


def check(c: Config) -> None:
    depth, sparse = c.num_hidden_layers, c.num_expert_layers
    if not 0 < 2 * sparse <= depth:
        raise ValueError(f"num_expert_layers must be 1 to {depth // 2} (every other of {depth} layers), got {sparse}")
    if c.hidden_size % c.num_attention_heads:
        raise ValueError(f"hidden_size {c.hidden_size} is not a multiple of {c.num_attention_heads} attention heads")


def weights(spec: TwoTowerModel) -> Weights:
    raise ValueError("no LIMoE checkpoints are published; load a folder saved by anyformer (with spec.json)")


def shape(width: int, heads: int, patch: int, **more: int) -> dict[str, int]:
    widths = {"hidden_size": width, "intermediate_size": 4 * width, "projection_dim": width}
    return {**widths, "num_attention_heads": heads, "patch_size": patch, **more}


SQUARE: dict[str, Any] = {"read": lambda side, c: (side, side), "write": lambda sides: sides[0]}
HUGE = shape(1280, 16, 14, num_hidden_layers=32, num_expert_layers=12)
NOTE = "32 experts in every other layer, one expert per token"

LIMOE = Family(
    name="limoe",
    about="one stack with experts for texts and images, whose vectors are compared",
    tokenizer="",
    template=TEMPLATE,
    classes={"": Class(TEMPLATE.head)},
    config={
        "hidden_size": ("text.width", "image.width"),
        "num_hidden_layers": "*.encoder.depth",
        "num_expert_layers": Entry(6, lambda spec: spec.text.encoder.pattern.count("experts")),
        "num_attention_heads": "*.encoder.layers.attention.op.num_heads",
        "intermediate_size": ("*.encoder.layers.feedforward.op.width", "*.encoder.layers.feedforward.op.expert.width"),
        "hidden_act": activation(
            "*.encoder.layers.feedforward.op.activation", "*.encoder.layers.feedforward.op.expert.activation"
        ),
        "layer_norm_eps": ("*.encoder.norm.eps", "*.encoder.layers.*.pre_norm.eps"),
        "num_experts": "*.encoder.layers.experts.feedforward.op.num_experts",
        "projection_dim": ("width", "*.head.width"),
        "logit_scale_init_value": "head.scale",
        "vocab_size": "text.embedding.tokens.vocab_size",
        "max_position_embeddings": "text.embedding.position.length",
        "image_size": entry("image.embedding.image_size", **SQUARE),
        "patch_size": entry("image.embedding.patch_size", **SQUARE),
        "num_channels": "image.embedding.channels",
        "entropy_weight": ("*.head.balance.whole", "text.head.balance.local"),
        "z_weight": "*.head.balance.z_weight",
        "text_experts": "text.head.balance.experts",
        "image_experts": "image.head.balance.experts",
        "problem_type": None,
    },
    computed={
        "*.encoder.pattern": pattern,
        "image.embedding.position.length": patches,
        "*.init": lambda c: init(c.hidden_size, c.intermediate_size),
    },
    weights=weights,
    checks=(check,),
    sizes={
        "limoe-s32": Size(shape(384, 6, 32), note=NOTE),
        "limoe-b16": Size({}, note=NOTE),
        "limoe-h14": Size(HUGE, 5.6e9, note="12 layers with 32 experts; we use every other one of the last 24"),
    },
)
