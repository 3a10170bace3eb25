"""Whisper [Radford et al. 2022]: an encoder reads 30 seconds of sound as a log-mel spectrogram; a decoder writes what
was said, in which language, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Absent, ConfigField, Field, Ignored, again
from anyformer.families.base.template import rules_of
from anyformer.families.shared import transformer
from anyformer.families.shared.speech import AUGMENT, HIDDEN, augment
from anyformer.families.shared.transformer import check_padding, stack, target
from anyformer.models import EncoderDecoderModel, EncoderModel, Model
from anyformer.parts.activation import published_name
from anyformer.parts.embedding.spectrogram import SpectrogramEmbedding
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.head.classify import ClassifyHead
from anyformer.parts.head.language import LMHead
from anyformer.parts.head.pool import Pool
from anyformer.parts.init import Normal, Value
from anyformer.parts.layer_mix import LayerMix
from anyformer.parts.position.absolute import Learned, Sinusoidal
from anyformer.specs.addresses import at
from anyformer.weights.rules import Rename, Rule

CLASSIFIER = "WhisperForAudioClassification"
TIE = ("head.out.weight", "decoder_embedding.tokens.weight")


def either(path: str) -> Callable[[Any], Any]:
    """Reads what both stacks have from the decoder, or from the encoder of a model without one."""
    return lambda spec: at(spec, f"{'decoder' if spec.pair else 'encoder'}.layers.{path}")


def mixes(spec: Any) -> bool:
    if spec.architecture != CLASSIFIER:
        raise Absent
    return isinstance(spec.encoder.neck, LayerMix)


def is_tied(spec: Any) -> bool:
    if not isinstance(spec.head, LMHead):
        raise Absent
    return bool(spec.ties)


FIELDS: dict[str, ConfigField] = {
    **transformer.FIELDS,
    "vocab_size": Field(51865, lambda spec: target(spec).tokens.vocab_size),
    "num_mel_bins": Field(80, "embedding.channels"),
    **again(
        transformer.FIELDS,
        d_model=384,
        dropout=0.0,
        **{
            f"{side}_{name}": value
            for side in ("encoder", "decoder")
            for name, value in (("layers", 4), ("attention_heads", 6), ("ffn_dim", 1536))
        },
    ),
    "attention_dropout": Field(0.0, either("attention.op.dropout")),
    "activation_dropout": Field(0.0, either("feedforward.op.dropout")),
    "activation_function": Field("gelu", lambda spec: published_name(either("feedforward.op.activation")(spec))),
    "max_source_positions": Field(1500, "embedding.position.length"),
    "max_target_positions": Field(448, "decoder_embedding.position.length"),
    "tie_word_embeddings": Field(True, is_tied),
    "pad_token_id": Field(50256, "decoder_embedding.tokens.padding_index"),
    "decoder_start_token_id": Field(50257, "start_token"),
    "apply_spec_augment": Field(False, f"{AUGMENT}.active"),
    **HIDDEN,
    "use_weighted_layer_sum": Field(False, mixes),
    "classifier_proj_size": Field(256, "head.pool.width"),
    "scale_embedding": Ignored(False, "the published class computes the factor and does not use it"),
    "bos_token_id": Ignored(50256, "used by generation"),
    "eos_token_id": Ignored(50256, "used by generation"),
    "forced_decoder_ids": Ignored(None, "used by generation"),
    "median_filter_width": Ignored(7, "used to find when words are said, from attention weights"),
}


def describe(c: Any) -> Model:
    classifies = c.architecture == CLASSIFIER
    encoder, init = stack(c, "encoder", bias="qvo"), {"*": Normal(std=c.init_std)}
    embedding = SpectrogramEmbedding(
        channels=c.num_mel_bins,
        whole=True,
        dropout=c.dropout,
        augment=None if classifies else augment(c, False),
        position=Sinusoidal(length=c.max_source_positions, inclusive=True, stored=True),
    )
    if classifies:
        mix = LayerMix(tells=True) if c.use_weighted_layer_sum else None
        pool = Pool(take="mean", dense=True, width=c.classifier_proj_size)
        return EncoderModel(
            width=c.d_model,
            embedding=embedding,
            encoder=encoder.replace(neck=mix),
            head=ClassifyHead(num_labels=c.num_labels, pool=pool, problem="single_label_classification"),
            init={"encoder.neck.weight": Value(value=1 / (c.encoder_layers + 1)), **init},
        )
    check_padding(c, c.vocab_size)
    writes = c.architecture == "WhisperForConditionalGeneration"
    return EncoderDecoderModel(
        width=c.d_model,
        embedding=embedding,
        encoder=encoder,
        decoder_embedding=TextEmbedding(
            tokens=Tokens(vocab_size=c.vocab_size, padding_index=c.pad_token_id),
            dropout=c.dropout,
            position=Learned(length=c.max_target_positions),
        ),
        decoder=stack(c, "decoder", bias="qvo"),
        start_token=c.decoder_start_token_id,
        padding_token=c.pad_token_id,
        head=LMHead(vocab_size=c.vocab_size, shift=False) if writes else None,
        ties=(TIE,) if writes and c.tie_word_embeddings else (),
        init=init,
    )


def rules(spec: Model) -> list[Rule]:
    out = "classifier" if isinstance(spec, EncoderModel) else "proj_out"
    return [
        *[Rename(f"~encoder.conv{i + 1}.{{p}}", f"embedding.convolutions.{i}.{{p}}") for i in range(2)],
        *rules_of(transformer.weights("pre_norm"), spec),
        Rename("layer_weights", "encoder.neck.weight"),
        Rename("projector.{p}", "head.pool.dense.{p}"),
        Rename(f"{out}.{{p}}", "head.out.{p}"),
    ]


def size(width: int, layers: int, **more: Any) -> dict[str, Any]:
    """The sizes that the paper lists: both stacks equally deep, heads 64 wide."""
    sides = {"layers": layers, "attention_heads": width // 64, "ffn_dim": 4 * width}
    return {
        "d_model": width,
        **{f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in sides.items()},
        "bos_token_id": 50257,
        "eos_token_id": 50257,
        "pad_token_id": 50257,
        "decoder_start_token_id": 50258,
        **more,
    }


# English alone: one token fewer, and the special ones stand one lower
ENGLISH = {
    "vocab_size": 51864,
    "bos_token_id": 50256,
    "eos_token_id": 50256,
    "pad_token_id": 50256,
    "decoder_start_token_id": 50257,
}
THIRD = {"vocab_size": 51866, "num_mel_bins": 128, "pad_token_id": 50256}  # Cantonese, and finer spectrograms
SHAPES = {"tiny": (384, 4, 39e6), "base": (512, 6, 74e6), "small": (768, 12, 244e6), "medium": (1024, 24, 769e6)}

FAMILIES = (
    Family(
        name="whisper",
        about="speech in many languages into text, with times",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=("WhisperForConditionalGeneration", "WhisperModel", CLASSIFIER),
        base=("WhisperModel", CLASSIFIER),
        prefix="model.",
        aliases={**transformer.ALIASES, "num_key_value_heads": "encoder_attention_heads"},
        sizes={
            **{f"whisper-{name}": Size(size(width, layers), count) for name, (width, layers, count) in SHAPES.items()},
            **{
                f"whisper-{name}.en": Size(size(width, layers, **ENGLISH), count)
                for name, (width, layers, count) in SHAPES.items()
            },
            "whisper-large-v2": Size(size(1280, 32), 1550e6),
            "whisper-large-v3": Size(size(1280, 32, **THIRD), 1550e6),
            "whisper-large-v3-turbo": Size(size(1280, 32, **THIRD, decoder_layers=4), 809e6),
        },
    ),
)
