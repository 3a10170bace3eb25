"""Reka's layout [Ormazabal et al. 2024]: a decoder that reads the outputs of an image tower and an audio tower among
its tokens. Frames of a video are consecutive images: `pixel_values` may be (videos, channels, frames, height, width).
Sizes and weights are not published: we combine LLaVA's parts with Whisper's encoder, and models are saved only in our
own format."""

from __future__ import annotations

from typing import Any

from anyformer.families import llava, whisper
from anyformer.families.base.family import Family, Size
from anyformer.families.base.template import Class, Config, Entry
from anyformer.parts import EncoderModel, Model, Normal, Tower
from anyformer.specs.addresses import value_at
from anyformer.weights.rules import Rule

STACK = "audio.model.encoder"
AUDIO_FIELDS: dict[str, Any] = {  # field of audio_config -> address
    "d_model": "audio.model.width",
    "num_mel_bins": "audio.model.embedding.channels",
    "max_source_positions": "audio.model.embedding.position.length",
    "encoder_layers": f"{STACK}.depth",
    "encoder_attention_heads": f"{STACK}.layers.attention.op.num_heads",
    "encoder_ffn_dim": f"{STACK}.layers.feedforward.op.width",
}


def audio_config(spec: Model) -> dict[str, Any]:
    return {name: Entry(None, path).recover(spec) for name, path in AUDIO_FIELDS.items()}


CONFIG: dict[str, Any] = {
    **llava.LLAVA.config,
    "vision_feature_layer": Entry(-1, llava.feature_layer),
    "audio_config": Entry(None, audio_config, frozenset(whisper.WHISPER.all_fields)),
    "audio_token_index": Entry(32001, "audio.token"),
}


def describe(c: Config) -> Model:
    """Recordings are padded to `max_source_positions`, so that each gives the same number of vectors."""
    if unknown := sorted((c.audio_config or {}).keys() - AUDIO_FIELDS.keys() - {"model_type"}):
        raise ValueError(f"audio_config.{unknown[0]} is not known; valid: {', '.join(AUDIO_FIELDS)}")
    given: Any = llava.read_inner_config(c, "audio_config", whisper.WHISPER, whisper.CLASSIFIER)
    tower = EncoderModel(
        width=given.width, embedding=given.embedding, encoder=given.encoder, init={"*": Normal(std=0.02)}
    )
    spec = llava.describe(c)
    image = value_at(spec, "image")
    image = image.replace(model=image.model.replace(head=None))  # every layer is trained
    audio = Tower(model=tower, token=c.audio_token_index, projector=image.projector)
    return spec.replace(image=image, audio=audio)


def rules(spec: Model) -> list[Rule]:
    raise ValueError("no reka checkpoints are published; load a folder saved by anyformer (with spec.json)")


SMALL = {
    "text_config": {
        "vocab_size": 32064, "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8,
        "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 2048,
    },
    "vision_config": {
        "hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6, "num_attention_heads": 6,
        "image_size": 224, "patch_size": 16,
    },
    "audio_config": {
        "d_model": 384, "encoder_layers": 4, "encoder_attention_heads": 6, "encoder_ffn_dim": 1536,
        "max_source_positions": 500,
    },
}  # fmt: skip
REKA = Family(
    name="reka",
    about="chat about images and sounds: a decoder with an image and an audio encoder",
    tokenizer="",
    template=describe,
    classes={"": Class()},
    config=CONFIG,
    weights=rules,
    aliases=llava.LLAVA.aliases,
    sizes={"reka-tiny": Size(SMALL, note="our own size: images of 224 x 224, sounds of 10 seconds")},
)
