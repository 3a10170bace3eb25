"""ELECTRA [Clark et al. 2020]: a small generator that fills masks, and a discriminator that finds the tokens it filled
in; both are BERT's encoder behind tokens of a width of their own."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import ConfigField, Field, Ignored
from anyformer.families.shared import encoder
from anyformer.families.shared.heads import encoder_head
from anyformer.families.shared.summary import pool_fields, summary_pool
from anyformer.models import Model
from anyformer.parts.activation import activation_named
from anyformer.parts.embedding.text import Tokens
from anyformer.parts.head.base import Head
from anyformer.parts.head.classify import ClassifyHead
from anyformer.parts.head.language import LMHead
from anyformer.parts.head.pool import Pool
from anyformer.parts.head.replaced_tokens import DetectHead
from anyformer.parts.head.span import SpanHead
from anyformer.weights.rules import Rule

CHOOSE = "ElectraForMultipleChoice"


FIELDS: dict[str, ConfigField] = {
    **encoder.FIELDS,
    **encoder.DECODING,
    "embedding_size": Field(128, lambda spec: spec.embedding.tokens.width or spec.width),
    "hidden_size": Field(256, "width"),
    "num_attention_heads": Field(4, encoder.inside("layers.attention.op.num_heads")),
    "intermediate_size": Field(1024, encoder.inside("layers.feedforward.op.width")),
    **pool_fields("first", "gelu", 0.1, (CHOOSE,)),
    "generator_size": Ignored(None, "how a pair was made; each of the two has a config of its own"),
    "output_past": Ignored(True, "an old name of use_cache that nothing reads"),
}


def describe(c: Any) -> Model:
    narrow = None if c.embedding_size == c.hidden_size else c.embedding_size
    tokens = Tokens(vocab_size=c.vocab_size, width=narrow, padding_index=c.pad_token_id)
    return encoder.model(c, encoder.embedding(c, tokens=tokens), head(c))


def head(c: Any) -> Head | None:
    dropout = encoder.classifier_dropout(c)
    if c.architecture == "ElectraForPreTraining":
        return DetectHead(activation=activation_named(c.hidden_act))
    return encoder_head(
        c,
        encoder.lm_head(c, "gelu", c.embedding_size).replace(unused_bias=False),
        classify=Pool(take="first", input_dropout=dropout, dense=True, activation="gelu", dropout=dropout),
        choose=summary_pool(c, c.hidden_size, (CHOOSE,)),
        dropout=dropout,
    )


def rules(spec: Model) -> list[Rule]:
    out = {
        LMHead: "generator_lm_head",
        SpanHead: "qa_outputs",
        ClassifyHead: "classifier.out_proj",
        DetectHead: "discriminator_predictions.dense_prediction",
    }
    pool = "sequence_summary.summary" if spec.architecture == CHOOSE else "classifier.dense"
    return encoder.renames(
        {
            "~embeddings_project": "embedding.project",
            "generator_predictions.dense": "head.transform.dense",
            "generator_predictions.LayerNorm": "head.transform.norm",
            "discriminator_predictions.dense": "head.dense",
            pool: "head.pool.dense",
            out.get(type(spec.head), "classifier"): "head.out",
        }
    ) + encoder.layer_rules(spec)


def size(embedding: int, width: int, depth: int, heads: int, published: float | None) -> Size:
    kind = "ElectraForPreTraining" if published else "ElectraForMaskedLM"
    shape = {"embedding_size": embedding, "hidden_size": width, "num_hidden_layers": depth}
    return Size(
        {"architectures": [kind], **shape, "num_attention_heads": heads, "intermediate_size": 4 * width}, published
    )


FAMILIES = (
    Family(
        name="electra",
        about="encoders for text that learned to tell replaced tokens, and their generators",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=(
            "ElectraForPreTraining",
            "ElectraForMaskedLM",
            "ElectraForCausalLM",
            "ElectraModel",
            "ElectraForSequenceClassification",
            "ElectraForTokenClassification",
            "ElectraForQuestionAnswering",
            "ElectraForMultipleChoice",
        ),
        base=("ElectraModel",),
        prefix="electra.",
        dropped=("~embeddings.position_ids",),
        sizes={
            "electra-small": size(128, 256, 12, 4, 14e6),
            "electra-base": size(768, 768, 12, 12, 110e6),
            "electra-large": size(1024, 1024, 24, 16, 335e6),
            "electra-small-generator": size(128, 256, 12, 4, None),
            "electra-base-generator": size(768, 256, 12, 4, None),
            "electra-large-generator": size(1024, 256, 24, 4, None),
        },
    ),
)
