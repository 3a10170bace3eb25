"""BLOOM [Scao et al. 2022]: pre-norm decoder with ALiBi instead of position vectors, and a norm after the embedding."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Absent, ConfigField, Field, Ignored, Removed, tied
from anyformer.families.shared.heads import causal, decoder_model, seen, tag_dropout
from anyformer.models import Model
from anyformer.parts.attention.attention import Attention
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.head.language import LMHead
from anyformer.parts.norm import LayerNorm
from anyformer.parts.position.absolute import Alibi
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from anyformer.weights.rules import Interleave, Rename, Rule

MEGATRON = "a setting of the training code that the published class does not read"


def classifier_dropout(spec: Any) -> float:
    if (dropout := tag_dropout(spec)) == spec.decoder.layers.steps["attention"].dropout:
        raise Absent  # where it is not said, hidden_dropout stands in
    return dropout


FIELDS: dict[str, ConfigField] = {
    "vocab_size": Field(250880, "embedding.tokens.vocab_size"),
    "hidden_size": Field(64, "width"),
    "n_layer": Field(2, "decoder.depth"),
    "n_head": Field(8, "decoder.layers.attention.op.num_heads"),
    "layer_norm_epsilon": Field(1e-5, "decoder.norm.eps"),
    "initializer_range": Field(0.02, lambda spec: spec.init["*"].std),
    "apply_residual_connection_post_layernorm": Field(False, "decoder.layers.attention.normed_skip"),
    "hidden_dropout": Field(0.0, "decoder.layers.attention.dropout"),
    "attention_dropout": Field(0.0, "decoder.layers.attention.op.dropout"),
    "classifier_dropout": Field(None, classifier_dropout),
    "pretraining_tp": Field(1),
    "slow_but_exact": Field(False),
    "tie_word_embeddings": Field(True, tied(LMHead)),
    "pad_token_id": Field(None, "head.pool.padding_token"),
    "problem_type": Field(None, "head.problem"),
    "is_causal": causal("decoder.layers.attention.op.mask"),
    "bos_token_id": Ignored(1, "used by generation"),
    "eos_token_id": Ignored(2, "used by generation"),
    "seq_length": Ignored(2048, "the length of training texts: ALiBi has no limit, nothing reads it"),
    "n_inner": Removed(None, "the feed-forward is 4 times as wide as the model in the published class"),
    "offset_alibi": Ignored(100, MEGATRON),
    **{name: Ignored(None, MEGATRON) for name in ("attention_softmax_in_fp32", "masked_softmax_fusion", "skip_bias_add",
                                                "bias_dropout_fusion", "skip_bias_add_qkv")},
}  # fmt: skip


def describe(c: Any) -> Model:
    if c.hidden_size % c.n_head:
        raise ValueError(f"hidden_size {c.hidden_size} is not a multiple of n_head {c.n_head}")
    if c.slow_but_exact and c.pretraining_tp > 1:
        raise ValueError("slow_but_exact with pretraining_tp above 1 is not supported: it leaves biases out")
    norm = LayerNorm(eps=c.layer_norm_epsilon)

    def step(op: Any) -> Sublayer:
        skip = c.apply_residual_connection_post_layernorm
        return Sublayer(pre_norm=norm, op=op, normed_skip=skip, dropout=c.hidden_dropout)

    attention = Attention(
        num_heads=c.n_head, mask=seen(c), dropout=c.attention_dropout,
        position=Alibi(num_heads=c.n_head, unpadded=True, signed=not c.is_causal),
    )  # fmt: skip
    mlp = MLP(width=4 * c.hidden_size, activation="gelu_tanh")
    layers = Block(attention=step(attention), feedforward=step(mlp))
    embedding = TextEmbedding(tokens=Tokens(vocab_size=c.vocab_size), norm=norm)
    return decoder_model(c, Stack(layers=layers, depth=c.n_layer, norm=norm), embedding)


def rules(spec: Any) -> list[Rule]:
    layer, ours = "~h.{i}", "decoder.layers.{i}"
    op, heads = f"{ours}.attention.op", spec.decoder.layers.steps["attention"].op.num_heads
    outs = {"BloomForSequenceClassification": "score", "BloomForTokenClassification": "classifier",
            "BloomForQuestionAnswering": "qa_outputs"}  # fmt: skip
    modules = {
        "~word_embeddings": "embedding.tokens",
        "~word_embeddings_layernorm": "embedding.norm",
        f"{layer}.input_layernorm": f"{ours}.attention.pre_norm",
        f"{layer}.self_attention.dense": f"{op}.o",
        f"{layer}.post_attention_layernorm": f"{ours}.feedforward.pre_norm",
        f"{layer}.mlp.dense_h_to_4h": f"{ours}.feedforward.op.up",
        f"{layer}.mlp.dense_4h_to_h": f"{ours}.feedforward.op.down",
        "~ln_f": "decoder.norm",
        outs.get(spec.architecture, "lm_head"): "head.out",
    }
    joint = f"{layer}.self_attention.query_key_value"
    return [
        *[Interleave(f"{joint}.{p}", [f"{op}.{n}.{p}" for n in "qkv"], heads) for p in ("weight", "bias")],
        *[Rename(f"{theirs}.{{p}}", f"{name}.{{p}}") for theirs, name in modules.items()],
    ]


def size(depth: int, width: int, heads: int, published: float) -> Size:
    return Size({"n_layer": depth, "hidden_size": width, "n_head": heads}, published)


FAMILIES = (
    Family(
        name="bloom",
        about="decoder language models of 46 languages",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=(
            "BloomForCausalLM", "BloomModel", "BloomForSequenceClassification", "BloomForTokenClassification",
            "BloomForQuestionAnswering",
        ),
        base=("BloomModel",),
        prefix="transformer.",
        aliases={"n_embed": "hidden_size", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"},
        sizes={
            "bloom-560m": size(24, 1024, 16, 559e6),
            "bloom-1.1b": size(24, 1536, 16, 1.065e9),
            "bloom-1.7b": size(24, 2048, 16, 1.722e9),
            "bloom-3b": size(30, 2560, 32, 3.003e9),
            "bloom-7.1b": size(30, 4096, 32, 7.069e9),
            "bloom": size(70, 14336, 112, 176.247e9),
        },
    ),
)  # fmt: skip
