"""T5 [Raffel et al. 2020] and T5 1.1 [Shazeer 2020]: pre-norm encoder-decoder, RMSNorm, bucketed relative positions."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Ignored
from anyformer.families.base.template import Class, Config, Entry, head_is_tied, rules_of
from anyformer.families.shared.heads import causal, end_head, read_mask
from anyformer.families.shared.t5 import (
    READS_SOURCE,
    WEIGHTS,
    attention,
    check_encoder_only,
    decoder_depth,
    init,
    stack,
    step,
)
from anyformer.parts import (
    Block, ClassifyHead, EncoderDecoderModel, EncoderModel, GatedMLP, Head, LMHead, MLP, Model, SpanHead, TagHead,
    TextEmbedding, Tokens,
)  # fmt: skip
from anyformer.parts.activation import activation_named, published_name
from anyformer.parts.mask import FULL
from anyformer.specs.addresses import value_at
from anyformer.specs.messages import quote
from anyformer.weights.rules import Rule


def describe(c: Config) -> Model:
    embedding = TextEmbedding(tokens=Tokens(vocab_size=c.vocab_size), dropout=c.dropout_rate)
    layers = Block(attention=attention(c, mask=FULL), feedforward=step(c, feedforward(c)))
    encoder = stack(c, c.num_layers, True, layers=layers)
    shared: Any = {"width": c.d_model, "embedding": embedding, "encoder": encoder, "head": head(c), "init": init(c)}
    if c.architecture in ("T5EncoderModel", "T5ForTokenClassification"):
        check_encoder_only(c)
        return EncoderModel(**shared)
    if not c.is_encoder_decoder:  # transformers would mix up the caches of self- and cross-attention
        raise ValueError(f"is_encoder_decoder=False is not supported with {c.architecture}")
    ties = [("decoder_embedding.tokens.weight", "embedding.tokens.weight")]
    # transformers ties T5 1.1 too, despite tie_word_embeddings=False, unless the checkpoint has an output matrix (our
    # loader does the same). Only a config with both fields False is untied from the start.
    if isinstance(shared["head"], LMHead) and (c.tie_word_embeddings or c.scale_decoder_outputs is not False):
        ties.append(("head.out.weight", "embedding.tokens.weight"))
    steps = {"attention": attention(c, mask=read_mask(c)), "cross": attention(c, memory=True)}
    layers = Block(**steps, feedforward=step(c, feedforward(c)))
    return EncoderDecoderModel(
        **shared,
        decoder_embedding=embedding,
        decoder=stack(c, decoder_depth(c), False, layers=layers),
        start_token=c.decoder_start_token_id,
        padding_token=c.pad_token_id,
        state_offered="without labels" if isinstance(shared["head"], (ClassifyHead, SpanHead)) else "always",
        reads_source=c.architecture in READS_SOURCE,
        ties=tuple(ties),
    )


def head(c: Config) -> Head | None:
    match c.architecture:
        case "T5ForConditionalGeneration":
            scaled = c.tie_word_embeddings is not False if c.scale_decoder_outputs is None else c.scale_decoder_outputs
            return LMHead(vocab_size=c.vocab_size, shift=False, scale=c.d_model**-0.5 if scaled else None)
        case "T5ForSequenceClassification":
            return end_head(c)
        case "T5ForTokenClassification":
            return TagHead(num_labels=c.num_labels, dropout=c.classifier_dropout)
        case "T5ForQuestionAnswering":
            if c.num_labels != 2:
                raise ValueError(f"num_labels must be 2 for question answering (start and end), got {c.num_labels}")
            return SpanHead()
    return None


# -- config -----------------------------------------------------------------------------------------------------------

ATTENTION, FEEDFORWARD = "encoder.layers.attention.op", "encoder.layers.feedforward.op"


def feedforward(c: Config) -> MLP | GatedMLP:
    kind, _, name = c.feed_forward_proj.rpartition("-")
    if kind not in ("", "gated"):
        name = quote(c.feed_forward_proj)
        raise ValueError(f"feed_forward_proj={name} must be the name of an activation, optionally after 'gated-'")
    name = "gelu_new" if c.feed_forward_proj == "gated-gelu" else name
    activation = activation_named(name if c.dense_act_fn is None else c.dense_act_fn)
    gated = kind == "gated" if c.is_gated_act is None else c.is_gated_act
    return (GatedMLP if gated else MLP)(width=c.d_ff, activation=activation, bias=False, dropout=c.dropout_rate)


def is_gated(spec: Model) -> bool:
    return isinstance(value_at(spec, FEEDFORWARD), GatedMLP)


def classifier_dropout(spec: Any) -> float:
    return spec.head.pool.dropout if isinstance(spec.head, ClassifyHead) else spec.head.dropout


def activation(spec: Model) -> str:
    return published_name(value_at(spec, f"{FEEDFORWARD}.activation"))


def projection(spec: Model) -> str:
    name = activation(spec)
    return f"gated-{name.replace('gelu_new', 'gelu')}" if is_gated(spec) else name


CONFIG: dict[str, Any] = {
    "vocab_size": Entry(32128, "embedding.tokens.vocab_size"),
    "d_model": Entry(512, "width"),
    "d_kv": Entry(64, f"{ATTENTION}.head_width"),
    "d_ff": Entry(2048, f"{FEEDFORWARD}.width"),
    "num_layers": Entry(6, "encoder.depth"),
    "num_decoder_layers": Entry(None, "decoder.depth"),
    "num_heads": Entry(8, f"{ATTENTION}.num_heads"),
    "relative_attention_num_buckets": Entry(32, "encoder.position.num_buckets"),
    "relative_attention_max_distance": Entry(128, "encoder.position.max_distance"),
    "dropout_rate": Entry(0.1, "encoder.dropout"),
    "classifier_dropout": Entry(0.0, classifier_dropout),
    "layer_norm_epsilon": Entry(1e-6, "encoder.norm.eps"),
    "initializer_factor": Entry(1.0, lambda spec: spec.init["*norm.weight"].value),
    "feed_forward_proj": Entry("relu", projection),
    "dense_act_fn": Entry(None, activation),  # default: as in feed_forward_proj
    "is_gated_act": Entry(None, is_gated),  # default: as in feed_forward_proj
    "tie_word_embeddings": Entry(True, head_is_tied("LMHead")),
    "scale_decoder_outputs": Entry(None, lambda spec: spec.head.scale is not None),
    "pad_token_id": Entry(0, "padding_token"),
    "decoder_start_token_id": Entry(None, "start_token"),
    "eos_token_id": Entry(1, "head.pool.take.token"),
    "is_causal": causal("decoder.layers.attention.op.mask"),
    "is_decoder": Entry(False),  # read by encoder classes; other classes set it per stack
    "is_encoder_decoder": Entry(True),
    "n_positions": Ignored(512, "the length of training texts, which nothing reads: relative positions have no limit"),
    "output_past": Ignored(True, "an old name of use_cache"),
}

OUT = {
    "T5ForTokenClassification": "classifier",
    "T5ForQuestionAnswering": "qa_outputs",
    "T5ForSequenceClassification": "classification_head.out_proj",
}


def rules(spec: Model) -> list[Rule]:
    theirs, ours = ("{wi_0,wi_1,wo}", "{gate,up,down}") if is_gated(spec) else ("{wi,wo}", "{up,down}")
    inner = {
        f"~{stack}.block.{{i}}.layer.{n}.DenseReluDense.{theirs}": f"{stack}.layers.{{i}}.feedforward.op.{ours}"
        for stack, n in (("encoder", 1), ("decoder", 2))
    }
    head = {"classification_head.dense": "head.pool.dense", OUT.get(spec.architecture, "lm_head"): "head.out"}
    return [*rules_of({**WEIGHTS, **inner, **head}, spec)]


def size(d_model: int, d_ff: int, d_kv: int, num_heads: int, num_layers: int, published: float, **more: Any) -> Size:
    config = {"d_model": d_model, "d_ff": d_ff, "d_kv": d_kv, "num_heads": num_heads, "num_layers": num_layers}
    return Size({**config, "decoder_start_token_id": 0, **more}, published)


# GeGLU and a separate output matrix; counts from [Lester et al. 2021]
V11 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "scale_decoder_outputs": False}

T5 = Family(
    name="t5",
    about="text-to-text encoder-decoders",
    tokenizer="T5Tokenizer",
    template=describe,
    config=CONFIG,
    weights=rules,
    classes={
        "T5ForConditionalGeneration": Class(),
        "T5Model": Class(),
        "T5EncoderModel": Class(),
        "T5ForTokenClassification": Class(prefix="transformer."),
        "T5ForQuestionAnswering": Class(),
        "T5ForSequenceClassification": Class(prefix="transformer."),
    },
    renamed={"T5WithLMHeadModel": "T5ForConditionalGeneration"},
    aliases={
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers",
        "head_dim": "d_kv",
    },
    dropped=("~decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),  # never used
    sizes={
        "t5-small": size(512, 2048, 64, 8, 6, 60e6),
        "t5-base": size(768, 3072, 64, 12, 12, 220e6),
        "t5-large": size(1024, 4096, 64, 16, 24, 770e6),
        "t5-3b": size(1024, 16384, 128, 32, 24, 2.8e9),
        "t5-11b": size(1024, 65536, 128, 128, 24, 11e9),
        "t5-v1.1-small": size(512, 1024, 64, 6, 8, 77e6, **V11),
        "t5-v1.1-base": size(768, 2048, 64, 12, 12, 248e6, **V11),
        "t5-v1.1-large": size(1024, 2816, 64, 16, 24, 783e6, **V11),
        "t5-v1.1-xl": size(2048, 5120, 64, 32, 24, 2.85e9, **V11),
        "t5-v1.1-xxl": size(4096, 10240, 64, 64, 24, 11.1e9, **V11),
    },
)
