"""CLIP's image encoder [Radford et al. 2021]: the vector of a class token represents the image. `clip.py` compares it
with the vectors of texts."""

from __future__ import annotations

from anyformer.families.base.fields import Absent, Entry
from anyformer.families.base.template import Class, Config, parameter
from anyformer.families.clip_text_model import NORM, TEXT, factor, init, short, std
from anyformer.families.shared.vision import square
from anyformer.parts import (
    Attention, Block, EncoderModel, FirstToken, Initializer, Learned, MLP, Model, Normal, PatchEmbedding, Pool,
    PooledOutput, PrefixTokens, ProjectionHead, Stack, Sublayer,
)  # fmt: skip

TEMPLATE = EncoderModel(
    width=768,
    embedding=PatchEmbedding(
        image_size=(224, 224),
        patch_size=(32, 32),
        prefix=(PrefixTokens(),),
        bias=False,
        pad=False,
        position=Learned(length=49, offset=1),
        out_norm=NORM,
    ),
    encoder=Stack(
        depth=12,
        layers=Block(
            attention=Sublayer(pre_norm=NORM, op=Attention(num_heads=12)),
            feedforward=Sublayer(pre_norm=NORM, op=MLP(width=3072, activation="quick_gelu")),
        ),
        shows="stream",
    ),
    init=init(768, 12, more={"embedding.prefix.*": Normal(std=768**-0.5)}),
)
POOL = Pool(take=FirstToken(), norm=NORM)


def image_init(c: Config) -> dict[str, Initializer]:
    first = Normal(std=c.hidden_size**-0.5 * c.initializer_factor)
    sizes = c.hidden_size, c.num_hidden_layers, c.initializer_factor, c.initializer_range
    return init(*sizes, more={"embedding.prefix.*": first})


def initializer_range(spec: Model) -> float:
    if not factor(spec):  # with factor 0 every std is 0
        raise Absent
    return short(std(spec, "*") / factor(spec))


IMAGE = TEXT.but(
    "clip_vision_model",
    about="CLIP's image encoder",
    template=TEMPLATE,
    classes={
        "CLIPVisionModel": Class(PooledOutput(pool=POOL), prefix=""),
        "CLIPVisionModelWithProjection": Class(ProjectionHead(pool=POOL, width=512, name="image_embeds")),
    },
    config={
        "num_channels": "embedding.channels",
        "image_size": square("embedding.image_size"),
        "patch_size": square("embedding.patch_size"),
        "layer_norm_eps": ("encoder.layers.*.pre_norm.eps", "embedding.out_norm.eps", "head.pool.norm.eps"),
        "initializer_range": Entry(0.02, initializer_range),
        **dict.fromkeys(("vocab_size", "max_position_embeddings", "eos_token_id", "bos_token_id", "pad_token_id")),
    },
    computed={"embedding.position.length": lambda c: (c.image_size // c.patch_size) ** 2, "init": image_init},
    weights={
        "~embeddings.patch_embedding": "embedding.patch",
        "~embeddings.class_embedding": parameter("embedding.prefix.0.weight", (-1,)),
        "~pre_layrnorm": "embedding.out_norm",
        "~post_layernorm": "head.pool.norm",
        "visual_projection": "head.project",
        **dict.fromkeys(("~embeddings.{token,position}_embedding", "~final_layer_norm", "text_projection")),
        "~embeddings.position_embedding": "embedding.position",
    },
    prefix="vision_model.",
)
