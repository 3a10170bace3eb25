"""VATT [Akbari et al. 2021]: one stack that reads video patches, sound segments and texts. The published weights have a
different format, so models are saved only in our own format. Differences from the paper: the mean of the tokens
represents the input instead of a class token; video positions are one table; projections have no batch norm."""

from __future__ import annotations

import math
from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import ConfigField, Entry, activation_at
from anyformer.families.base.template import Config, equal_heads
from anyformer.parts import (
    Attention, Block, Embedding, EncoderModel, LayerNorm, Learned, MLP, MeanTokens, Model, Normal, Pool, ProjectionHead,
    SegmentEmbedding, SpacesHead, Stack, Sublayer, TextEmbedding, ThreeTowerModel, Tokens, VideoEmbedding,
)  # fmt: skip
from anyformer.parts.activation import activation_named
from anyformer.weights.rules import Rule

STACK = "text.encoder"
VIDEO, AUDIO = "video.embedding", "audio.embedding"

FIELDS: dict[str, ConfigField] = {
    "hidden_size": Entry(768, "text.width"),
    "num_hidden_layers": Entry(12, f"{STACK}.depth"),
    "num_attention_heads": Entry(12, f"{STACK}.layers.attention.op.num_heads"),
    "intermediate_size": Entry(3072, f"{STACK}.layers.feedforward.op.width"),
    "hidden_act": Entry("gelu", activation_at(f"{STACK}.layers.feedforward.op.activation")),
    "layer_norm_eps": Entry(1e-6, f"{STACK}.norm.eps"),
    "audio_space": Entry(512, "width"),
    "text_space": Entry(256, "head.width"),
    "temperature": Entry(0.07, "head.temperature"),
    "text_weight": Entry(1.0, "head.weight"),
    "vocab_size": Entry(65536, "text.embedding.tokens.vocab_size"),
    "max_position_embeddings": Entry(16, "text.embedding.position.length"),
    "num_frames": Entry(32, f"{VIDEO}.frames"),
    "frame_step": Entry(4, f"{VIDEO}.frame_step"),
    "image_size": Entry(224, lambda spec: spec.video.embedding.image_size[0]),
    "patch_size": Entry(16, lambda spec: spec.video.embedding.patch_size[0]),
    "num_channels": Entry(3, f"{VIDEO}.channels"),
    "segment_size": Entry(128, f"{AUDIO}.size"),
    "num_segments": Entry(1200, f"{AUDIO}.position.length"),
    "token_drop": Entry(0.5, f"{AUDIO}.token_drop"),
    "initializer_range": Entry(0.02, lambda spec: spec.text.init["*"].std),
}


def describe(c: Config) -> Model:
    equal_heads(c)
    norm = LayerNorm(eps=c.layer_norm_eps)
    mlp = MLP(width=c.intermediate_size, activation=activation_named(c.hidden_act))
    block = Block(
        attention=Sublayer(pre_norm=norm, op=Attention(num_heads=c.num_attention_heads)),
        feedforward=Sublayer(pre_norm=norm, op=mlp),
    )
    stack = Stack(layers=block, depth=c.num_hidden_layers, norm=norm)
    video = VideoEmbedding(
        frames=c.num_frames,
        frame_step=c.frame_step,
        image_size=(c.image_size,) * 2,
        patch_size=(c.patch_size,) * 2,
        channels=c.num_channels,
        token_drop=c.token_drop,
        pad=False,
    )
    words = TextEmbedding(tokens=Tokens(vocab_size=c.vocab_size), position=Learned(length=c.max_position_embeddings))
    sound = SegmentEmbedding(size=c.segment_size, position=Learned(length=c.num_segments), token_drop=c.token_drop)

    def tower(name: Any, embedding: Embedding, width: int, pool: Pool) -> EncoderModel:
        head = ProjectionHead(pool=pool, width=width, name=name)
        init = {"*": Normal(std=c.initializer_range)}
        return EncoderModel(width=c.hidden_size, embedding=embedding, encoder=stack, head=head, init=init)

    mean, deep = Pool(take=MeanTokens()), Pool(take=MeanTokens(), dense=True, activation="relu")
    return ThreeTowerModel(
        width=c.audio_space,
        text=tower("text_embeds", words, c.text_space, mean),
        video=tower("video_embeds", video.replace(position=Learned(length=math.prod(video.grid))), c.audio_space, deep),
        audio=tower("audio_embeds", sound, c.audio_space, mean),
        head=SpacesHead(width=c.text_space, temperature=c.temperature, weight=c.text_weight),
        init={"*": Normal(std=c.initializer_range)},
        ties=(("video.encoder", STACK), ("audio.encoder", STACK)),
    )


def rules(spec: Model) -> list[Rule]:
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
FAMILIES = (
    Family(
        name="vatt",
        about="one stack for videos, sounds and texts, whose vectors are compared",
        tokenizer="",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=(),
        sizes={
            "vatt-tiny": Size(SMALL, note="our own size: 8 frames of 64 x 64, 2 seconds of sound at 16 kHz"),
            "vatt-ma-medium": Size(MEDIUM, note="modality-agnostic: 32 frames of 224 x 224, 3.2 s at 48 kHz"),
        },
    ),
)
