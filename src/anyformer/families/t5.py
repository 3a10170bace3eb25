"""T5 [Raffel et al. 2020] and T5 1.1 [Shazeer 2020]: pre-norm encoder-decoder, RMSNorm, bucketed relative positions."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import ConfigField, Field, Ignored, activation_at, tied
from anyformer.families.shared.heads import causal, end_head, seen
from anyformer.models import EncoderDecoderModel, EncoderModel, Model
from anyformer.parts.activation import activation_named
from anyformer.parts.attention.attention import Attention
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.feedforward.mlp import MLP, GatedMLP
from anyformer.parts.head.base import Head
from anyformer.parts.head.classify import ClassifyHead
from anyformer.parts.head.language import LMHead
from anyformer.parts.head.span import SpanHead
from anyformer.parts.head.tag import TagHead
from anyformer.parts.init import Normal, Value
from anyformer.parts.norm import RMSNorm
from anyformer.parts.position.absolute import BucketedBias
from anyformer.runtime.mask import FULL
from anyformer.specs.messages import quote
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from anyformer.weights.rules import Copies, Rename, Rule

ATTENTION, FEEDFORWARD = "encoder.layers.attention.op", "encoder.layers.feedforward.op"
READS_SOURCE = ("T5ForQuestionAnswering", "T5ForSequenceClassification")  # the decoder reads what the encoder does


def is_gated(spec: Any) -> bool:
    return isinstance(spec.encoder.layers.steps["feedforward"].op, GatedMLP)


def projection(spec: Any) -> str:
    name = activation_at(f"{FEEDFORWARD}.activation")(spec)
    return f"gated-{name.replace('gelu_new', 'gelu')}" if is_gated(spec) else name


def classifier_dropout(spec: Any) -> float:
    return spec.head.pool.dropout if isinstance(spec.head, ClassifyHead) else spec.head.dropout


FIELDS: dict[str, ConfigField] = {
    "vocab_size": Field(32128, "embedding.tokens.vocab_size"),
    "d_model": Field(512, "width"),
    "d_kv": Field(64, f"{ATTENTION}.head_width"),
    "d_ff": Field(2048, f"{FEEDFORWARD}.width"),
    "num_layers": Field(6, "encoder.depth"),
    "num_decoder_layers": Field(None, "decoder.depth"),
    "num_heads": Field(8, f"{ATTENTION}.num_heads"),
    "relative_attention_num_buckets": Field(32, "encoder.position.num_buckets"),
    "relative_attention_max_distance": Field(128, "encoder.position.max_distance"),
    "dropout_rate": Field(0.1, "encoder.dropout"),
    "classifier_dropout": Field(0.0, classifier_dropout),
    "layer_norm_epsilon": Field(1e-6, "encoder.norm.eps"),
    "initializer_factor": Field(1.0, lambda spec: spec.init["*norm.weight"].value),
    "feed_forward_proj": Field("relu", projection),
    "dense_act_fn": Field(None, activation_at(f"{FEEDFORWARD}.activation")),  # these two follow from feed_forward_proj,
    "is_gated_act": Field(None, is_gated),  # and win over it where a config has them
    "tie_word_embeddings": Field(True, tied(LMHead)),
    "scale_decoder_outputs": Field(None, lambda spec: spec.head.scale is not None),
    "pad_token_id": Field(0, "padding_token"),
    "decoder_start_token_id": Field(None, "start_token"),
    "eos_token_id": Field(1, "head.pool.token"),
    "problem_type": Field(None, "head.problem"),
    "is_causal": causal("decoder.layers.attention.op.mask"),
    "is_decoder": Field(False),  # of a pair each stack has its own, whatever this says
    "is_encoder_decoder": Field(True),
    "n_positions": Ignored(512, "the length of training texts: relative positions have no limit, nothing reads it"),
    "output_past": Ignored(True, "an old name of use_cache"),
}


def describe(c: Any) -> Model:
    norm = RMSNorm(eps=c.layer_norm_epsilon)

    def step(op: Any) -> Sublayer:
        return Sublayer(pre_norm=norm, op=op, dropout=c.dropout_rate)

    def attention(**kind: Any) -> Sublayer:  # scores are not scaled: the start of the queries is 1 / sqrt(K) smaller
        return step(
            Attention(num_heads=c.num_heads, head_width=c.d_kv, bias="", scale=1.0, dropout=c.dropout_rate, **kind)
        )

    def stack(depth: int, both_ways: bool, **steps: Sublayer) -> Stack:
        buckets, farthest = c.relative_attention_num_buckets, c.relative_attention_max_distance
        bias = BucketedBias(num_heads=c.num_heads, num_buckets=buckets, max_distance=farthest, both_ways=both_ways)
        block = Block(**steps, feedforward=step(feedforward(c)))
        return Stack(layers=block, depth=depth, position=bias if depth else None, norm=norm, dropout=c.dropout_rate)

    embedding = TextEmbedding(tokens=Tokens(vocab_size=c.vocab_size), dropout=c.dropout_rate)
    encoder = stack(c.num_layers, True, attention=attention(mask=FULL))
    shared: Any = {"width": c.d_model, "embedding": embedding, "encoder": encoder, "head": head(c), "init": init(c)}
    if c.architecture in ("T5EncoderModel", "T5ForTokenClassification"):
        encoder_alone(c)
        return EncoderModel(**shared)
    if not c.is_encoder_decoder:  # transformers would mix up the memories of self- and cross-attention
        raise ValueError(f"is_encoder_decoder=False is not supported with {c.architecture}")
    ties = [("decoder_embedding.tokens.weight", "embedding.tokens.weight")]
    # transformers ties T5 1.1 too, though its configs say otherwise, until it meets a checkpoint with an output matrix
    # of its own (and so does our loader): only a config that says both is untied from the start
    if isinstance(shared["head"], LMHead) and (c.tie_word_embeddings or c.scale_decoder_outputs is not False):
        ties.append(("head.out.weight", "embedding.tokens.weight"))
    return EncoderDecoderModel(
        **shared,
        decoder_embedding=embedding,
        decoder=stack(
            decoder_depth(c),
            False,
            attention=attention(mask=seen(c)),
            cross=attention(memory=True),
        ),
        start_token=c.decoder_start_token_id,
        padding_token=c.pad_token_id,
        state_offered="without labels" if isinstance(shared["head"], (ClassifyHead, SpanHead)) else "always",
        reads_source=c.architecture in READS_SOURCE,
        ties=tuple(ties),
    )


def decoder_depth(c: Any) -> int:
    """As many as in the encoder unless said, of which an alias says nothing: {"num_hidden_layers": 2} leaves 6 here."""
    return c.unaliased.num_layers if c.num_decoder_layers is None else c.num_decoder_layers


def encoder_alone(c: Any) -> None:
    """Where a published class hands its encoder the whole config, is_decoder gives it a cross-attention to nothing."""
    if c.is_decoder:
        raise ValueError(f"is_decoder=True is not supported with {c.architecture}: an encoder alone")


def feedforward(c: Any) -> MLP | GatedMLP:
    kind, _, name = c.feed_forward_proj.rpartition("-")
    if kind not in ("", "gated"):
        name = quote(c.feed_forward_proj)
        raise ValueError(f"feed_forward_proj={name} is neither an activation nor 'gated-' and one")
    name = "gelu_new" if c.feed_forward_proj == "gated-gelu" else name
    activation = activation_named(name if c.dense_act_fn is None else c.dense_act_fn)
    gated = kind == "gated" if c.is_gated_act is None else c.is_gated_act
    return (GatedMLP if gated else MLP)(width=c.d_ff, activation=activation, bias=False, dropout=c.dropout_rate)


def head(c: Any) -> Head | None:
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
                raise ValueError(f"num_labels={c.num_labels}: an answer has a beginning and an end, so 2 labels")
            return SpanHead()
    return None


def init(c: Any) -> dict[str, Any]:
    """Every matrix by its own input width, the queries' smaller still."""

    def by(width: int) -> Normal:
        return Normal(std=c.initializer_factor * width**-0.5)

    return {
        "*norm.weight": Value(value=c.initializer_factor),
        "*tokens.weight": by(1),
        "*.q.weight": by(c.d_model * c.d_kv),
        "*.o.weight": by(c.num_heads * c.d_kv),
        "*.down.weight": by(c.d_ff),
        "head.out.weight": by(c.d_model if c.architecture in READS_SOURCE else 1),
        "*": by(c.d_model),
    }


def rules(spec: Model) -> list[Rule]:
    inner = {"gate": "wi_0", "up": "wi_1", "down": "wo"} if is_gated(spec) else {"up": "wi", "down": "wo"}
    steps = {
        "attention": {n: f"SelfAttention.{n}" for n in "qkvo"},
        "cross": {n: f"EncDecAttention.{n}" for n in "qkvo"},
        "feedforward": {ours: f"DenseReluDense.{theirs}" for ours, theirs in inner.items()},
    }
    heads = {
        "T5ForTokenClassification": "classifier",
        "T5ForQuestionAnswering": "qa_outputs",
        "T5ForSequenceClassification": "classification_head.out_proj",
    }
    found: list[Rule] = [
        Copies(["~shared.weight", "~encoder.embed_tokens.weight"], "embedding.tokens.weight"),
        Rename("~decoder.embed_tokens.weight", "decoder_embedding.tokens.weight"),
        Rename("classification_head.dense.{p}", "head.pool.dense.{p}"),
        Rename(f"{heads.get(spec.architecture, 'lm_head')}.{{p}}", "head.out.{p}"),
    ]
    for stack, order in {"encoder": ("attention", "feedforward"), "decoder": tuple(steps)}.items():
        table = "SelfAttention.relative_attention_bias.weight"  # published with the first layer, used by all
        found.append(Rename(f"~{stack}.block.0.layer.0.{table}", f"{stack}.position.table.weight"))
        found.append(Rename(f"~{stack}.final_layer_norm.weight", f"{stack}.norm.weight"))
        for n, step in enumerate(order):
            layer, ours = f"~{stack}.block.{{i}}.layer.{n}", f"{stack}.layers.{{i}}.{step}"
            found.append(Rename(f"{layer}.layer_norm.weight", f"{ours}.pre_norm.weight"))
            found += [Rename(f"{layer}.{theirs}.weight", f"{ours}.op.{n}.weight") for n, theirs in steps[step].items()]
    return found


def size(d_model: int, d_ff: int, d_kv: int, num_heads: int, num_layers: int, published: float, **more: Any) -> Size:
    config = {"d_model": d_model, "d_ff": d_ff, "d_kv": d_kv, "num_heads": num_heads, "num_layers": num_layers}
    return Size({**config, "decoder_start_token_id": 0, **more}, published)


# GeGLU and an output matrix of its own; counts as printed by [Lester et al. 2021]
V11 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "scale_decoder_outputs": False}

FAMILIES = (
    Family(
        name="t5",
        about="text-to-text encoder-decoders",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=(
            "T5ForConditionalGeneration",
            "T5Model",
            "T5EncoderModel",
            "T5ForTokenClassification",
            "T5ForQuestionAnswering",
            "T5ForSequenceClassification",
        ),
        prefixes={name: "transformer." for name in ("T5ForTokenClassification", "T5ForSequenceClassification")},
        renamed={"T5WithLMHeadModel": "T5ForConditionalGeneration"},
        aliases={
            "hidden_size": "d_model",
            "num_attention_heads": "num_heads",
            "num_hidden_layers": "num_layers",
            "head_dim": "d_kv",
        },
        dropped=("~decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),  # was never used
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
    ),
)
