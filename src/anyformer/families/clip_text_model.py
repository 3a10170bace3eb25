"""CLIP's text encoder [Radford et al. 2021]: causal layers; the vector of the end token represents the text. `clip.py`
compares it with the vectors of images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families.base.family import Family
from anyformer.families.base.fields import Entry, Ignored
from anyformer.families.base.template import Class, activation, entry, equal_heads
from anyformer.families.shared.vision import SHOWS
from anyformer.parts import (
    Attention, Block, Causal, EncoderModel, FirstOccurrence, HighestId, Initializer, LayerNorm, Learned, MLP, Model,
    Normal, Pool, PooledOutput, ProjectionHead, Stack, Sublayer, TextEmbedding, Tokens,
)  # fmt: skip
from anyformer.specs.part import Table

ATTENTION, INNER, LAYER = "encoder.layers.attention.op", "encoder.layers.feedforward.op", "encoder.layers.{i}"
OUT = "encoder.layers.*.op.o.weight"
NORM = LayerNorm(eps=1e-5)


def init(
    width: int, depth: int, factor: float = 1.0, other: float = 0.02, more: Mapping[str, Initializer] = Table()
) -> dict[str, Initializer]:
    """Return the published initialisers: smaller for weights whose outputs many layers add up."""
    deep = Normal(std=width**-0.5 * max(2 * depth, 1) ** -0.5 * factor)
    return {
        **{f"encoder.layers.*.op.{name}.weight": deep for name in ("q", "k", "v", "down")},
        OUT: Normal(std=width**-0.5 * factor),
        "encoder.layers.*.op.up.weight": Normal(std=(2 * width) ** -0.5 * factor),
        "head.*": Normal(std=width**-0.5 * factor),
        **more,
        "*": Normal(std=other * factor),
    }


TEMPLATE = EncoderModel(
    width=512,
    embedding=TextEmbedding(tokens=Tokens(vocab_size=49408), position=Learned(length=77)),
    encoder=Stack(
        depth=12,
        layers=Block(
            attention=Sublayer(pre_norm=NORM, op=Attention(num_heads=8, mask=Causal())),
            feedforward=Sublayer(pre_norm=NORM, op=MLP(width=2048, activation="quick_gelu")),
        ),
        norm=NORM,
        shows="stream",
    ),
    init=init(512, 12),
)
POOL = Pool(take=FirstOccurrence(token=49407))


def short(value: float) -> float:
    """Round away floating-point noise."""
    return float(f"{value:.12g}")


def std(spec: Model, key: str) -> float:
    start: Any = spec.init[key]
    return start.std


def factor(spec: Model, key: str = OUT) -> float:
    return short(std(spec, key) * spec.width**0.5)


CONFIG: dict[str, Any] = {
    "hidden_size": "width",
    "intermediate_size": f"{INNER}.width",
    "projection_dim": "head.width",
    "num_hidden_layers": "encoder.depth",
    "num_attention_heads": f"{ATTENTION}.num_heads",
    "hidden_act": activation(f"{INNER}.activation"),
    "layer_norm_eps": ("encoder.layers.*.pre_norm.eps", "encoder.norm.eps"),
    "attention_dropout": f"{ATTENTION}.dropout",
    "initializer_factor": Entry(1.0, factor),
    "vocab_size": "embedding.tokens.vocab_size",
    "max_position_embeddings": "embedding.position.length",
    "eos_token_id": entry(
        "head.pool.take",
        read=lambda token, c: HighestId() if token == 2 else FirstOccurrence(token=token),
        write=lambda take: take.token if isinstance(take, FirstOccurrence) else 2,
    ),
    **SHOWS,
    "bos_token_id": Ignored(49406, "a token id, used by tokenizers"),
    "pad_token_id": Ignored(1, "a token id, used by tokenizers"),
    "initializer_range": Ignored(0.02, "the text encoder does not use it"),
    "dropout": Ignored(0.0, "a field of old files that nothing reads"),
    "problem_type": None,
}

WEIGHTS = {
    "~embeddings.{token,position}_embedding": "embedding.{tokens,position}",
    "~encoder.layers.{i}.layer_norm{1,2}": f"{LAYER}.{{attention,feedforward}}.pre_norm",
    "~encoder.layers.{i}.self_attn.{q,k,v,out}_proj": f"{LAYER}.attention.op.{{q,k,v,o}}",
    "~encoder.layers.{i}.mlp.{fc1,fc2}": f"{LAYER}.feedforward.op.{{up,down}}",
    "~final_layer_norm": "encoder.norm",
    "text_projection": "head.project",
}

TEXT = Family(
    name="clip_text_model",
    about="CLIP's text encoder",
    template=TEMPLATE,
    classes={
        "CLIPTextModel": Class(PooledOutput(pool=POOL), prefix=""),
        "CLIPTextModelWithProjection": Class(ProjectionHead(pool=POOL, width=512)),
    },
    config=CONFIG,
    computed={"init": lambda c: init(c.hidden_size, c.num_hidden_layers, c.initializer_factor)},
    checks=(equal_heads,),
    weights=WEIGHTS,
    prefix="text_model.",
    dropped=("~embeddings.position_ids",),
)
