"""Nystromformer [Xiong et al. 2021]: BERT's encoder whose attention goes through landmarks, with a convolution over the
values beside it."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import ConfigField, Field, Fixed, Ignored, again
from anyformer.families.shared import encoder
from anyformer.families.shared.heads import encoder_head
from anyformer.models import Model
from anyformer.parts.activation import activation_named
from anyformer.parts.attention.nystrom import NystromAttention
from anyformer.parts.head.base import Head
from anyformer.parts.head.classify import ClassifyHead
from anyformer.parts.head.pool import Pool
from anyformer.parts.head.span import SpanHead
from anyformer.parts.position.absolute import Learned
from anyformer.parts.position.numbering import ByPlace
from anyformer.stacks.stack import Stack
from anyformer.weights.rules import Reshape, Rule

OP = "encoder.layers.attention.op"

FIELDS: dict[str, ConfigField] = {
    **encoder.FIELDS,
    "vocab_size": Field(30000, "embedding.tokens.vocab_size"),
    **again(encoder.FIELDS, hidden_act="gelu_new"),
    "max_position_embeddings": Field(510, "embedding.position.length"),
    "layer_norm_eps": Field(1e-5, "embedding.norm.eps"),
    "pad_token_id": Field(1, "embedding.tokens.padding_index"),
    "segment_means_seq_len": Field(64, f"{OP}.length"),
    "num_landmarks": Field(64, f"{OP}.landmarks"),
    "conv_kernel_size": Field(65, f"{OP}.taps"),
    "add_cross_attention": Ignored(False, "kept by the published class, which never looks at it"),
    "inv_coeff_init_option": Fixed(False, "the published class fails with it"),
    "attention_probs_dropout_prob": Ignored(0.1, "the published class makes a dropout of it and never applies it"),
    "bos_token_id": Ignored(0, "used by tokenizers"),
    "eos_token_id": Ignored(2, "used by tokenizers"),
}


def describe(c: Any) -> Model:
    op = NystromAttention(
        num_heads=c.num_attention_heads,
        length=c.segment_means_seq_len,
        landmarks=c.num_landmarks,
        taps=c.conv_kernel_size,
    )
    # two rows of the table stand before the first position, and a caller's position_ids count them
    position = Learned(length=c.max_position_embeddings, offset=2)
    stack = Stack(layers=encoder.block(c, op), depth=c.num_hidden_layers)
    return encoder.model(c, encoder.embedding(c, position=position, numbering=ByPlace(first=2)), head(c), stack)


def head(c: Any) -> Head | None:
    if c.architecture == "NystromformerForQuestionAnswering":  # with two labels whatever num_labels is
        return SpanHead()
    dropout = c.hidden_dropout_prob
    act = activation_named(c.hidden_act)
    classify = Pool(take="first", input_dropout=dropout, dense=True, activation=act, dropout=dropout)
    choose = Pool(take="first", dense=True, activation="relu")
    return encoder_head(c, encoder.lm_head(c, c.hidden_act), classify, choose, dropout=dropout)


def rules(spec: Any) -> list[Rule]:
    classify = isinstance(spec.head, ClassifyHead)
    out = "qa_outputs" if isinstance(spec.head, SpanHead) else "classifier"
    op = spec.encoder.layers.steps["attention"].op
    taps = (op.num_heads, 1, op.taps or 1, 1)  # published as an image one pixel wide
    return [
        Reshape("~encoder.layer.{i}.attention.self.conv.weight", "encoder.layers.{i}.attention.op.conv.weight", taps),
        *encoder.lm_rules(spec, "cls.predictions", "transform.dense", "transform.LayerNorm"),
        *encoder.renames({"classifier.dense" if classify else "pre_classifier": "head.pool.dense"}),
        *encoder.renames({f"{out}.out_proj" if classify else out: "head.out"}),
        *encoder.layer_rules(spec),
    ]


FAMILIES = (
    Family(
        name="nystromformer",
        about="encoders for text whose attention goes through landmarks",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=(
            "NystromformerForMaskedLM",
            "NystromformerModel",
            "NystromformerForSequenceClassification",
            "NystromformerForTokenClassification",
            "NystromformerForQuestionAnswering",
            "NystromformerForMultipleChoice",
        ),
        base=("NystromformerModel",),
        prefix="nystromformer.",
        dropped=("~embeddings.position_ids", "~embeddings.token_type_ids"),
        sizes={"nystromformer-512": Size({})},
    ),
)
