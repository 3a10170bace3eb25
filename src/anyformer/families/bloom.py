"""BLOOM [Scao et al. 2022]: pre-norm decoder with ALiBi instead of position vectors, and a norm after the embedding."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Absent, Ignored, Removed
from anyformer.families.base.template import Class, Config, Entry, divides, interleave, kind_field, read_only, tied
from anyformer.families.shared.heads import causal_mask, decoder_classes, tag_dropout
from anyformer.parts import (
    Attention, Block, Causal, DecoderModel, LayerNorm, MLP, Model, Normal, NormedShortcut, Stack, Sublayer, TagHead,
    TextEmbedding, Tokens,
)  # fmt: skip
from anyformer.parts.position.absolute import Alibi
from anyformer.specs.addresses import value_at

ATTENTION, LAYER = "decoder.layers.attention.op", "decoder.layers.{i}"
NORM = LayerNorm(eps=1e-5)

TEMPLATE = DecoderModel(
    width=64,
    embedding=TextEmbedding(tokens=Tokens(vocab_size=250880), norm=NORM),
    decoder=Stack(
        depth=2,
        layers=Block(
            attention=Sublayer(
                pre_norm=NORM, op=Attention(num_heads=8, mask=Causal(), position=Alibi(num_heads=8, unpadded=True))
            ),
            feedforward=Sublayer(pre_norm=NORM, op=MLP(width=256, activation="gelu_tanh")),
        ),
        norm=NORM,
    ),
    init={"*": Normal(std=0.02)},
)

MEGATRON = "a setting of the training code that the published class does not read"


def classifier_dropout(spec: Model) -> float:
    if (dropout := tag_dropout(spec)) == value_at(spec, "decoder.layers.attention.dropout"):
        raise Absent  # hidden_dropout is its default
    return dropout


CONFIG: dict[str, Any] = {
    "vocab_size": ("embedding.tokens.vocab_size", "head.vocab_size"),
    "hidden_size": "width",
    "n_layer": "decoder.depth",
    "n_head": (f"{ATTENTION}.num_heads", f"{ATTENTION}.position.num_heads"),
    "layer_norm_epsilon": ("decoder.norm.eps", "decoder.layers.*.pre_norm.eps", "embedding.norm.eps"),
    "initializer_range": "init.*.std",
    **kind_field(
        "apply_residual_connection_post_layernorm", "decoder.layers.*", {False: Sublayer, True: NormedShortcut}
    ),
    "hidden_dropout": "decoder.layers.*.dropout",
    "attention_dropout": f"{ATTENTION}.dropout",
    "classifier_dropout": Entry(
        None,
        classifier_dropout,
        addresses=("head[TagHead].dropout",),
        read=lambda value, c: c.hidden_dropout if value is None else value,
    ),
    "pretraining_tp": read_only(1),
    "slow_but_exact": read_only(False),
    "tie_word_embeddings": tied(True, LMHead="head.out.weight"),
    "pad_token_id": "head.pool.take.padding_token",
    "is_causal": causal_mask(f"{ATTENTION}.mask"),
    "bos_token_id": Ignored(1, "used by generation"),
    "eos_token_id": Ignored(2, "used by generation"),
    "seq_length": Ignored(2048, "the length of training texts, which nothing reads: ALiBi has no limit"),
    "n_inner": Removed(None, "in the published class the feed-forward is always 4 times as wide as the model"),
    "offset_alibi": Ignored(100, MEGATRON),
    **{
        name: Ignored(None, MEGATRON)
        for name in (
            "attention_softmax_in_fp32",
            "masked_softmax_fusion",
            "skip_bias_add",
            "bias_dropout_fusion",
            "skip_bias_add_qkv",
        )
    },
}

WEIGHTS = {
    "~word_embeddings": "embedding.tokens",
    "~word_embeddings_layernorm": "embedding.norm",
    "~h.{i}.input_layernorm": f"{LAYER}.attention.pre_norm",
    "~h.{i}.self_attention.query_key_value": interleave(f"{LAYER}.attention.op.{{q,k,v}}"),
    "~h.{i}.self_attention.dense": f"{LAYER}.attention.op.o",
    "~h.{i}.post_attention_layernorm": f"{LAYER}.feedforward.pre_norm",
    "~h.{i}.mlp.{dense_h_to_4h,dense_4h_to_h}": f"{LAYER}.feedforward.op.{{up,down}}",
    "~ln_f": "decoder.norm",
}


def check_exact(c: Config) -> None:
    if c.slow_but_exact and c.pretraining_tp > 1:
        raise ValueError("slow_but_exact=True with pretraining_tp above 1 is not supported: it omits biases")


def size(depth: int, width: int, heads: int, published: float) -> Size:
    return Size({"n_layer": depth, "hidden_size": width, "n_head": heads}, published)


BLOOM = Family(
    name="bloom",
    about="decoder language models for 46 languages",
    template=TEMPLATE,
    classes={
        **decoder_classes("Bloom", 250880),
        "BloomForTokenClassification": Class(TagHead(num_labels=2, dropout=0.0), "classifier"),
    },
    config=CONFIG,
    computed={
        "decoder.layers.feedforward.op.width": lambda c: 4 * c.hidden_size,
        f"{ATTENTION}.position.signed": lambda c: not c.is_causal,
    },
    weights=WEIGHTS,
    prefix="transformer.",
    checks=(divides("n_head", "hidden_size"), check_exact),
    aliases={"n_embed": "hidden_size", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"},
    sizes={
        "bloom-560m": size(24, 1024, 16, 559e6),
        "bloom-1.1b": size(24, 1536, 16, 1.065e9),
        "bloom-1.7b": size(24, 2048, 16, 1.722e9),
        "bloom-3b": size(30, 2560, 32, 3.003e9),
        "bloom-7.1b": size(30, 4096, 32, 7.069e9),
        "bloom": size(70, 14336, 112, 176.247e9),
    },
)
