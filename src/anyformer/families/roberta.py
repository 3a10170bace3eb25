"""RoBERTa [Liu et al. 2019]: BERT trained longer, without segments to tell apart or sentences to predict; positions are
counted as fairseq does, over the tokens that are not padding. XLM-R [Conneau et al. 2020] and CamemBERT [Martin et al.
2020] are the same with other vocabularies; XLM-R XL [Goyal et al. 2021] and RoBERTa-PreLayerNorm [Wettig et al. 2023]
have their norms at the beginning of each step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import ConfigField, Field, Ignored, again
from anyformer.families.shared import encoder
from anyformer.families.shared.heads import encoder_head
from anyformer.models import Model
from anyformer.parts.head.base import Head
from anyformer.parts.head.classify import ClassifyHead, PooledOutput
from anyformer.parts.head.pool import Pool
from anyformer.parts.head.span import SpanHead
from anyformer.parts.head.tag import TagHead
from anyformer.parts.norm import LayerNorm
from anyformer.specs.codec import override
from anyformer.stacks.stack import Stack
from anyformer.weights.rules import Rule

FIELDS: dict[str, ConfigField] = {
    **encoder.FIELDS,
    **encoder.DECODING,
    "vocab_size": Field(50265, "embedding.tokens.vocab_size"),
    "max_position_embeddings": encoder.COUNTED_LENGTH,
    "pad_token_id": Field(1, "embedding.tokens.padding_index"),
    "bos_token_id": Ignored(0, "used by tokenizers and generation"),
    "eos_token_id": Ignored(2, "used by tokenizers and generation"),
    "output_past": Ignored(True, "an old name of use_cache that nothing reads"),
}
OTHER_WORDS = {**FIELDS, **again(FIELDS, vocab_size=30522)}
XL = {
    **FIELDS,
    **again(
        FIELDS,
        vocab_size=250880,
        hidden_size=2560,
        num_hidden_layers=36,
        num_attention_heads=32,
        intermediate_size=10240,
        max_position_embeddings=514,
        type_vocab_size=1,
    ),
    "layer_norm_eps": Field(1e-5, encoder.inside("norm.eps")),  # the embedding has no norm
}


def describe(c: Any) -> Model:
    return encoder.model(c, encoder.counted_embedding(c), head(c))


def describe_pre_norm(c: Any) -> Model:
    return encoder.model(c, encoder.counted_embedding(c), head(c), pre_norm(c))


def describe_xl(c: Any) -> Model:
    stack, answer = override(pre_norm(c), {"layers.feedforward.dropout": 0.0}), head(c)
    if isinstance(answer, TagHead):
        answer = answer.replace(counts_pads=False)
    return encoder.model(c, encoder.counted_embedding(c, norm=None), answer, stack)


def pre_norm(c: Any) -> Stack:
    layer = encoder.block(c, None, c.is_decoder, c.add_cross_attention, norm="pre_norm")
    return Stack(layers=layer, depth=c.num_hidden_layers, norm=LayerNorm(eps=c.layer_norm_eps))


def head(c: Any) -> Head | None:
    dropout = encoder.classifier_dropout(c)
    pool = Pool(take="first", dense=True, activation="tanh")
    return encoder_head(
        c,
        encoder.lm_head(c, "gelu"),  # whatever hidden_act is
        classify=pool.replace(input_dropout=dropout, dropout=dropout),
        choose=pool.replace(dropout=c.hidden_dropout_prob),
        base=PooledOutput(pool=pool),
        dropout=dropout,
    )


def rules(spec: Model) -> list[Rule]:
    """Longformer's too."""
    classify = {"classifier.dense": "head.pool.dense", "classifier.out_proj": "head.out"}
    span = isinstance(spec.head, SpanHead)
    return [
        *encoder.lm_rules(spec, "lm_head", "dense", "layer_norm"),
        *encoder.renames(classify if isinstance(spec.head, ClassifyHead) else {}),
        *encoder.layer_rules(spec),
        *encoder.renames({"qa_outputs" if span else "classifier": "head.out"}),
    ]


def pre_norm_rules(attention: str, feedforward: str, last: str) -> Callable[[Model], list[Rule]]:
    """RoBERTa's, and where the norms are: of an attention and of a feed-forward in their layer, of the last layer."""

    def named(spec: Model) -> list[Rule]:
        stack, theirs = encoder.stack_of(spec), "~encoder.layer.{i}"
        ours = f"{stack}.layers.{{i}}"
        return encoder.renames(
            {
                f"{theirs}.attention.{attention}": f"{ours}.attention.pre_norm",
                f"{theirs}.crossattention.{attention}": f"{ours}.cross.pre_norm",
                f"{theirs}.{feedforward}": f"{ours}.feedforward.pre_norm",
                last: f"{stack}.norm",
            }
        ) + rules(spec)

    return named


ENDINGS = (
    "ForMaskedLM",
    "ForCausalLM",
    "Model",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
)


def family(name: str, classes: str, about: str, sizes: Mapping[str, Size], **own: Any) -> Family:
    """RoBERTa's classes under other names; `own` is what differs beside them."""
    usual = {"fields": FIELDS, "describe": describe, "rules": rules, "prefix": "roberta."}
    return Family(
        name=name,
        about=about,
        sizes=sizes,
        base=(f"{classes}Model",),
        architectures=tuple(classes + ending for ending in ENDINGS),
        dropped=("~embeddings.position_ids", "~embeddings.token_type_ids", "~pooler.dense.{p}"),
        **{**usual, **own},
    )


BASE = {"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
MANY, FRENCH = {**BASE, "vocab_size": 250002}, {**BASE, "vocab_size": 32005}
XXL = {"hidden_size": 4096, "num_hidden_layers": 48, "intermediate_size": 16384}

FAMILIES = (
    family(
        "roberta", "Roberta", "encoders for text, and decoders made of them",
        {"roberta-base": Size(BASE, 125e6), "roberta-large": Size({**BASE, **LARGE}, 355e6)},
    ),
    family(
        "xlm-roberta", "XLMRoberta", "encoders for text in a hundred languages, and decoders made of them",
        {"xlm-roberta-base": Size(MANY, 278e6), "xlm-roberta-large": Size({**MANY, **LARGE}, 560e6)},
        fields=OTHER_WORDS,
    ),
    family(
        "camembert", "Camembert", "encoders for French text, and decoders made of them",
        {"camembert-base": Size(FRENCH, 110e6), "camembert-large": Size({**FRENCH, **LARGE}, 337e6)},
        fields=OTHER_WORDS,
    ),
    family(
        "xlm-roberta-xl", "XLMRobertaXL", "large encoders for text in a hundred languages, and decoders made of them",
        {"xlm-roberta-xl": Size({}, 3.5e9), "xlm-roberta-xxl": Size(XXL, 10.7e9)},
        fields=XL, describe=describe_xl,
        rules=pre_norm_rules("self_attn_layer_norm", "LayerNorm", "~encoder.LayerNorm"),
    ),
    family(
        "roberta-prelayernorm", "RobertaPreLayerNorm", "pre-norm encoders for text, and decoders made of them",
        {"efficient-mlm": Size({**BASE, **LARGE})}, prefix="roberta_prelayernorm.", describe=describe_pre_norm,
        rules=pre_norm_rules("LayerNorm", "intermediate.LayerNorm", "~LayerNorm"),
    ),
)  # fmt: skip
