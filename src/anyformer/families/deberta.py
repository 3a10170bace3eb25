"""DeBERTa [He et al. 2021]: BERT's layers with disentangled attention, in which the distance of two tokens is a key and
a query of its own. What DeBERTa v2 has beside it is in deberta_v2.py."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Absent, ConfigField, Field, Removed, activation_at, again
from anyformer.families.shared import encoder
from anyformer.families.shared.heads import encoder_head
from anyformer.models import Model
from anyformer.parts.activation import activation_named
from anyformer.parts.attention.attention import Attention
from anyformer.parts.attention.deberta import DebertaAttention
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.head.base import Head
from anyformer.parts.head.classify import ClassifyHead
from anyformer.parts.head.language import LMHead
from anyformer.parts.head.pool import Pool
from anyformer.parts.head.span import SpanHead
from anyformer.parts.norm import LayerNorm
from anyformer.parts.position.absolute import Learned
from anyformer.parts.position.disentangled import Disentangled
from anyformer.specs.addresses import at
from anyformer.stacks.stack import Stack
from anyformer.weights.rules import Interleave, Rename, Rule

FIRST = "encoder.layers.0"
ATTENTION = f"{FIRST}.attention.op"
POSITION = f"{ATTENTION}.position"
POOLED = ("ForSequenceClassification", "ForMultipleChoice")
THEIRS, OURS = "~encoder.layer.{i}.attention.self", "encoder.layers.{i}.attention.op"
# left over from pretraining, or never read
DROPPED = ("~embeddings.position_ids", "~embeddings.position_embeddings.weight", "mask_predictions.*")
# the files of the authors have a head that legacy=False alone reads, and do not say so
TOLD = {"cls.predictions.transform.LayerNorm.weight": {"legacy": False}}


def of_distances(read: Callable[[Disentangled], Any]) -> Any:
    """Reads a field back from the distances, where there are any."""

    def found(spec: Model) -> Any:
        position = at(spec, POSITION)
        if position is None or not position.reach:
            raise Absent
        return read(position)

    return found


def undeclared(default: Any, path: str | Callable[[Model], Any]) -> Field:
    """A field that the published config class does not declare and its model reads: left out where it says nothing."""

    def found(spec: Model) -> Any:
        value = path(spec) if callable(path) else at(spec, path)
        if value == default:
            raise Absent
        return value

    return Field(default, found)


def kinds(position: Disentangled) -> list[str]:
    return [kind for kind, used in (("c2p", position.by_query), ("p2c", position.by_key)) if used]


def relative(spec: Model) -> bool:
    return getattr(at(spec, POSITION), "reach", 0) > 0


def legacy(spec: Model) -> bool:
    """Whether the head over the vocabulary is that of BERT: the other leaves its vectors as wide as they were."""
    if not isinstance(spec.head, LMHead) or spec.head.transform is None:
        raise Absent
    return spec.head.transform.width is not None


FIELDS: dict[str, ConfigField] = {
    **encoder.FIELDS,
    **again(encoder.FIELDS, vocab_size=50265, type_vocab_size=0, layer_norm_eps=1e-7),
    "num_attention_heads": Field(12, f"{ATTENTION}.num_heads"),
    "intermediate_size": Field(3072, f"{FIRST}.feedforward.op.width"),
    "hidden_act": Field("gelu", activation_at(f"{FIRST}.feedforward.op.activation")),
    "attention_probs_dropout_prob": Field(0.1, f"{ATTENTION}.dropout"),
    "embedding_size": undeclared(None, "embedding.tokens.width"),
    "position_biased_input": Field(True, lambda spec: spec.embedding.position is not None),
    "relative_attention": Field(False, relative),
    "max_relative_positions": Field(-1, of_distances(lambda position: position.reach)),
    "pos_att_type": Field(None, of_distances(kinds)),
    "pooler_dropout": Field(0.0, "head.pool.input_dropout"),
    "pooler_hidden_act": Field("gelu", activation_at("head.pool.activation")),
    "pooler_hidden_size": Field(None),  # hidden_size, or the pooler does not fit
    "cls_dropout": Field(None),  # hidden_dropout_prob stands in where it is None
    "legacy": Field(True, legacy),
    "padding_idx": Removed(0, "an old name of pad_token_id"),
}
V1: dict[str, ConfigField] = {**FIELDS, "talking_head": undeclared(False, f"{ATTENTION}.talking")}


def asked(c: Any) -> list[str]:
    """The terms of a score beside q k, by name."""
    kinds = c.pos_att_type or []
    return [kind.strip() for kind in kinds.lower().split("|")] if isinstance(kinds, str) else kinds


def describe(c: Any) -> Model:
    op = attention(c, 1 + len(asked(c)), distances(c, bias="q"))  # a term counts, whatever its name
    layers = encoder.block(c, op.replace(bias="qvo", talking=c.talking_head))
    return model(c, Stack(layers=layers, depth=c.num_hidden_layers))


def model(c: Any, stack: Stack) -> Model:
    if c.num_hidden_layers < 1:
        raise ValueError(f"num_hidden_layers is {c.num_hidden_layers}; the first layer has the vectors of distances")
    if not c.legacy:  # whose head reads the table of tokens, whatever the config says of ties
        c = SimpleNamespace(**{**vars(c), "tie_word_embeddings": True})
    return encoder.model(c, embedding(c), head(c), stack)


def attention(c: Any, terms: int, position: Disentangled | None) -> Attention:
    scale = None if terms == 1 else (terms * c.hidden_size / c.num_attention_heads) ** -0.5
    return DebertaAttention(
        num_heads=c.num_attention_heads,
        position=position,
        scale=scale,
        dropout=c.attention_probs_dropout_prob,
    )


def distances(c: Any, **more: Any) -> Disentangled | None:
    """`more` are fields that differ between the versions."""
    if not c.relative_attention:
        return None
    reach = c.max_relative_positions if c.max_relative_positions > 0 else c.max_position_embeddings
    return Disentangled(
        num_heads=c.num_attention_heads,
        reach=reach,
        by_query="c2p" in asked(c),
        by_key="p2c" in asked(c),
        dropout=c.hidden_dropout_prob,
        **more,
    )


def embedding(c: Any) -> TextEmbedding:
    narrow = None if c.embedding_size in (None, c.hidden_size) else c.embedding_size
    order: dict[str, Any] = {"order": ("segments", "position", "project", "norm", "dropout"), "project_bias": False}
    return TextEmbedding(
        tokens=Tokens(vocab_size=c.vocab_size, width=narrow, padding_index=c.pad_token_id),
        position=Learned(length=c.max_position_embeddings) if c.position_biased_input else None,
        segments=max(c.type_vocab_size, 0),
        ignores_segments=c.type_vocab_size < 1,
        norm=LayerNorm(eps=c.layer_norm_eps),
        dropout=c.hidden_dropout_prob,
        zero_pads=True,
        **(order if narrow else {}),
    )


def head(c: Any) -> Head | None:
    narrow = c.embedding_size or c.hidden_size
    if c.architecture.endswith(POOLED) and c.pooler_hidden_size not in (None, c.hidden_size):
        raise ValueError(f"pooler_hidden_size {c.pooler_hidden_size}: the pooler reads hidden_size, {c.hidden_size}")
    if c.architecture.endswith("ForMaskedLM") and not c.legacy and narrow != c.hidden_size:
        raise ValueError(f"legacy=False scores vectors of hidden_size {c.hidden_size}, and embedding_size is {narrow}")
    lm = encoder.lm_head(c, c.hidden_act, narrow if c.legacy else None)
    pool = Pool(
        take="first",
        input_dropout=c.pooler_dropout,
        dense=True,
        activation=activation_named(c.pooler_hidden_act),
        dropout=c.hidden_dropout_prob if c.cls_dropout is None else c.cls_dropout,
    )
    found = encoder_head(c, lm, pool, pool, dropout=c.hidden_dropout_prob)
    return found.replace(shares=True) if isinstance(found, ClassifyHead) else found


def rules(spec: Model) -> list[Rule]:
    heads = at(spec, f"{ATTENTION}.num_heads")
    return [
        Rename(f"{THEIRS}.q_bias", f"{OURS}.q.bias"),
        Rename(f"{THEIRS}.v_bias", f"{OURS}.v.bias"),
        Interleave(f"{THEIRS}.in_proj.weight", [f"{OURS}.{name}.weight" for name in "qkv"], heads),
        *encoder.renames(
            {
                f"{THEIRS}.pos_proj": f"{OURS}.position.k",
                f"{THEIRS}.pos_q_proj": f"{OURS}.position.q",
                f"{THEIRS}.head_logits_proj": f"{OURS}.talk.scores",
                f"{THEIRS}.head_weights_proj": f"{OURS}.talk.weights",
            }
        ),
        *shared_rules(spec),
    ]


def shared_rules(spec: Model) -> list[Rule]:
    """Of both versions, but for what is inside the attention."""
    new = isinstance(spec.head, LMHead) and not legacy(spec)
    lm = encoder.lm_rules(spec, "cls.predictions", "transform.dense", "transform.LayerNorm")
    if new:
        theirs, ours = "lm_predictions.lm_head", "head.transform"
        modules = encoder.renames({f"{theirs}.dense": f"{ours}.dense", f"{theirs}.LayerNorm": f"{ours}.norm"})
        lm = [Rename(f"{theirs}.bias", "head.out.bias"), *modules]
    return [
        *lm,
        *encoder.renames(
            {
                "~encoder.rel_embeddings": f"{POSITION}.table",
                "~embeddings.embed_proj": "embedding.project",
                "pooler.dense": "head.pool.dense",
                "qa_outputs" if isinstance(spec.head, SpanHead) else "classifier": "head.out",
            }
        ),
        *encoder.layer_rules(spec),
    ]


def size(width: int, depth: int, heads: int, published: float, **more: Any) -> Size:
    """As the authors trained them: with distances both ways, and no other positions."""
    config = {
        "hidden_size": width,
        "num_hidden_layers": depth,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
        "relative_attention": True,
        "pos_att_type": "c2p|p2c",
        "position_biased_input": False,
        "legacy": False,
    }
    return Size({**config, **more}, published)


FAMILIES = (
    Family(
        name="deberta",
        about="encoders for text that compare contents and distances apart",
        fields=V1,
        describe=describe,
        rules=rules,
        architectures=(
            "DebertaForMaskedLM",
            "DebertaModel",
            "DebertaForSequenceClassification",
            "DebertaForTokenClassification",
            "DebertaForQuestionAnswering",
        ),
        base=("DebertaModel",),
        prefix="deberta.",
        dropped=DROPPED,
        absent=TOLD,
        sizes={
            "deberta-base": size(768, 12, 12, 139e6),
            "deberta-large": size(1024, 24, 16, 405e6),
            "deberta-xlarge": size(1024, 48, 16, 750e6),
        },
    ),
)
