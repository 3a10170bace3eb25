"""SigLIP's text encoder [Zhai et al. 2023]: bidirectional layers; the projected vector at the last index represents the
text, which is padded to its full length. `siglip.py` compares it with the vectors of images."""

from __future__ import annotations

from anyformer.families.base.fields import Ignored
from anyformer.families.base.template import Class, Config, derived
from anyformer.families.clip_text_model import TEXT as CLIP_TEXT
from anyformer.parts import (
    Attention, Block, EncoderModel, Initializer, Kaiming, LastColumn, LayerNorm, Learned, MLP, Normal, Pool,
    PooledOutput, Stack, Sublayer, TextEmbedding, Tokens, Xavier,
)  # fmt: skip

NORM = LayerNorm(eps=1e-6)
INIT: dict[str, Initializer] = {
    "encoder.layers.*.op.[qkvo].weight": Xavier(),
    **dict.fromkeys(("*.up.weight", "*.down.weight"), Xavier()),
    **dict.fromkeys(("*.up.bias", "*.down.bias"), Normal(std=1e-6)),
    "*": Kaiming(gain=1.0),
}


def text_init(vocab_size: int, length: int) -> dict[str, Initializer]:
    tables = {"embedding.tokens.weight": vocab_size, "embedding.position.weight": length}
    return {**{name: Normal(std=rows**-0.5) for name, rows in tables.items()}, **INIT}


def computed_init(c: Config) -> dict[str, Initializer]:
    return text_init(c.vocab_size, c.max_position_embeddings)


TEMPLATE = EncoderModel(
    width=768,
    embedding=TextEmbedding(tokens=Tokens(vocab_size=32000), position=Learned(length=64)),
    encoder=Stack(
        depth=12,
        layers=Block(
            attention=Sublayer(pre_norm=NORM, op=Attention(num_heads=12)),
            feedforward=Sublayer(pre_norm=NORM, op=MLP(width=3072, activation="gelu_tanh")),
        ),
        norm=NORM,
        shows="stream",
    ),
    init=text_init(32000, 64),
)

TEXT = CLIP_TEXT.but(
    "siglip_text_model",
    about="SigLIP's text encoder",
    template=TEMPLATE,
    tokenizer="SiglipTokenizer",
    base_tokenizer="unnamed",
    classes={
        "SiglipTextModel": Class(
            PooledOutput(pool=Pool(take=LastColumn(fill_token=1), dense=True, width=768)), prefix=""
        ),
    },
    config={
        "projection_size": derived("head.pool.width", of=lambda c: c.hidden_size, unset=(None,)),
        "pad_token_id": "head.pool.take.fill_token",
        "eos_token_id": Ignored(49407, "a token id, used by tokenizers"),
        **dict.fromkeys(("projection_dim", "initializer_factor", "initializer_range", "dropout")),
    },
    computed={"init": computed_init},
    weights={"~head": "head.pool.dense", "text_projection": None},
)
