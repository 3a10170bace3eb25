"""RoBERTa [Liu et al. 2019]: BERT trained longer, without segments to tell apart or sentences to predict; positions are
counted as fairseq does, over the tokens that are not padding."""

from __future__ import annotations

from typing import Any

from anyformer.families import encoder
from anyformer.families.family import ConfigField, Family, Field, Inert, Size
from anyformer.families.heads import encoder_head
from anyformer.model import Model
from anyformer.parts import head as heads
from anyformer.weights.rules import Rule

FIELDS: dict[str, ConfigField] = {
    **encoder.FIELDS,
    **encoder.DECODING,
    "vocab_size": Field(50265, "embedding.tokens.vocab_size"),
    "max_position_embeddings": encoder.COUNTED_LENGTH,
    "pad_token_id": Field(1, "embedding.tokens.padding_index"),
    "bos_token_id": Inert(0, "used by tokenizers and generation"),
    "eos_token_id": Inert(2, "used by tokenizers and generation"),
    "output_past": Inert(True, "an old name of use_cache that nothing reads"),
}


def describe(c: Any) -> Model:
    return encoder.model(c, encoder.counted_embedding(c), head(c))


def head(c: Any) -> heads.Head | None:
    dropout = encoder.classifier_dropout(c)
    pool = heads.Pool(take="first", dense=True, activation="tanh")
    return encoder_head(
        c,
        encoder.lm_head(c, "gelu"),  # whatever hidden_act is
        classify=pool.replace(input_dropout=dropout, dropout=dropout),
        choose=pool.replace(dropout=c.hidden_dropout_prob),
        base=heads.PooledOutput(pool=pool),
        dropout=dropout,
    )


def rules(spec: Model) -> list[Rule]:
    """Longformer's too."""
    classify = {"classifier.dense": "head.pool.dense", "classifier.out_proj": "head.out"}
    span = isinstance(spec.head, heads.SpanHead)
    return [
        *encoder.lm_rules(spec, "lm_head", "dense", "layer_norm"),
        *encoder.renames(classify if isinstance(spec.head, heads.ClassifyHead) else {}),
        *encoder.layer_rules(spec),
        *encoder.renames({"qa_outputs" if span else "classifier": "head.out"}),
    ]


BASE = {"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}

FAMILIES = (
    Family(
        name="roberta",
        about="encoders for text, and decoders made of them",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=(
            "RobertaForMaskedLM", "RobertaForCausalLM", "RobertaModel", "RobertaForSequenceClassification",
            "RobertaForTokenClassification", "RobertaForQuestionAnswering", "RobertaForMultipleChoice",
        ),
        base=("RobertaModel",),
        prefix="roberta.",
        dropped=("~embeddings.position_ids", "~embeddings.token_type_ids", "~pooler.dense.{p}"),
        sizes={"roberta-base": Size(BASE, 125e6), "roberta-large": Size({**BASE, **LARGE}, 355e6)},
    ),
)  # fmt: skip
