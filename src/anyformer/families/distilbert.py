"""DistilBERT [Sanh et al. 2019]: every second layer of BERT, without segments or pooler, taught by the whole."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Absent, ConfigField, Field, Ignored, activation_at, tied
from anyformer.families.shared import encoder
from anyformer.families.shared.heads import encoder_head
from anyformer.models import EncoderModel, Model
from anyformer.parts.activation import activation_named
from anyformer.parts.attention.attention import Attention
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.head.base import Head, Transform
from anyformer.parts.head.language import LMHead
from anyformer.parts.head.pool import Pool
from anyformer.parts.head.span import SpanHead
from anyformer.parts.init import Normal
from anyformer.parts.norm import LayerNorm
from anyformer.parts.position.absolute import Learned
from anyformer.parts.position.sinusoid_init import Sines
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from anyformer.weights.rules import Rule

ATTENTION, MLP_OP, POSITIONS = "encoder.layers.attention.op", "encoder.layers.feedforward.op", "*.position.weight"


def span_dropout(spec: Any) -> float:
    if not isinstance(spec.head, SpanHead):
        raise Absent
    return spec.head.dropout


FIELDS: dict[str, ConfigField] = {
    "vocab_size": Field(30522, "embedding.tokens.vocab_size"),
    "max_position_embeddings": Field(512, "embedding.position.length"),
    "sinusoidal_pos_embds": Field(False, lambda spec: POSITIONS in spec.init),
    "n_layers": Field(6, "encoder.depth"),
    "n_heads": Field(12, f"{ATTENTION}.num_heads"),
    "dim": Field(768, "width"),
    "hidden_dim": Field(3072, f"{MLP_OP}.width"),
    "dropout": Field(0.1, "embedding.dropout"),
    "attention_dropout": Field(0.1, f"{ATTENTION}.dropout"),
    "activation": Field("gelu", activation_at(f"{MLP_OP}.activation")),
    "initializer_range": Field(0.02, lambda spec: spec.init["*"].std),
    "qa_dropout": Field(0.1, span_dropout),
    "seq_classif_dropout": Field(0.2, "head.pool.dropout"),
    "pad_token_id": Field(0, "embedding.tokens.padding_index"),
    "tie_word_embeddings": Field(True, tied(LMHead)),
    "problem_type": Field(None, "head.problem"),
    "tie_weights_": Ignored(True, "an old name of tie_word_embeddings that nothing reads"),
    "output_past": Ignored(True, "an old name of use_cache that nothing reads"),
}


def describe(c: Any) -> Model:
    if c.dim % c.n_heads:
        raise ValueError(f"dim {c.dim} is not a multiple of n_heads {c.n_heads}")
    norm, activation = LayerNorm(eps=1e-12), activation_named(c.activation)
    steps = {
        "attention": Sublayer(op=Attention(num_heads=c.n_heads, dropout=c.attention_dropout), out_norm=norm),
        "feedforward": Sublayer(op=MLP(width=c.hidden_dim, activation=activation), out_norm=norm, dropout=c.dropout),
    }
    out = head(c, Transform(activation=activation, norm=norm))
    tie = isinstance(out, LMHead) and c.tie_word_embeddings
    return EncoderModel(
        width=c.dim,
        embedding=TextEmbedding(
            tokens=Tokens(vocab_size=c.vocab_size, padding_index=c.pad_token_id),
            position=Learned(length=c.max_position_embeddings), norm=norm, dropout=c.dropout,
            idle_segments=True,  # folders with BertTokenizer give token_type_ids, which the published model ignores
        ),
        encoder=Stack(layers=Block(**steps), depth=c.n_layers),
        head=out,
        ties=(("head.out.weight", encoder.TOKENS),) if tie else (),
        init={**({POSITIONS: Sines()} if c.sinusoidal_pos_embds else {}), "*": Normal(std=c.initializer_range)},
    )  # fmt: skip


def head(c: Any, transform: Transform) -> Head | None:
    lm = LMHead(vocab_size=c.vocab_size, bias=True, transform=transform, shift=False)
    pool = Pool(take="first", dense=True, activation="relu", dropout=c.seq_classif_dropout)
    return encoder_head(c, lm, pool, pool, dropout=c.dropout, span=c.qa_dropout)


def rules(spec: Model) -> list[Rule]:
    layer, ours = "~transformer.layer.{i}", "encoder.layers.{i}"
    out = {LMHead: "vocab_projector", SpanHead: "qa_outputs"}.get(type(spec.head), "classifier")
    return encoder.renames({
        "~embeddings.word_embeddings": "embedding.tokens",
        "~embeddings.position_embeddings": "embedding.position",
        "~embeddings.LayerNorm": "embedding.norm",
        **{f"{layer}.attention.{n}_lin": f"{ours}.attention.op.{n}" for n in "qkv"},
        f"{layer}.attention.out_lin": f"{ours}.attention.op.o",
        f"{layer}.sa_layer_norm": f"{ours}.attention.out_norm",
        f"{layer}.ffn.lin1": f"{ours}.feedforward.op.up",
        f"{layer}.ffn.lin2": f"{ours}.feedforward.op.down",
        f"{layer}.output_layer_norm": f"{ours}.feedforward.out_norm",
        "vocab_transform": "head.transform.dense",
        "vocab_layer_norm": "head.transform.norm",
        "pre_classifier": "head.pool.dense",
        out: "head.out",
    })  # fmt: skip


FAMILIES = (
    Family(
        name="distilbert",
        about="small encoders for text, distilled from BERT",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=(
            "DistilBertForMaskedLM", "DistilBertModel", "DistilBertForSequenceClassification",
            "DistilBertForTokenClassification", "DistilBertForQuestionAnswering", "DistilBertForMultipleChoice",
        ),
        base=("DistilBertModel",),
        prefix="distilbert.",
        aliases={"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"},
        dropped=("~embeddings.position_ids",),
        sizes={"distilbert-base": Size({}, 66e6)},
    ),
)  # fmt: skip
