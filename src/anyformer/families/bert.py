"""BERT [Devlin et al. 2019]: post-norm encoder, learned positions and segments, masked tokens and next sentence; with
`is_decoder` the same layers read from left to right and may look at a memory [Rothe et al. 2020]."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import ConfigField, Ignored, Removed
from anyformer.families.shared import encoder
from anyformer.families.shared.heads import encoder_head
from anyformer.models import Model
from anyformer.parts.head.base import Head
from anyformer.parts.head.classify import PooledOutput
from anyformer.parts.head.pool import Pool
from anyformer.parts.head.pretraining import NextSentenceHead, PretrainingHead
from anyformer.weights.rules import Rule

OUT = {"BertForPreTraining": "cls.seq_relationship", "BertForNextSentencePrediction": "cls.seq_relationship",
       "BertForQuestionAnswering": "qa_outputs"}  # fmt: skip
ORIGINAL = "of the first published files; no class reads it"
UNREAD = Ignored(None, ORIGINAL)

FIELDS: dict[str, ConfigField] = {
    **encoder.FIELDS,
    **encoder.DECODING,
    "directionality": Removed("bidi", ORIGINAL),
    "pooler_type": Removed("first_token_transform", ORIGINAL),
    **{f"pooler_{name}": UNREAD for name in ("fc_size", "num_attention_heads", "num_fc_layers", "size_per_head")},
    "output_past": Ignored(True, "an old name of use_cache that nothing reads"),
}


def describe(c: Any) -> Model:
    return encoder.model(c, encoder.embedding(c), head(c))


def head(c: Any) -> Head | None:
    pool = Pool(take="first", dense=True, activation="tanh")
    dropout = encoder.classifier_dropout(c)
    dropped = pool.replace(dropout=dropout)
    lm = encoder.lm_head(c, c.hidden_act)
    match c.architecture:
        case "BertForPreTraining":
            return PretrainingHead(lm=lm, pool=pool)
        case "BertForNextSentencePrediction":
            return NextSentenceHead(pool=pool)
    return encoder_head(c, lm, dropped, dropped, PooledOutput(pool=pool), dropout=dropout)


def rules(spec: Model) -> list[Rule]:
    return [
        *encoder.lm_rules(spec, "cls.predictions", "transform.dense", "transform.LayerNorm"),
        *encoder.layer_rules(spec),
        *encoder.renames({OUT.get(spec.architecture, "classifier"): "head.out"}),
    ]


LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}

FAMILIES = (
    Family(
        name="bert",
        about="encoders for text, and decoders made of them",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=(
            "BertForPreTraining", "BertForMaskedLM", "BertLMHeadModel", "BertModel", "BertForNextSentencePrediction",
            "BertForSequenceClassification", "BertForTokenClassification", "BertForQuestionAnswering",
            "BertForMultipleChoice",
        ),
        base=("BertModel",),
        prefix="bert.",
        # pretraining leaves a pooler and a next-sentence head behind that most classes have no use for
        dropped=("~embeddings.position_ids", "~pooler.dense.{p}", "cls.seq_relationship.{p}"),
        sizes={"bert-base": Size({}, 110e6), "bert-large": Size(LARGE, 340e6)},
    ),
)  # fmt: skip
