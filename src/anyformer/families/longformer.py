"""Longformer [Beltagy et al. 2020]: RoBERTa for long texts; each layer looks at a window, and chosen tokens at all."""

from __future__ import annotations

from typing import Any

from anyformer.families import roberta
from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Absent, ConfigField, Field, Ignored, Removed
from anyformer.families.shared import encoder
from anyformer.families.shared.heads import encoder_head
from anyformer.models import Model
from anyformer.parts.attention.longformer import GlobalTextEmbedding, LocalAttention
from anyformer.parts.head.base import Head
from anyformer.parts.head.classify import PooledOutput
from anyformer.parts.head.pool import Pool
from anyformer.stacks.stack import Stack
from anyformer.weights.rules import Rule

# the tokens that are global where the caller names none
GLOBAL = {
    "LongformerForSequenceClassification": "first",
    "LongformerForQuestionAnswering": "before",
    "LongformerForMultipleChoice": "after",
}


def windows(spec: Any) -> list[int]:
    """Of each layer, both sides together."""
    stack = spec.encoder
    return [2 * stack.layer(i).steps["attention"].op.window for i in range(stack.depth)]


def separator(spec: Any) -> int:
    if spec.embedding.separator is None:
        raise Absent
    return spec.embedding.separator


FIELDS: dict[str, ConfigField] = {
    **encoder.FIELDS,
    "max_position_embeddings": encoder.COUNTED_LENGTH,
    "pad_token_id": Field(1, "embedding.tokens.padding_index"),
    "attention_window": Field(512, windows),
    "sep_token_id": Field(2, separator),
    "attention_dilation": Removed(None, "windows with gaps, which no published class has", ([1] * 12, [1] * 24)),
    "attention_mode": Removed("longformer", "other ways of the original code, which no published class has"),
    "ignore_attention_mask": Removed(False, "an option of the original code, which no published class has"),
    "bos_token_id": Ignored(0, "used by tokenizers"),
    "eos_token_id": Ignored(2, "used by tokenizers"),
    "onnx_export": Ignored(False, "how chunks are cut, not what they hold"),
}


def describe(c: Any) -> Model:
    L, given = c.num_hidden_layers, c.attention_window
    each = [given] * L if isinstance(given, int) else list(given)
    if len(each) != L or any(not isinstance(size, int) or size < 2 or size % 2 for size in each):
        raise ValueError(f"attention_window is an even number, or one for each of {L} layers; got {given}")

    def layer(size: int) -> Any:
        return encoder.block(
            c,
            LocalAttention(
                num_heads=c.num_attention_heads,
                window=size // 2,
                dropout=c.attention_probs_dropout_prob,
                shown=max(each),
            ),
        )

    kinds = {f"window_{size}": layer(size) for size in each}
    one = len(kinds) == 1
    stack = Stack(
        layers=layer(each[0]) if one else kinds, pattern=() if one else tuple(f"window_{s}" for s in each), depth=L
    )
    kind = GLOBAL.get(c.architecture, "none")
    parts = c.sep_token_id if kind in ("before", "after") else None
    embedding = encoder.counted_embedding(c, GlobalTextEmbedding, global_tokens=kind, separator=parts)
    return encoder.model(c, embedding, head(c), stack)


def head(c: Any) -> Head | None:
    dropout = c.hidden_dropout_prob
    pool = Pool(take="first", dense=True, activation="tanh")
    dropped = pool.replace(dropout=dropout)
    base, classify = PooledOutput(pool=pool), dropped.replace(input_dropout=dropout)
    return encoder_head(c, encoder.lm_head(c, "gelu"), classify, dropped, base, dropout=dropout)


def rules(spec: Model) -> list[Rule]:
    theirs, ours = "~encoder.layer.{i}.attention.self", "encoder.layers.{i}.attention.op.global_"
    names = {"query": "q", "key": "k", "value": "v"}
    own = encoder.renames({f"{theirs}.{name}_global": f"{ours}{n}" for name, n in names.items()})
    return [*own, *roberta.rules(spec)]


BASE = {"vocab_size": 50265, "max_position_embeddings": 4098, "type_vocab_size": 1, "layer_norm_eps": 1e-5}

FAMILIES = (
    Family(
        name="longformer",
        about="encoders for long texts",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=(
            "LongformerForMaskedLM",
            "LongformerModel",
            "LongformerForSequenceClassification",
            "LongformerForTokenClassification",
            "LongformerForQuestionAnswering",
            "LongformerForMultipleChoice",
        ),
        base=("LongformerModel",),
        prefix="longformer.",
        dropped=("~embeddings.position_ids", "~pooler.dense.{p}"),
        sizes={
            "longformer-base": Size(BASE, 149e6),
            "longformer-large": Size({**BASE, **roberta.LARGE}, 435e6),
        },
    ),
)
