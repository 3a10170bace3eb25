"""MERLOT Reserve [Zellers et al. 2022]: one encoder over the frames, sounds and texts of a clip. It is trained to match
a masked span of text or sound with the vector that a small encoder computes from the span. The published weights have a
different format, so models are saved only in our own format. Frames are never masked."""

from __future__ import annotations

import math

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import ConfigField, Entry, activation_at
from anyformer.families.base.template import Config, equal_heads
from anyformer.parts import (
    Attention, Block, Embedding, EncoderModel, Head, HiddenSpansHead, HiddenSpansModel, LayerNorm, Learned, MLP,
    MeanTokens, Model, Normal, PatchEmbedding, Pool, ProjectionHead, SegmentEmbedding, Stack, Sublayer, TextEmbedding,
    Tokens, Tower,
)  # fmt: skip
from anyformer.parts.activation import activation_named
from anyformer.weights.rules import Rule

OP = "encoder.layers.feedforward.op"
IMAGE, AUDIO = "image.model.embedding", "audio.model.embedding"

FIELDS: dict[str, ConfigField] = {
    "hidden_size": Entry(768, "width"),
    "num_attention_heads": Entry(12, "encoder.layers.attention.op.num_heads"),
    "intermediate_size": Entry(3072, f"{OP}.width"),
    "hidden_act": Entry("gelu", activation_at(f"{OP}.activation")),
    "layer_norm_eps": Entry(1e-6, "encoder.norm.eps"),
    "num_hidden_layers": Entry(12, "encoder.depth"),
    "num_image_layers": Entry(12, "image.model.encoder.depth"),
    "num_audio_layers": Entry(12, "audio.model.encoder.depth"),
    "num_span_layers": Entry(4, "hidden_text.encoder.depth"),
    "projection_dim": Entry(768, "head.width"),
    "logit_scale_init_value": Entry(2.6592, "head.scale"),
    "vocab_size": Entry(32768, "embedding.tokens.vocab_size"),
    "max_position_embeddings": Entry(640, "embedding.position.length"),
    "max_span_positions": Entry(16, "hidden_text.embedding.position.length"),
    "image_size": Entry(224, lambda spec: spec.image.model.embedding.image_size[0]),
    "patch_size": Entry(32, lambda spec: spec.image.model.embedding.patch_size[0]),
    "num_channels": Entry(3, f"{IMAGE}.channels"),
    "segment_size": Entry(1024, f"{AUDIO}.size"),
    "num_segments": Entry(24, f"{AUDIO}.position.length"),
    "image_token_index": Entry(4, "image.token"),
    "audio_token_index": Entry(5, "audio.token"),
    "text_mask_index": Entry(6, "head.text"),
    "audio_mask_index": Entry(7, "head.audio"),
    "initializer_range": Entry(0.02, lambda spec: spec.init["*"].std),
}


def describe(c: Config) -> Model:
    equal_heads(c)
    norm, init = LayerNorm(eps=c.layer_norm_eps), {"*": Normal(std=c.initializer_range)}

    def stack(depth: int) -> Stack:
        mlp = MLP(width=c.intermediate_size, activation=activation_named(c.hidden_act))
        block = Block(
            attention=Sublayer(pre_norm=norm, op=Attention(num_heads=c.num_attention_heads)),
            feedforward=Sublayer(pre_norm=norm, op=mlp),
        )
        return Stack(layers=block, depth=depth, norm=norm)

    def encoder(embedding: Embedding, depth: int, head: Head | None = None) -> EncoderModel:
        return EncoderModel(width=c.hidden_size, embedding=embedding, encoder=stack(depth), head=head, init=init)

    def read(length: int) -> TextEmbedding:
        return TextEmbedding(tokens=Tokens(vocab_size=c.vocab_size), position=Learned(length=length))

    size, patch = (c.image_size, c.image_size), (c.patch_size, c.patch_size)
    pixels = PatchEmbedding(image_size=size, patch_size=patch, channels=c.num_channels, pad=False)
    pixels = pixels.replace(position=Learned(length=math.prod(pixels.grid)))
    sound = SegmentEmbedding(size=c.segment_size, position=Learned(length=c.num_segments))
    mean = Pool(take=MeanTokens())
    text = ProjectionHead(pool=mean, width=c.projection_dim)
    audio = text.replace(name="audio_embeds")
    return HiddenSpansModel(
        width=c.hidden_size,
        embedding=read(c.max_position_embeddings),
        encoder=stack(c.num_hidden_layers),
        image=Tower(model=encoder(pixels, c.num_image_layers), token=c.image_token_index),
        audio=Tower(model=encoder(sound, c.num_audio_layers), token=c.audio_token_index),
        hidden_text=encoder(read(c.max_span_positions), c.num_span_layers, text),
        hidden_audio=encoder(sound, c.num_span_layers, audio),
        head=HiddenSpansHead(
            width=c.projection_dim, text=c.text_mask_index, audio=c.audio_mask_index, scale=c.logit_scale_init_value
        ),
        init=init,
        ties=(("hidden_text.embedding.tokens.weight", "embedding.tokens.weight"),),
    )


def rules(spec: Model) -> list[Rule]:
    raise ValueError("reserve checkpoints cannot be loaded; load a folder saved by anyformer (with spec.json)")


SMALL = {
    "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024, "num_hidden_layers": 4,
    "num_image_layers": 4, "num_audio_layers": 4, "num_span_layers": 2, "vocab_size": 8192, "projection_dim": 256,
    "image_size": 64, "patch_size": 16, "segment_size": 640, "num_segments": 25, "max_position_embeddings": 256,
}  # fmt: skip
FAMILIES = (
    Family(
        name="reserve",
        about="MERLOT Reserve: one encoder for video frames, sounds and texts, trained to match masked spans",
        tokenizer="",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=(),
        sizes={"reserve-tiny": Size(SMALL, note="our own size: frames of 64 x 64, segments of one second")},
    ),
)
