"""Reka's layout [Ormazabal et al. 2024]: a decoder reads what one tower sees and another hears between its tokens.
Frames of a video are pictures, one behind the other: `pixel_values` may be (videos, channels, frames, height, width).
The sizes were not published, nor the weights: here are a LLaVA's parts and the encoder of a Whisper beside them, in
descriptions that are saved in our own form."""

from __future__ import annotations

from typing import Any

from anyformer.families import llava, whisper
from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import ConfigField, Field, with_defaults
from anyformer.families.base.template import Config
from anyformer.models import EncoderModel, Model, Tower
from anyformer.parts.init import Normal
from anyformer.specs.addresses import value_at
from anyformer.weights.rules import Rule

LLAVA, WHISPER = llava.FAMILIES[0], whisper.FAMILIES[0]
STACK = "audio.model.encoder"
AUDIO_FIELDS: dict[str, Any] = {  # published field -> where it stands
    "d_model": "audio.model.width",
    "num_mel_bins": "audio.model.embedding.channels",
    "max_source_positions": "audio.model.embedding.position.length",
    "encoder_layers": f"{STACK}.depth",
    "encoder_attention_heads": f"{STACK}.layers.attention.op.num_heads",
    "encoder_ffn_dim": f"{STACK}.layers.feedforward.op.width",
}


def audio_config(spec: Model) -> dict[str, Any]:
    return {name: Field(None, path).recover(spec) for name, path in AUDIO_FIELDS.items()}


FIELDS: dict[str, ConfigField] = {
    **LLAVA.fields,
    **with_defaults(LLAVA.fields, vision_feature_layer=-1),
    "audio_config": Field(None, audio_config, frozenset(WHISPER.all_fields)),
    "audio_token_index": Field(32001, "audio.token"),
}


def describe(c: Config) -> Model:
    """All recordings are filled up to `max_source_positions`, so that each makes as many vectors."""
    if strange := sorted((c.audio_config or {}).keys() - AUDIO_FIELDS.keys() - {"model_type"}):
        raise ValueError(f"audio_config.{strange[0]} is not known; valid: {', '.join(AUDIO_FIELDS)}")
    given: Any = llava.read_inner_config(c, "audio_config", WHISPER, whisper.CLASSIFIER)
    tower = EncoderModel(
        width=given.width, embedding=given.embedding, encoder=given.encoder, init={"*": Normal(std=0.02)}
    )
    spec = llava.describe(c)
    image = value_at(spec, "image")
    image = image.replace(model=image.model.replace(head=None))  # all of it learns
    audio = Tower(model=tower, token=c.audio_token_index, activation=image.activation, bias=image.bias)
    return spec.replace(image=image, audio=audio)


def rules(spec: Model) -> list[Rule]:
    raise ValueError("no files of a reka are published; load a folder that anyformer saved (spec.json)")


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
FAMILIES = (
    Family(
        name="reka",
        about="pictures and sounds between the tokens of a text that is written on",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=(),
        aliases=LLAVA.aliases,
        sizes={"reka-tiny": Size(SMALL, note="a size of our own: pictures of 224, sounds of 10 seconds")},
    ),
)
