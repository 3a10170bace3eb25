"""DeBERTa [He et al. 2021]: BERT with disentangled attention: relative positions have separate keys and queries.
deberta_v2.py has the additions of versions 2 and 3."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Absent, Removed
from anyformer.families.base.template import (
    Class,
    Config,
    Entry,
    activation,
    choice,
    entry,
    interleave,
    parameter,
    read_only,
)
from anyformer.families.shared import bert_like
from anyformer.families.shared.bert_like import LAYERS
from anyformer.families.shared.deberta import (
    ATTENTION,
    POSITION,
    distance_field,
    distances,
    omit_default,
    relative_attention,
    scale,
    score_terms,
)
from anyformer.parts import (
    ClassifyHead, DebertaAttention, EncoderModel, FirstToken, IgnoredSegments, LMHead, LayerNorm, Learned, Normal, Pool,
    SpanHead, Stack, TagHead, TalkingHeads, Tokens, Transform, ZeroedPaddingText,
)  # fmt: skip
from anyformer.parts.activation import activation_named
from anyformer.specs.addresses import edit
from anyformer.weights.rules import Rename, Rule

THEIRS, OURS = "~encoder.layer.{i}.attention.self", "encoder.layers.{i}.attention.op"

NORM = LayerNorm(eps=1e-7)
EMBEDDING = ZeroedPaddingText(
    tokens=Tokens(vocab_size=50265, padding_index=0),
    position=Learned(length=512),
    segments=IgnoredSegments(),
    norm=NORM,
    dropout=0.1,
)
TEMPLATE = EncoderModel(
    width=768,
    embedding=EMBEDDING,
    encoder=Stack(
        depth=12,
        # relative_attention adds position=Disentangled(...) to each attention
        layers=edit(
            LAYERS,
            {"*.out_norm": NORM, "attention.op": DebertaAttention(num_heads=12, bias="qvo", dropout=0.1)},
        ),
    ),
    init={"*": Normal(std=0.02)},
)
POOL = Pool(take=FirstToken(), dense=True, activation="gelu", dropout=0.1)
LM = LMHead(vocab_size=50265, bias=True, transform=Transform(activation="gelu", norm=NORM, width=768), shift=False)


def token_width(c: Config) -> int | None:
    return None if c.embedding_size == c.hidden_size else c.embedding_size


def has_legacy_head(spec: EncoderModel) -> bool:
    """Whether the language-model head is BERT's, which projects to the embedding width. The new one keeps the width."""
    if not isinstance(spec.head, LMHead) or spec.head.transform is None:
        raise Absent
    return spec.head.transform.width is not None


def tie(spec: EncoderModel, value: bool, c: Config) -> EncoderModel:
    """Tie the head to the token table. The head of legacy=False is always tied."""
    ties = isinstance(spec.head, LMHead) and (value or not c.legacy)
    return spec.replace(ties=(("head.out.weight", bert_like.TOKENS),)) if ties else spec


CONFIG: dict[str, Any] = {
    **bert_like.CONFIG,
    "hidden_dropout_prob": ("embedding.dropout", "encoder.layers.*.dropout", "head[TagHead].dropout"),
    "type_vocab_size": entry(
        "embedding.segments",
        read=lambda value, c: value if value > 0 else IgnoredSegments(),
        write=lambda segments: 0 if isinstance(segments, IgnoredSegments) else segments,
    ),
    "tie_word_embeddings": dataclasses.replace(bert_like.CONFIG["tie_word_embeddings"], build=tie),
    "embedding_size": omit_default(entry("embedding.tokens.width", default=None, read=lambda value, c: token_width(c))),
    "max_position_embeddings": Entry(512, "embedding.position.length"),
    "position_biased_input": entry(
        "embedding.position",
        read=lambda value, c: Learned(length=c.max_position_embeddings) if value else None,
        write=lambda position: position is not None,
    ),
    "relative_attention": relative_attention(lambda c: distances(c, bias="q")),
    "max_relative_positions": distance_field(-1, lambda position: position.reach),
    "pos_att_type": distance_field(None, lambda position: ["c2p"] * position.by_query + ["p2c"] * position.by_key),
    "talking_head": omit_default(choice(f"{ATTENTION}.scores", {False: (), True: (TalkingHeads(),)})),
    "pooler_dropout": "head.pool.input_dropout",
    "pooler_hidden_act": activation("head.pool.activation"),
    "pooler_hidden_size": read_only(),
    "cls_dropout": read_only(
        addresses=("head.pool.dropout",), read=lambda value, c: c.hidden_dropout_prob if value is None else value
    ),
    "legacy": Entry(True, has_legacy_head),
    "padding_idx": Removed(0, "an old name of pad_token_id"),
}
COMPUTED: dict[str, Callable[[Config], Any]] = {
    f"{ATTENTION}.scale": lambda c: scale(c, 1 + len(score_terms(c))),  # unknown terms count too
    "embedding.order": lambda c: (
        ("segments", "position", "project", "norm", "dropout") if token_width(c) else EMBEDDING.order
    ),
    "embedding.project_bias": lambda c: not token_width(c),
    "head.transform.width": lambda c: (c.embedding_size or c.hidden_size) if c.legacy else None,
    "head.unused_bias": lambda c: c.legacy and not c.tie_word_embeddings,
}


def check(c: Config) -> None:
    width, kind = c.hidden_size, c.architecture.rpartition("For")[2]
    if width % c.num_attention_heads:
        raise ValueError(f"hidden_size {width} is not a multiple of {c.num_attention_heads} attention heads")
    if c.num_hidden_layers < 1:
        raise ValueError(f"num_hidden_layers must be at least 1, got {c.num_hidden_layers}")
    if kind in ("SequenceClassification", "MultipleChoice") and c.pooler_hidden_size not in (None, width):
        raise ValueError(f"pooler_hidden_size {c.pooler_hidden_size} must equal hidden_size {width}")
    if kind == "MaskedLM" and not c.legacy and (c.embedding_size or width) != width:
        raise ValueError(f"legacy=False needs embedding_size {c.embedding_size} to equal hidden_size {width}")
    if kind == "QuestionAnswering" and c.num_labels != 2:
        raise ValueError(f"num_labels must be 2 for question answering (start and end), got {c.num_labels}")
    Pool(  # checks the values even if no head reads them
        take=FirstToken(),
        activation=activation_named(c.pooler_hidden_act),
        input_dropout=c.pooler_dropout,
        dropout=c.hidden_dropout_prob if c.cls_dropout is None else c.cls_dropout,
    )


def new_scores(theirs: str, spec: EncoderModel) -> list[Rule]:
    """Rules of the language-model head of legacy=False."""
    if not isinstance(spec.head, LMHead) or has_legacy_head(spec):
        return []
    modules = bert_like.renames(
        {f"{theirs}.dense": "head.transform.dense", f"{theirs}.LayerNorm": "head.transform.norm"}
    )
    return [Rename(f"{theirs}.bias", "head.out.bias"), *modules]


WEIGHTS: dict[str, Any] = {
    f"{THEIRS}.{{q,v}}_bias": parameter(f"{OURS}.{{q,v}}.bias"),
    f"{THEIRS}.in_proj": interleave(f"{OURS}.{{q,k,v}}"),
    f"{THEIRS}.{{pos,pos_q}}_proj": f"{OURS}.position.{{k,q}}",
    f"{THEIRS}.head_{{logits,weights}}_proj": f"{OURS}.scores.0.{{scores,weights}}",
    "lm_predictions.lm_head": new_scores,
    "cls.predictions": bert_like.vocabulary("transform.dense", "transform.LayerNorm"),
    "~encoder.rel_embeddings": f"{POSITION}.table",
    "~embeddings.embed_proj": "embedding.project",
    "pooler.dense": "head.pool.dense",
    **bert_like.WEIGHTS,
}


def classes(name: str, lm: LMHead = LM) -> dict[str, Class]:
    return {
        f"{name}ForMaskedLM": Class(lm),
        f"{name}Model": Class(prefix=""),
        f"{name}ForSequenceClassification": Class(ClassifyHead(num_labels=2, pool=POOL, shares=True), "classifier"),
        f"{name}ForTokenClassification": Class(TagHead(num_labels=2, dropout=0.1), "classifier"),
        f"{name}ForQuestionAnswering": Class(SpanHead(), "qa_outputs"),
    }


def size(width: int, depth: int, heads: int, published: float, **more: Any) -> Size:
    """A size as published by the authors: relative positions both ways (c2p and p2c) and no absolute positions."""
    shape = {"hidden_size": width, "num_hidden_layers": depth, "num_attention_heads": heads}
    terms = {"relative_attention": True, "pos_att_type": "c2p|p2c", "position_biased_input": False}
    return Size({**shape, "intermediate_size": 4 * width, **terms, "legacy": False, **more}, published)


DEBERTA = Family(
    name="deberta",
    about="text encoders with separate attention terms for content and relative position",
    tokenizer="DebertaTokenizer",
    template=TEMPLATE,
    classes=classes("Deberta"),
    config=CONFIG,
    computed=COMPUTED,
    weights=WEIGHTS,
    prefix="deberta.",
    checks=(check,),
    # left over from pretraining or never read
    dropped=("~embeddings.position_ids", "~embeddings.position_embeddings.weight", "mask_predictions.*"),
    # the authors' files have the head of legacy=False, but their configs do not say so
    absent={"cls.predictions.transform.LayerNorm.weight": {"legacy": False}},
    sizes={
        "deberta-base": size(768, 12, 12, 139e6),
        "deberta-large": size(1024, 24, 16, 405e6),
        "deberta-xlarge": size(1024, 48, 16, 750e6),
    },
)
