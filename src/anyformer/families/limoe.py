"""LIMoE [Mustafa et al. 2022]: one stack that reads pictures and texts alike, some of its layers experts of which each
token goes to one. Both towers of a CLIP, then, whose stacks are tied. No files are published: there are descriptions,
saved in our own form. Experts take all that comes (no capacity), so that a pair does not depend on its batch."""

from __future__ import annotations

import math
from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import ConfigField, Field, activation_at
from anyformer.models import EncoderModel, Model, TwoTowerModel
from anyformer.parts.activation import activation_named
from anyformer.parts.attention.attention import Attention
from anyformer.parts.embedding.patches import PatchEmbedding
from anyformer.parts.embedding.text import Embedding, TextEmbedding, Tokens
from anyformer.parts.feedforward.balance import EntropyBalance
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.feedforward.moe import MoE, TopK
from anyformer.parts.head.pool import Pool
from anyformer.parts.head.similarity import ProjectionHead, SimilarityHead
from anyformer.parts.init import Normal, Xavier
from anyformer.parts.norm import LayerNorm
from anyformer.parts.position.absolute import Learned
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from anyformer.weights.rules import Rule

STACK = "text.encoder"
DENSE, EXPERTS = f"{STACK}.layers.dense", f"{STACK}.layers.experts"

FIELDS: dict[str, ConfigField] = {
    "hidden_size": Field(768, "text.width"),
    "num_hidden_layers": Field(12, f"{STACK}.depth"),
    "num_expert_layers": Field(6, lambda spec: spec.text.encoder.pattern.count("experts")),
    "num_attention_heads": Field(12, f"{DENSE}.attention.op.num_heads"),
    "intermediate_size": Field(3072, f"{DENSE}.feedforward.op.width"),
    "hidden_act": Field("gelu", activation_at(f"{DENSE}.feedforward.op.activation")),
    "layer_norm_eps": Field(1e-6, f"{STACK}.norm.eps"),
    "num_experts": Field(32, f"{EXPERTS}.feedforward.op.num_experts"),
    "projection_dim": Field(768, "width"),
    "logit_scale_init_value": Field(2.3026, "head.scale"),
    "vocab_size": Field(32000, "text.embedding.tokens.vocab_size"),
    "max_position_embeddings": Field(16, "text.embedding.position.length"),
    "image_size": Field(224, lambda spec: spec.image.embedding.image_size[0]),
    "patch_size": Field(16, lambda spec: spec.image.embedding.patch_size[0]),
    "num_channels": Field(3, "image.embedding.channels"),
    "entropy_weight": Field(0.04, "text.head.balance.whole"),
    "z_weight": Field(1e-4, "text.head.balance.z_weight"),
    "text_experts": Field(9.0, "text.head.balance.experts"),
    "image_experts": Field(20.0, "image.head.balance.experts"),
}


def describe(c: Any) -> Model:
    size, patch = (c.image_size, c.image_size), (c.patch_size, c.patch_size)
    pixels = PatchEmbedding(image_size=size, patch_size=patch, channels=c.num_channels)
    words = TextEmbedding(tokens=Tokens(vocab_size=c.vocab_size), position=Learned(length=c.max_position_embeddings))
    shared = stack(c)
    # texts are few tokens beside those of pictures: left alone they would all go to one expert, or to any
    text = EntropyBalance(local=c.entropy_weight, whole=c.entropy_weight, experts=c.text_experts, z_weight=c.z_weight)
    image = text.replace(local=0.0, experts=c.image_experts)
    return TwoTowerModel(
        width=c.projection_dim,
        text=tower(c, "text_embeds", words, shared, text),
        image=tower(c, "image_embeds", pixels.replace(position=Learned(length=math.prod(pixels.grid))), shared, image),
        head=SimilarityHead(scale=c.logit_scale_init_value),
        ties=(("image.encoder", STACK),),
    )


def tower(c: Any, name: Any, embedding: Embedding, shared: Stack, balance: EntropyBalance) -> EncoderModel:
    head = ProjectionHead(pool=Pool(take="mean"), width=c.projection_dim, name=name, balance=balance)
    narrow = {f"*.{part}.weight": Normal(std=0.02) for part in ("position", "tokens", "router")}
    each = Normal(std=(2 / (c.hidden_size + c.intermediate_size)) ** 0.5)  # Xavier's, of one expert
    experts = {f"*.experts.{part}": each for part in ("up", "down")}
    init = {**narrow, **experts, "*": Xavier()}
    return EncoderModel(width=c.hidden_size, embedding=embedding, encoder=shared, head=head, init=init)


def stack(c: Any) -> Stack:
    """The layers with experts are every other one, the last of them the last of all."""
    norm, depth, sparse = LayerNorm(eps=c.layer_norm_eps), c.num_hidden_layers, c.num_expert_layers
    if not 0 < 2 * sparse <= depth:
        raise ValueError(f"num_expert_layers {sparse}: at least one, and every other of {depth} layers at most")
    if c.hidden_size % c.num_attention_heads:
        raise ValueError(f"hidden_size {c.hidden_size} is no multiple of {c.num_attention_heads} attention heads")
    mlp = MLP(width=c.intermediate_size, activation=activation_named(c.hidden_act))
    router = TopK(top_k=1, normalize=False, float32=True)

    def block(op: Any) -> Block:
        attention = Attention(num_heads=c.num_attention_heads)
        return Block(attention=Sublayer(pre_norm=norm, op=attention), feedforward=Sublayer(pre_norm=norm, op=op))

    return Stack(
        layers={"dense": block(mlp), "experts": block(MoE(num_experts=c.num_experts, router=router, expert=mlp))},
        pattern=("dense",) * (depth - 2 * sparse) + ("dense", "experts") * sparse,
        depth=depth,
        norm=norm,
    )


def rules(spec: Model) -> list[Rule]:
    raise ValueError("no files of a LIMoE are published; load a folder that anyformer saved (spec.json)")


SMALL = {
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_attention_heads": 6,
    "patch_size": 32,
    "projection_dim": 384,
}
HUGE = {
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_attention_heads": 16,
    "num_hidden_layers": 32,
    "num_expert_layers": 12,
    "patch_size": 14,
    "projection_dim": 1280,
}
EXPERTS_OF = "32 experts in every other layer, one of them a token"
FAMILIES = (
    Family(
        name="limoe",
        about="one stack with experts that reads texts and pictures, whose vectors are compared",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=(),
        sizes={
            "limoe-s32": Size(SMALL, note=EXPERTS_OF),
            "limoe-b16": Size({}, note=EXPERTS_OF),
            "limoe-h14": Size(HUGE, 5.6e9, note="12 layers of 32 experts, here every other one of the last 24"),
        },
    ),
)
