"""Whisper [Radford et al. 2022]: an encoder reads 30 seconds of sound as a log-mel spectrogram; a decoder writes the
transcript, its language and timestamps."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Absent, Ignored
from anyformer.families.base.template import Class, Config, Entry, entry, parameter
from anyformer.families.shared import transformer
from anyformer.families.shared.speech import AUGMENT, AUGMENTATION
from anyformer.families.shared.transformer import check_padding
from anyformer.parts import (
    Attention, Block, Causal, ClassifyHead, EncoderDecoderModel, EncoderModel, LMHead, LayerMix, LayerNorm, Learned,
    MLP, MeanTokens, Model, Normal, Pool, Sinusoidal, SpecAugment, SpectrogramEmbedding, Stack, Sublayer, TextEmbedding,
    Tokens, Value,
)  # fmt: skip
from anyformer.specs.addresses import value_at

NORM = LayerNorm(eps=1e-5)
FEEDFORWARD = Sublayer(pre_norm=NORM, op=MLP(width=1536, activation="gelu"))
SOUND = SpectrogramEmbedding(
    channels=80, whole=True, position=Sinusoidal(length=1500, inclusive=True, stored=True), dropout=0.0
)
ENCODER = Stack(
    depth=4,
    layers=Block(
        attention=Sublayer(pre_norm=NORM, op=Attention(num_heads=6, bias="qvo")),
        feedforward=FEEDFORWARD,
    ),
    norm=NORM,
)
TEMPLATE = EncoderDecoderModel(
    width=384,
    embedding=SOUND.replace(
        augment=SpecAugment(
            time=0.05, time_span=10, time_least=2, channels=0.0, channel_span=10, channel_least=0,
            learned=False, active=False,
        )
    ),
    encoder=ENCODER,
    decoder_embedding=TextEmbedding(
        tokens=Tokens(vocab_size=51865, padding_index=50256), position=Learned(length=448), dropout=0.0
    ),
    decoder=Stack(
        depth=4,
        layers=Block(
            attention=Sublayer(pre_norm=NORM, op=Attention(num_heads=6, bias="qvo", mask=Causal())),
            cross=Sublayer(pre_norm=NORM, op=Attention(num_heads=6, bias="qvo", memory=True)),
            feedforward=FEEDFORWARD,
        ),
        norm=NORM,
    ),
    start_token=50257,
    padding_token=50256,
    init={"*": Normal(std=0.02)},
)  # fmt: skip
ONLY_ENCODER = EncoderModel(
    width=384,
    embedding=SOUND,
    encoder=ENCODER,
    init={"encoder.neck.weight": Value(value=0.2), "*": Normal(std=0.02)},
)
CLASSIFIER = "WhisperForAudioClassification"


def mixes(spec: Model) -> bool:
    if spec.architecture != CLASSIFIER:
        raise Absent
    return isinstance(value_at(spec, "encoder.neck"), LayerMix)


def tie(spec: Model, value: bool, c: Config) -> Model:
    shared = ("head.out.weight", "decoder_embedding.tokens.weight")
    return spec.replace(ties=(shared,)) if value and isinstance(spec.head, LMHead) else spec


def is_tied(spec: Model) -> bool:
    if not isinstance(spec.head, LMHead):
        raise Absent
    return bool(spec.ties)


CONFIG: dict[str, Any] = {
    **transformer.CONFIG,
    "vocab_size": ("decoder_embedding.tokens.vocab_size", "head.vocab_size"),
    "num_mel_bins": "embedding.channels",
    "max_source_positions": "embedding.position.length",
    "max_target_positions": "decoder_embedding.position.length",
    "tie_word_embeddings": Entry(True, is_tied, build=tie),
    "pad_token_id": ("decoder_embedding.tokens.padding_index", "padding_token"),
    "decoder_start_token_id": "start_token",
    "apply_spec_augment": f"{AUGMENT}.active",
    **AUGMENTATION,
    "use_weighted_layer_sum": entry(
        "encoder.neck",
        default=False,
        read=lambda value, c: LayerMix(tells=True) if value and c.architecture == CLASSIFIER else None,
        path=mixes,
    ),
    "classifier_proj_size": "head.pool.width",
    "problem_type": None,  # always one label per recording
    "scale_embedding": Ignored(False, "the published class computes the factor and does not use it"),
    "bos_token_id": Ignored(50256, "used by generation"),
    "eos_token_id": Ignored(50256, "used by generation"),
    "forced_decoder_ids": Ignored(None, "used by generation"),
    "median_filter_width": Ignored(7, "used to compute word timestamps from attention weights"),
}


def check(c: Config) -> None:
    for side in ("encoder",) if c.architecture == CLASSIFIER else ("encoder", "decoder"):
        if c.d_model % (heads := c[f"{side}_attention_heads"]):
            raise ValueError(f"d_model {c.d_model} is not a multiple of {side}_attention_heads {heads}")
    if c.architecture != CLASSIFIER:
        check_padding(c, c.vocab_size)


def size(width: int, layers: int, **more: Any) -> dict[str, Any]:
    """A size of the paper: both stacks have the same depth, heads are 64 wide."""
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


# English-only vocabulary: one token fewer, so special ids are lower by 1
ENGLISH = {
    "vocab_size": 51864,
    "bos_token_id": 50256,
    "eos_token_id": 50256,
    "pad_token_id": 50256,
    "decoder_start_token_id": 50257,
}
THIRD = {"vocab_size": 51866, "num_mel_bins": 128, "pad_token_id": 50256}  # adds Cantonese and more mel bins
SHAPES = {"tiny": (384, 4, 39e6), "base": (512, 6, 74e6), "small": (768, 12, 244e6), "medium": (1024, 24, 769e6)}

WHISPER = Family(
    name="whisper",
    about="multilingual speech recognition and translation, with timestamps",
    tokenizer="WhisperTokenizer",
    template=TEMPLATE,
    classes={
        "WhisperForConditionalGeneration": Class(LMHead(vocab_size=51865, shift=False), "proj_out"),
        "WhisperModel": Class(prefix=""),
        CLASSIFIER: Class(
            ClassifyHead(
                num_labels=2, pool=Pool(take=MeanTokens(), dense=True, width=256), problem="single_label_classification"
            ),
            "classifier",
            prefix="",
            template=ONLY_ENCODER,
            weights={"layer_weights": parameter("encoder.neck.weight"), "projector": "head.pool.dense"},
        ),
    },
    config=CONFIG,
    computed={"init.*.value": lambda c: 1 / (c.encoder_layers + 1)},
    weights={"~encoder.conv{1,2}": "embedding.convolutions.{0,1}", **transformer.weights("pre_norm")},
    prefix="model.",
    checks=(check,),
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
)
