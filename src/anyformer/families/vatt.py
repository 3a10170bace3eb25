"""VATT [Akbari et al. 2021]: one stack that reads video patches, sound segments and texts. The published weights have a
different format, so models are saved only in our own format. Differences from the paper: the mean of the tokens
represents the input instead of a class token; video positions are one table; projections have no batch norm."""

from __future__ import annotations

import math
from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.template import Class, Config, Weights, activation, equal_heads
from anyformer.families.shared.vision import square
from anyformer.parts import (
    Attention, Block, Embedding, EncoderModel, LayerNorm, Learned, MLP, MeanTokens, Model, Normal, Pool, ProjectionHead,
    SegmentEmbedding, SpacesHead, Stack, Sublayer, TextEmbedding, ThreeTowerModel, Tokens, VideoEmbedding,
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


def tower(name: Any, embedding: Embedding, width: int = 512, **pool: Any) -> EncoderModel:
    head = ProjectionHead(pool=Pool(take=MeanTokens(), **pool), width=width, name=name)
    return EncoderModel(width=768, embedding=embedding, encoder=STACK, head=head, init=INIT)


TEMPLATE = ThreeTowerModel(
    width=512,
    text=tower("text_embeds", TextEmbedding(tokens=Tokens(vocab_size=65536), position=Learned(length=16)), width=256),
    video=tower(
        "video_embeds",
        VideoEmbedding(
            frames=32,
            frame_step=4,
            image_size=(224, 224),
            patch_size=(16, 16),
            position=Learned(length=8 * 14 * 14),
            token_drop=0.5,
            pad=False,
        ),
        dense=True,
        activation="relu",
    ),
    audio=tower("audio_embeds", SegmentEmbedding(size=128, position=Learned(length=1200), token_drop=0.5)),
    head=SpacesHead(width=256, temperature=0.07, weight=1.0),
    init=INIT,
    ties=(("video.encoder", "text.encoder"), ("audio.encoder", "text.encoder")),
)


def patches(c: Config) -> int:
    """Return the number of patches of a video."""
    image, patch = (c.image_size, c.image_size), (c.patch_size, c.patch_size)
    sizes: Any = {"frames": c.num_frames, "frame_step": c.frame_step, "image_size": image, "patch_size": patch}
    return math.prod(VideoEmbedding(**sizes).grid)


def weights(spec: Model) -> Weights:
    raise ValueError("VATT checkpoints cannot be loaded; load a folder saved by anyformer (with spec.json)")


SMALL = {
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_frames": 8,
    "image_size": 64,
    "num_segments": 250,
    "vocab_size": 8192,
    "audio_space": 256,
    "text_space": 128,
}
MEDIUM = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16}
VATT = Family(
    name="vatt",
    about="one stack for videos, sounds and texts, whose vectors are compared",
    tokenizer="",
    template=TEMPLATE,
    classes={"": Class(TEMPLATE.head)},
    config={
        "hidden_size": ("text.width", "video.width", "audio.width"),
        "num_hidden_layers": "*.encoder.depth",
        "num_attention_heads": "*.encoder.layers.attention.op.num_heads",
        "intermediate_size": "*.encoder.layers.feedforward.op.width",
        "hidden_act": activation("*.encoder.layers.feedforward.op.activation"),
        "layer_norm_eps": "**.eps",
        "audio_space": ("width", "video.head.width", "audio.head.width"),
        "text_space": ("head.width", "text.head.width"),
        "temperature": "head.temperature",
        "text_weight": "head.weight",
        "vocab_size": "text.embedding.tokens.vocab_size",
        "max_position_embeddings": "text.embedding.position.length",
        "num_frames": "video.embedding.frames",
        "frame_step": "video.embedding.frame_step",
        "image_size": square("video.embedding.image_size"),
        "patch_size": square("video.embedding.patch_size"),
        "num_channels": "video.embedding.channels",
        "segment_size": "audio.embedding.size",
        "num_segments": "audio.embedding.position.length",
        "token_drop": "*.embedding.token_drop",
        "initializer_range": "**.init.*.std",
        "problem_type": None,
    },
    computed={"video.embedding.position.length": patches},
    checks=(equal_heads,),
    weights=weights,
    sizes={
        "vatt-tiny": Size(SMALL, note="our own size: 8 frames of 64 x 64, 2 seconds of sound at 16 kHz"),
        "vatt-ma-medium": Size(MEDIUM, note="modality-agnostic: 32 frames of 224 x 224, 3.2 s at 48 kHz"),
    },
)
