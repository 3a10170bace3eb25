"""What encoders of images share, and the plain one: patches after learned tokens, through one stack (ViT, DeiT)."""

from __future__ import annotations

import math
from typing import Any

from anyformer.families.base.fields import Absent, ConfigField, Field, activation_at
from anyformer.models import EncoderModel, Model
from anyformer.parts.activation import activation_named
from anyformer.parts.attention.attention import Attention
from anyformer.parts.embedding.patches import PatchEmbedding
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.head.base import Head
from anyformer.parts.head.classify import ClassifyHead, PooledOutput
from anyformer.parts.head.image import PixelHead
from anyformer.parts.head.pool import Pool
from anyformer.parts.init import Normal, Value
from anyformer.parts.norm import LayerNorm
from anyformer.parts.position.absolute import Learned
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from anyformer.weights.rules import Concat, Rename, Reshape, Rule

OP = "encoder.layers.attention.op"
MLP_OP = "encoder.layers.feedforward.op"


def pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def unpair(value: tuple[int, int]) -> int | tuple[int, int]:
    return value[0] if value[0] == value[1] else value


def shows_end(spec: Any) -> bool:
    if spec.encoder.shows != "inputs":
        raise Absent
    return True


def head_width(spec: Any) -> int:
    """Said where the width and the heads do not give it: published classes do not take null for that."""
    op = spec.encoder.layers.steps["attention"].op
    if op.head_width in (None, spec.width // op.num_heads):
        raise Absent
    return op.head_width


def heads_of(c: Any) -> int | None:
    """How wide the heads are, where the width and their number do not give it; what is left over is dropped, as
    published."""
    if c.num_attention_heads < 1 or (c.head_dim is None and c.hidden_size < c.num_attention_heads):
        raise ValueError(f"hidden_size {c.hidden_size} is too narrow for {c.num_attention_heads} attention heads")
    width = c.head_dim or c.hidden_size // c.num_attention_heads
    return None if width * c.num_attention_heads == c.hidden_size else width


def has_pooler(spec: Any) -> bool:
    """Said where there is none, in a word of ours: published classes hear of it where they are made."""
    if spec.head is not None:
        raise Absent
    return False


def pooler_activation(spec: Any) -> str:
    if not isinstance(spec.head, PooledOutput):
        raise Absent
    return activation_at("head.pool.activation")(spec)


ABSENT = {"~pooler.dense.weight": {"has_pooler": False}}

FIELDS: dict[str, ConfigField] = {
    "hidden_size": Field(768, "width"),
    "num_hidden_layers": Field(12, "encoder.depth"),
    "num_attention_heads": Field(12, f"{OP}.num_heads"),
    "head_dim": Field(None, head_width),
    "intermediate_size": Field(3072, f"{MLP_OP}.width"),
    "hidden_act": Field("gelu", activation_at(f"{MLP_OP}.activation")),
    "hidden_dropout_prob": Field(0.0, "embedding.dropout"),
    "attention_probs_dropout_prob": Field(0.0, f"{OP}.dropout"),
    "initializer_range": Field(0.02, lambda spec: spec.init["*"].std),
    "layer_norm_eps": Field(1e-12, "encoder.norm.eps"),
    "image_size": Field(224, lambda spec: unpair(spec.embedding.image_size)),
    "patch_size": Field(16, lambda spec: unpair(spec.embedding.patch_size)),
    "num_channels": Field(3, "embedding.channels"),
    "qkv_bias": Field(True, lambda spec: spec.encoder.layers.steps["attention"].op.bias == "qkvo"),
    "encoder_stride": Field(16, "head.stride"),
    "pooler_output_size": Field(None, "head.pool.width"),
    "pooler_act": Field("tanh", pooler_activation),
    "has_pooler": Field(True, has_pooler),
    "tie_last_hidden_states": Field(None, shows_end),
    "problem_type": Field(None, "head.problem"),
}


def describe(c: Any, prefix: int, head: Head | None) -> Model:
    """`prefix` learned tokens, then the patches."""
    norm = LayerNorm(eps=c.layer_norm_eps)
    attention = Attention(
        num_heads=c.num_attention_heads, bias="qkvo" if c.qkv_bias else "o", dropout=c.attention_probs_dropout_prob,
        head_width=heads_of(c),
    )  # fmt: skip
    mlp = MLP(width=c.intermediate_size, activation=activation_named(c.hidden_act))
    embedding = PatchEmbedding(
        image_size=pair(c.image_size), patch_size=pair(c.patch_size), channels=c.num_channels, prefix=prefix, pad=False,
        mask_token=isinstance(head, PixelHead), dropout=c.hidden_dropout_prob,
    )  # fmt: skip

    def step(op: Any) -> Sublayer:
        return Sublayer(pre_norm=norm, op=op, dropout=c.hidden_dropout_prob)

    return EncoderModel(
        width=c.hidden_size,
        embedding=embedding.replace(position=Learned(length=math.prod(embedding.grid), offset=prefix)),
        encoder=Stack(
            layers=Block(attention=step(attention), feedforward=step(mlp)), depth=c.num_hidden_layers, norm=norm,
            shows="inputs" if c.tie_last_hidden_states else "stream",
        ),
        head=head,
        init={"embedding.mask_token": Value(value=0.0), "*": Normal(std=c.initializer_range)},
    )  # fmt: skip


def classify_or_draw(c: Any, pool: Pool) -> Head | None:
    """A label for the image, or its pixels; None for the base class."""
    if c.architecture.endswith("ForImageClassification"):
        return ClassifyHead(num_labels=c.num_labels, pool=pool, problem=c.problem_type)
    if c.architecture.endswith("ForMaskedImageModeling"):
        return PixelHead(channels=c.num_channels, stride=c.encoder_stride, patch_size=pair(c.patch_size))
    return None


def head(c: Any) -> Head | None:
    """The same, and for the base class the first token through a pooler."""
    if (found := classify_or_draw(c, Pool(take="first"))) is not None:
        return found
    width = None if c.pooler_output_size in (None, 0, c.hidden_size) else c.pooler_output_size
    pool = Pool(take="first", dense=True, activation=activation_named(c.pooler_act), width=width)
    return PooledOutput(pool=pool) if c.has_pooler else None


def pixel_rules(spec: Any, width: int) -> list[Rule]:
    """Published as a 1 x 1 convolution of the last states, which are `width` wide."""
    if not isinstance(spec.head, PixelHead):
        return []
    kernel = Reshape("decoder.0.weight", "head.out.weight", (-1, width, 1, 1))
    return [kernel, Rename("decoder.0.bias", "head.out.bias")]


def rules(spec: Any, *tokens: str) -> list[Rule]:
    """`tokens` are the published names of those before the patches."""
    layer, ours = "~encoder.layer.{i}", "encoder.layers.{i}"
    modules = {
        "~embeddings.patch_embeddings.projection": "embedding.patch",
        **{f"{layer}.attention.attention.{n}": f"{ours}.attention.op.{n[0]}" for n in ("query", "key", "value")},
        f"{layer}.attention.output.dense": f"{ours}.attention.op.o",
        f"{layer}.layernorm_before": f"{ours}.attention.pre_norm",
        f"{layer}.layernorm_after": f"{ours}.feedforward.pre_norm",
        f"{layer}.intermediate.dense": f"{ours}.feedforward.op.up",
        f"{layer}.output.dense": f"{ours}.feedforward.op.down",
        "~layernorm": "encoder.norm",
        "~pooler.dense": "head.pool.dense",
    }
    return [
        Concat([f"~embeddings.{name}" for name in tokens], "embedding.prefix", [1] * len(tokens), dim=1),
        Reshape("~embeddings.mask_token", "embedding.mask_token", (1, 1, -1)),
        Reshape("~embeddings.position_embeddings", "embedding.position.weight", (1, -1, spec.width)),
        *[Rename(f"{theirs}.{{p}}", f"{name}.{{p}}") for theirs, name in modules.items()],
        *pixel_rules(spec, spec.width),
    ]


def size(width: int, depth: int, heads: int, patch: int = 16) -> dict[str, int]:
    return {
        "hidden_size": width, "num_hidden_layers": depth, "num_attention_heads": heads, "intermediate_size": 4 * width,
        "patch_size": patch, "num_labels": 1000,
    }  # fmt: skip
