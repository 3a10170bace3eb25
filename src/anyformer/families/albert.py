"""ALBERT [Lan et al. 2020]: few layers that run many times, tokens narrower than the model, and the order of two pieces
of text in place of the next sentence."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import ConfigField, Field, Ignored, Removed, again
from anyformer.families.shared import encoder
from anyformer.families.shared.heads import encoder_head
from anyformer.models import Model
from anyformer.parts.embedding.text import Tokens
from anyformer.parts.head.base import Head
from anyformer.parts.head.classify import PooledOutput
from anyformer.parts.head.pool import Pool
from anyformer.parts.head.pretraining import SentenceOrderHead
from anyformer.parts.head.span import SpanHead
from anyformer.specs.codec import override
from anyformer.stacks.stack import Stack
from anyformer.weights.rules import Rule

_ORIGINAL = "of the original code, where other values stood for experiments; the published class reads none of it"

FIELDS: dict[str, ConfigField] = {
    **encoder.FIELDS,
    "vocab_size": Field(30000, "embedding.tokens.vocab_size"),
    "embedding_size": Field(128, lambda spec: spec.embedding.tokens.width or spec.width),
    "hidden_size": Field(4096, "width"),
    "num_hidden_layers": Field(12, lambda spec: len(spec.encoder.steps) // inner(spec)),
    "num_hidden_groups": Field(1, lambda spec: spec.encoder.depth // inner(spec)),
    "num_attention_heads": Field(64, "encoder.layers.attention.op.num_heads"),
    "intermediate_size": Field(16384, "encoder.layers.feedforward.op.width"),
    "inner_group_num": Field(1, lambda spec: inner(spec)),
    **again(encoder.FIELDS, hidden_act="gelu_new"),
    "hidden_dropout_prob": Field(0.0, "embedding.dropout"),
    "attention_probs_dropout_prob": Field(0.0, "encoder.layers.attention.op.dropout"),
    "classifier_dropout_prob": Field(0.1),
    "bos_token_id": Ignored(2, "used by tokenizers and generation"),
    "eos_token_id": Ignored(3, "used by tokenizers and generation"),
    "down_scale_factor": Removed(1, _ORIGINAL),
    **{name: Removed(0, _ORIGINAL) for name in ("gap_size", "net_structure_type", "num_memory_blocks")},
    "layers_to_keep": Removed([], _ORIGINAL),
    "output_past": Ignored(True, "an old name of use_cache that nothing reads"),
}


def inner(spec: Any) -> int:
    """How many layers a group has."""
    return max(len(spec.encoder.pattern), 1)


def describe(c: Any) -> Model:
    L, G, n = c.num_hidden_layers, c.num_hidden_groups, c.inner_group_num
    if not 1 <= G <= L or n < 1:
        raise ValueError(f"num_hidden_groups {G} of inner_group_num {n} do not share num_hidden_layers {L}")
    layer = override(encoder.block(c), {"feedforward.dropout": 0.0})  # published so
    kinds = {f"inner_{j}": layer for j in range(n)}
    stack = Stack(
        layers=layer if n == 1 else kinds,
        pattern=() if n == 1 else tuple(kinds),
        depth=G * n,
        order=tuple(int(i / (L / G)) * n + j for i in range(L) for j in range(n)),
    )
    tokens = Tokens(vocab_size=c.vocab_size, width=c.embedding_size, padding_index=c.pad_token_id)
    return encoder.model(c, encoder.embedding(c, tokens=tokens), head(c), stack)


def head(c: Any) -> Head | None:
    dropout = c.classifier_dropout_prob
    pool = Pool(take="first", dense=True, activation="tanh")
    dropped = pool.replace(dropout=dropout)
    lm = encoder.lm_head(c, c.hidden_act, c.embedding_size)
    if c.architecture == "AlbertForPreTraining":
        if c.num_labels != 2:
            raise ValueError(f"num_labels is {c.num_labels}; two pieces of text have two orders")
        return SentenceOrderHead(lm=lm, pool=dropped)
    return encoder_head(c, lm, dropped, dropped, PooledOutput(pool=pool), dropout=dropout)


def rules(spec: Any) -> list[Rule]:
    found = encoder.lm_rules(spec, "predictions", "dense", "LayerNorm")
    for k in range(spec.encoder.depth):
        group, j = divmod(k, inner(spec))
        layer, ours = f"~encoder.albert_layer_groups.{group}.albert_layers.{j}", f"encoder.layers.{k}"
        found += encoder.renames(
            {
                f"{layer}.attention.query": f"{ours}.attention.op.q",
                f"{layer}.attention.key": f"{ours}.attention.op.k",
                f"{layer}.attention.value": f"{ours}.attention.op.v",
                f"{layer}.attention.dense": f"{ours}.attention.op.o",
                f"{layer}.attention.LayerNorm": f"{ours}.attention.out_norm",
                f"{layer}.ffn": f"{ours}.feedforward.op.up",
                f"{layer}.ffn_output": f"{ours}.feedforward.op.down",
                f"{layer}.full_layer_layer_norm": f"{ours}.feedforward.out_norm",
            }
        )
    out = {SentenceOrderHead: "sop_classifier.classifier", SpanHead: "qa_outputs"}
    return [
        *found,
        *encoder.renames(
            {
                "~encoder.embedding_hidden_mapping_in": "embedding.project",
                "~pooler": "head.pool.dense",
                out.get(type(spec.head), "classifier"): "head.out",
            }
        ),
        *encoder.layer_rules(spec),
    ]


def size(width: int, depth: int, num_heads: int, published: float, note: str = "") -> Size:
    shape = {"hidden_size": width, "num_hidden_layers": depth, "num_attention_heads": num_heads}
    return Size({**shape, "intermediate_size": 4 * width}, published, note)


FAMILIES = (
    Family(
        name="albert",
        about="encoders for text whose layers share their weights",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=(
            "AlbertForPreTraining",
            "AlbertForMaskedLM",
            "AlbertModel",
            "AlbertForSequenceClassification",
            "AlbertForTokenClassification",
            "AlbertForQuestionAnswering",
            "AlbertForMultipleChoice",
        ),
        base=("AlbertModel",),
        prefix="albert.",
        # pretraining leaves a pooler and a sentence-order head behind that most classes have no use for
        dropped=("~embeddings.position_ids", "~pooler.{p}", "sop_classifier.classifier.{p}"),
        sizes={
            "albert-base": size(768, 12, 12, 12e6),
            "albert-large": size(1024, 24, 16, 18e6),
            "albert-xlarge": size(2048, 24, 16, 60e6),
            "albert-xxlarge": size(4096, 12, 64, 223e6, "the paper prints 235M; the released files hold 223M"),
        },
    ),
)
