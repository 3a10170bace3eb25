"""ELECTRA [Clark et al. 2020]: a small generator that fills masks, and a discriminator that finds the tokens it filled
in; both are BERT's encoder behind tokens of a width of their own."""

from __future__ import annotations

from typing import Any

from anyformer.families import encoder
from anyformer.families.family import Absent, ConfigField, Family, Field, Inert, Size, activation_at
from anyformer.families.heads import encoder_head
from anyformer.model import Model
from anyformer.part import nearest
from anyformer.parts import head as heads
from anyformer.parts.activation import activation_named
from anyformer.parts.detect import DetectHead
from anyformer.parts.embed import Tokens
from anyformer.weights.rules import Rule

CHOOSE = "ElectraForMultipleChoice"


# which vector speaks for a choice; "cls_index" is the last too, since nobody can give an index
TAKES: dict[str, Any] = {"cls_index": "end", "last": "end", "first": "first", "mean": "all"}


def first_dropout(spec: Any) -> float:
    """The published config class has no such field, and its model reads it."""
    if spec.head.pool.input_dropout == 0:
        raise Absent
    return spec.head.pool.input_dropout


def of_choice(read: Any) -> Any:
    """Reads a field of the summary back where there is one."""
    return lambda spec: read(spec if spec.architecture == CHOOSE else None)


FIELDS: dict[str, ConfigField] = {
    **encoder.FIELDS,
    **encoder.DECODING,
    "embedding_size": Field(128, lambda spec: spec.embedding.tokens.width or spec.width),
    "hidden_size": Field(256, "width"),
    "num_attention_heads": Field(4, encoder.inside("layers.attention.op.num_heads")),
    "intermediate_size": Field(1024, encoder.inside("layers.feedforward.op.width")),
    "summary_type": Field("first", of_choice(lambda spec: {v: k for k, v in TAKES.items()}[spec.head.pool.take])),
    "summary_use_proj": Field(True, of_choice(lambda spec: spec.head.pool.dense)),
    "summary_activation": Field("gelu", of_choice(activation_at("head.pool.activation"))),
    "summary_first_dropout": Field(0.0, of_choice(first_dropout)),
    "summary_last_dropout": Field(0.1, of_choice(lambda spec: spec.head.pool.dropout)),
    "summary_proj_to_labels": Field(False),
    "generator_size": Inert(None, "how a pair was made; each of the two has a config of its own"),
    "output_past": Inert(True, "an old name of use_cache that nothing reads"),
}


def describe(c: Any) -> Model:
    narrow = None if c.embedding_size == c.hidden_size else c.embedding_size
    tokens = Tokens(vocab_size=c.vocab_size, width=narrow, padding_index=c.pad_token_id)
    return encoder.model(c, encoder.embedding(c, tokens=tokens), head(c))


def head(c: Any) -> heads.Head | None:
    dropout = encoder.classifier_dropout(c)
    if c.architecture == CHOOSE and c.summary_type not in TAKES:
        raise ValueError(f"summary_type {c.summary_type!r} is not supported; {nearest(str(c.summary_type), TAKES)}")
    if c.architecture == CHOOSE and c.summary_use_proj and c.summary_proj_to_labels and c.num_labels != c.hidden_size:
        raise ValueError("summary_proj_to_labels=True is a summary of another width than the layer that reads it")
    choose = heads.Pool(
        take=TAKES.get(c.summary_type, "first"), input_dropout=c.summary_first_dropout, dense=c.summary_use_proj,
        activation=activation_named(c.summary_activation or "identity"), dropout=c.summary_last_dropout,
    )  # fmt: skip
    if c.architecture == "ElectraForPreTraining":
        return DetectHead(activation=activation_named(c.hidden_act))
    return encoder_head(
        c,
        encoder.lm_head(c, "gelu", c.embedding_size).replace(idle_bias=False),
        classify=heads.Pool(take="first", input_dropout=dropout, dense=True, activation="gelu", dropout=dropout),
        choose=choose,
        dropout=dropout,
    )


def rules(spec: Model) -> list[Rule]:
    out = {heads.LMHead: "generator_lm_head", heads.SpanHead: "qa_outputs", heads.ClassifyHead: "classifier.out_proj",
           DetectHead: "discriminator_predictions.dense_prediction"}  # fmt: skip
    pool = "sequence_summary.summary" if spec.architecture == CHOOSE else "classifier.dense"
    return encoder.renames({
        "~embeddings_project": "embedding.project",
        "generator_predictions.dense": "head.transform.dense",
        "generator_predictions.LayerNorm": "head.transform.norm",
        "discriminator_predictions.dense": "head.dense",
        pool: "head.pool.dense",
        out.get(type(spec.head), "classifier"): "head.out",
    }) + encoder.layer_rules(spec)  # fmt: skip


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
            "ElectraForPreTraining", "ElectraForMaskedLM", "ElectraForCausalLM", "ElectraModel",
            "ElectraForSequenceClassification", "ElectraForTokenClassification", "ElectraForQuestionAnswering",
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
)  # fmt: skip
