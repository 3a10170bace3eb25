"""MERLOT Reserve [Zellers et al. 2022]: one encoder over the frames, sounds and texts of a clip. It is trained to match
a masked span of text or sound with the vector that a small encoder computes from the span. The published weights have a
different format, so models are saved only in our own format. Frames are never masked."""

from __future__ import annotations

import math

from anyformer.families.base.family import Family, Size
from anyformer.families.base.template import Class, Config, Weights, activation, equal_heads
from anyformer.families.shared.vision import square
from anyformer.parts import (
    Attention, Block, Embedding, EncoderModel, Head, HiddenSpansHead, HiddenSpansModel, LayerNorm, Learned, MLP,
    MeanTokens, Model, Normal, PatchEmbedding, Pool, ProjectionHead, SegmentEmbedding, Stack, Sublayer, TextEmbedding,
    Tokens, Tower,
)  # fmt: skip

NORM, INIT = LayerNorm(eps=1e-6), {"*": Normal(std=0.02)}
STACK = Stack(
    depth=12,
    layers=Block(
        attention=Sublayer(pre_norm=NORM, op=Attention(num_heads=12)),
        feedforward=Sublayer(pre_norm=NORM, op=MLP(width=3072, activation="gelu")),
    ),
    norm=NORM,
)
SMALL_STACK = STACK.replace(depth=4)
TEXT = TextEmbedding(tokens=Tokens(vocab_size=32768), position=Learned(length=640))
SPAN = TEXT.replace(position=Learned(length=16))
IMAGE = PatchEmbedding(image_size=(224, 224), patch_size=(32, 32), position=Learned(length=7 * 7), pad=False)
SOUND = SegmentEmbedding(size=1024, position=Learned(length=24))
PROJECTION = ProjectionHead(pool=Pool(take=MeanTokens()), width=768)


def encoder(embedding: Embedding, stack: Stack, head: Head | None = None) -> EncoderModel:
    return EncoderModel(width=768, embedding=embedding, encoder=stack, head=head, init=INIT)


TEMPLATE = HiddenSpansModel(
    width=768,
    embedding=TEXT,
    encoder=STACK,
    image=Tower(model=encoder(IMAGE, STACK), token=4),
    audio=Tower(model=encoder(SOUND, STACK), token=5),
    hidden_text=encoder(SPAN, SMALL_STACK, PROJECTION),
    hidden_audio=encoder(SOUND, SMALL_STACK, PROJECTION.replace(name="audio_embeds")),
    head=HiddenSpansHead(width=768, text=6, audio=7, scale=2.6592),
    init=INIT,
    ties=(("hidden_text.embedding.tokens.weight", "embedding.tokens.weight"),),
)


def patches(c: Config) -> int:
    size, patch = (c.image_size, c.image_size), (c.patch_size, c.patch_size)
    return math.prod(PatchEmbedding(image_size=size, patch_size=patch).grid)


def weights(spec: Model) -> Weights:
    raise ValueError("reserve checkpoints cannot be loaded; load a folder saved by anyformer (with spec.json)")


SMALL = {
    "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024, "num_hidden_layers": 4,
    "num_image_layers": 4, "num_audio_layers": 4, "num_span_layers": 2, "vocab_size": 8192, "projection_dim": 256,
    "image_size": 64, "patch_size": 16, "segment_size": 640, "num_segments": 25, "max_position_embeddings": 256,
}  # fmt: skip
RESERVE = Family(
    name="reserve",
    about="MERLOT Reserve: one encoder for video frames, sounds and texts, trained to match masked spans",
    tokenizer="",
    template=TEMPLATE,
    classes={"": Class(TEMPLATE.head)},
    config={
        "hidden_size": ("width", "*.model.width", "hidden_text.width", "hidden_audio.width"),
        "num_attention_heads": "**.num_heads",
        "intermediate_size": "**.feedforward.op.width",
        "hidden_act": activation("**.feedforward.op.activation"),
        "layer_norm_eps": "**.eps",
        "num_hidden_layers": "encoder.depth",
        "num_image_layers": "image.model.encoder.depth",
        "num_audio_layers": "audio.model.encoder.depth",
        "num_span_layers": ("hidden_text.encoder.depth", "hidden_audio.encoder.depth"),
        "projection_dim": ("head.width", "hidden_text.head.width", "hidden_audio.head.width"),
        "logit_scale_init_value": "head.scale",
        "vocab_size": "**.vocab_size",
        "max_position_embeddings": "embedding.position.length",
        "max_span_positions": "hidden_text.embedding.position.length",
        "image_size": square("image.model.embedding.image_size"),
        "patch_size": square("image.model.embedding.patch_size"),
        "num_channels": "image.model.embedding.channels",
        "segment_size": ("audio.model.embedding.size", "hidden_audio.embedding.size"),
        "num_segments": ("audio.model.embedding.position.length", "hidden_audio.embedding.position.length"),
        "image_token_index": "image.token",
        "audio_token_index": "audio.token",
        "text_mask_index": "head.text",
        "audio_mask_index": "head.audio",
        "initializer_range": "**.init.*.std",
        "problem_type": None,
    },
    computed={"image.model.embedding.position.length": patches},
    checks=(equal_heads,),
    weights=weights,
    sizes={"reserve-tiny": Size(SMALL, note="our own size: frames of 64 x 64, segments of one second")},
)
