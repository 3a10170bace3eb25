"""Reformer [Kitaev et al. 2020]: long texts, read in chunks in their order or sorted by a hash, through layers that are
undone in the backward pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Absent, ConfigField, Field, Ignored
from anyformer.families.shared import encoder
from anyformer.models import DecoderModel, EncoderModel, Model
from anyformer.parts.activation import activation_named, published_name
from anyformer.parts.attention.local_chunks import ChunkAttention
from anyformer.parts.attention.lsh import LSHAttention
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.head.base import Head
from anyformer.parts.head.classify import ClassifyHead
from anyformer.parts.head.language import LMHead
from anyformer.parts.head.pool import Pool
from anyformer.parts.head.span import SpanHead
from anyformer.parts.init import Normal
from anyformer.parts.norm import LayerNorm
from anyformer.parts.op import Op
from anyformer.parts.position.absolute import AxialLearned, Learned
from anyformer.specs.messages import quote
from anyformer.stacks.reversible import Reversible
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from anyformer.weights.rules import Rename, Reshape, Rule

KINDS: dict[str, type[Op]] = {"local": ChunkAttention, "lsh": LSHAttention}
# where each head's last layer is in a file
OUT = {LMHead: "lm_head.decoder", SpanHead: "qa_outputs", ClassifyHead: "classifier.out_proj"}


def stack(spec: Any) -> Stack:
    return getattr(spec, encoder.stack_of(spec))


def ops(spec: Any) -> list[Any]:
    """The mixer of each layer."""
    return [stack(spec).layer(i).steps["attention"].op for i in range(stack(spec).depth)]


def names(spec: Any) -> list[str]:
    """attn_layers"""
    return [next(name for name, kind in KINDS.items() if isinstance(op, kind)) for op in ops(spec)]


def of(kind: type[Op], field: str) -> Callable[[Any], Any]:
    """Reads a field back from the first layer of this kind."""

    def read(spec: Any) -> Any:
        for op in ops(spec):
            if isinstance(op, kind):
                return getattr(op, field)
        raise Absent

    return read


def buckets(spec: Any) -> Any:
    found = of(LSHAttention, "buckets")(spec)
    return found[0] if found is not None and len(found) == 1 else found


def seed(spec: Any) -> int | None:
    found = of(LSHAttention, "rotations")(spec)
    return None if found == "fresh" else found


def axial(field: str) -> Callable[[Any], Any]:
    def read(spec: Any) -> Any:
        if not isinstance(spec.embedding.position, AxialLearned):
            raise Absent
        return getattr(spec.embedding.position, field)

    return read


def longest(spec: Any) -> int:
    """max_position_embeddings"""
    chosen = [op.longest for op in ops(spec) if isinstance(op, LSHAttention) and op.longest is not None]
    position = spec.embedding.position
    return chosen[0] if chosen else position.length or math.prod(position.shape)


def feedforward(field: str) -> Callable[[Any], Any]:
    return lambda spec: getattr(stack(spec).layer(0).steps["feedforward"].op, field)


FIELDS: dict[str, ConfigField] = {
    "vocab_size": Field(320, "embedding.tokens.vocab_size"),
    "hidden_size": Field(256, "width"),
    "attn_layers": Field(("local", "lsh", "local", "lsh", "local", "lsh"), names),
    "num_attention_heads": Field(12, of(Op, "num_heads")),
    "attention_head_size": Field(64, of(Op, "head_width")),
    "feed_forward_size": Field(512, feedforward("width")),
    "hidden_act": Field("relu", lambda spec: published_name(feedforward("activation")(spec))),
    "hidden_dropout_prob": Field(0.05, "embedding.dropout"),
    "layer_norm_eps": Field(1e-12, lambda spec: stack(spec).norm.eps),  # type: ignore[union-attr]
    "initializer_range": Field(0.02, lambda spec: spec.init["*"].std),
    "is_decoder": Field(False, lambda spec: encoder.stack_of(spec) == "decoder"),
    "local_attn_chunk_length": Field(64, of(ChunkAttention, "chunk")),
    "local_num_chunks_before": Field(1, of(ChunkAttention, "before")),
    "local_num_chunks_after": Field(0, of(ChunkAttention, "after")),
    "local_attention_probs_dropout_prob": Field(0.05, of(ChunkAttention, "dropout")),
    "lsh_attn_chunk_length": Field(64, of(LSHAttention, "chunk")),
    "lsh_num_chunks_before": Field(1, of(LSHAttention, "before")),
    "lsh_num_chunks_after": Field(0, of(LSHAttention, "after")),
    "lsh_attention_probs_dropout_prob": Field(0.0, of(LSHAttention, "dropout")),
    "num_hashes": Field(1, of(LSHAttention, "rounds")),
    "num_buckets": Field(None, buckets),
    "hash_seed": Field(None, seed),
    "axial_pos_embds": Field(True, lambda spec: isinstance(spec.embedding.position, AxialLearned)),
    "axial_pos_shape": Field((64, 64), axial("shape")),
    "axial_pos_embds_dim": Field((64, 192), axial("widths")),
    "axial_norm_std": Field(1.0, axial("std")),
    "max_position_embeddings": Field(4096, longest),
    "classifier_dropout": Field(None),  # hidden_dropout_prob stands in where it is None
    "problem_type": Field(None, "head.problem"),
    "num_hidden_layers": Field(None, lambda spec: stack(spec).depth),  # that of attn_layers unless said
    "tie_word_embeddings": Ignored(False, "the published class ties nothing: two streams are scored, one is read"),
    "chunk_size_lm_head": Ignored(0, "the same numbers computed in pieces"),
    "pad_token_id": Ignored(0, "what rows are made longer with, which nothing sees"),
    "bos_token_id": Ignored(None, "used by tokenizers"),
    "eos_token_id": Ignored(2, "used by tokenizers"),
}


def describe(c: Any) -> Model:
    layers = [*c.attn_layers] if isinstance(c.attn_layers, (list, tuple)) else []
    if not layers or any(name not in KINDS for name in layers):
        raise ValueError(f"attn_layers is a list of 'lsh' and 'local', one for each layer; got {quote(c.attn_layers)}")
    depth = len(layers) if c.num_hidden_layers is None else c.num_hidden_layers
    if depth > len(layers) and len({*layers}) > 1:
        raise ValueError(f"num_hidden_layers is {depth}, and attn_layers names {len(layers)}")
    layers = (layers * depth)[:depth]
    lengths = {"local": c.local_attn_chunk_length, "lsh": c.lsh_attn_chunk_length}
    if any(type(lengths[name]) is not int or lengths[name] < 1 for name in layers):
        raise ValueError(f"a chunk holds at least one token; got {lengths}")
    multiple, dropout = math.lcm(*(lengths[name] for name in layers)), c.hidden_dropout_prob
    head, writes = head_of(c), c.architecture == "ReformerModelWithLMHead"
    if writes and not c.is_decoder:
        raise ValueError("is_decoder is false, and ReformerModelWithLMHead writes: set it, or load ReformerForMaskedLM")
    if c.is_decoder and c.architecture == "ReformerForMaskedLM":
        raise ValueError("is_decoder is true, and ReformerForMaskedLM sees both sides: load ReformerModelWithLMHead")
    for name in dict.fromkeys(layers):
        if writes and getattr(c, f"{name}_num_chunks_after"):
            raise ValueError(f"{name}_num_chunks_after is above 0: a model that writes looks at no chunk behind")
    shared = {"num_heads": c.num_attention_heads, "head_width": c.attention_head_size, "causal": c.is_decoder}

    def local() -> ChunkAttention:
        before, after = c.local_num_chunks_before, c.local_num_chunks_after
        ring = not c.is_decoder or before > 1 or after > 0  # else it changes nothing
        return ChunkAttention(
            chunk=lengths["local"],
            before=before,
            after=after,
            dropout=c.local_attention_probs_dropout_prob,
            ring=ring,
            multiple=multiple if ring else None,
            loose=ring and writes,
            **shared,
        )

    def lsh() -> LSHAttention:
        given = c.num_buckets
        return LSHAttention(
            chunk=lengths["lsh"],
            before=c.lsh_num_chunks_before,
            after=c.lsh_num_chunks_after,
            rounds=c.num_hashes,
            buckets=(given,) if isinstance(given, int) else given and tuple(given),
            longest=None if given else c.max_position_embeddings,
            multiple=multiple,
            loose=writes,
            rotations="fresh" if c.hash_seed is None else c.hash_seed,
            dropout=c.lsh_attention_probs_dropout_prob,
            **shared,
        )

    def step(op: Op) -> Sublayer:
        return Sublayer(op=op, pre_norm=LayerNorm(eps=c.layer_norm_eps), dropout=dropout)

    # published before the activation, which for a ReLU is the same
    inner = MLP(width=c.feed_forward_size, activation=activation_named(c.hidden_act), dropout=dropout)
    makers = {"local": local, "lsh": lsh}
    kinds = {name: Reversible(attention=step(makers[name]()), feedforward=step(inner)) for name in sorted({*layers})}
    one = len(kinds) == 1
    built = Stack(
        layers=kinds[layers[0]] if one else kinds,
        pattern=() if one else tuple(layers),
        depth=len(layers),
        norm=LayerNorm(eps=c.layer_norm_eps),
        dropout=dropout,
        shows="last",
    )
    rest: dict[str, Any] = {
        "width": c.hidden_size,
        "embedding": embedding(c),
        "head": head,
        "state_name": "past_buckets_states",
        "init": {"*": Normal(std=c.initializer_range)},
    }
    return DecoderModel(decoder=built, **rest) if c.is_decoder else EncoderModel(encoder=built, **rest)


def embedding(c: Any) -> TextEmbedding:
    """Dropout falls on tokens and positions apart."""
    dropout, length = c.hidden_dropout_prob, c.max_position_embeddings
    position: AxialLearned | Learned = Learned(length=length, dropout=dropout)
    if c.axial_pos_embds:
        position = AxialLearned(
            shape=c.axial_pos_shape,
            widths=c.axial_pos_embds_dim,
            std=c.axial_norm_std,
            dropout=dropout,
            length=length if length < math.prod(c.axial_pos_shape) else None,
        )
        if sum(position.widths) != c.hidden_size:
            raise ValueError(f"axial_pos_embds_dim {position.widths} do not add up to hidden_size {c.hidden_size}")
    return TextEmbedding(
        tokens=Tokens(vocab_size=c.vocab_size),
        position=position,
        dropout=dropout,
        order=("segments", "dropout", "position", "norm", "project"),
    )


def head_of(c: Any) -> Head | None:
    if c.architecture in ("ReformerModelWithLMHead", "ReformerForMaskedLM"):
        # its bias is in files, and nothing reads it
        return LMHead(vocab_size=c.vocab_size, shift=c.architecture == "ReformerModelWithLMHead", unused_bias=True)
    if c.architecture == "ReformerForSequenceClassification":
        dropout = encoder.classifier_dropout(c)
        pool = Pool(
            take="first", dense=True, width=c.hidden_size, activation="tanh", input_dropout=dropout, dropout=dropout
        )
        return ClassifyHead(num_labels=c.num_labels, pool=pool, problem=c.problem_type)
    if c.architecture == "ReformerForQuestionAnswering":
        if c.num_labels != 2:
            raise ValueError(f"num_labels is {c.num_labels}; an answer has two ends, a start and an end")
        return SpanHead()
    return None


def rules(spec: Any) -> list[Rule]:
    name, layer = encoder.stack_of(spec), "~encoder.layers.{i}"
    ours = f"{name}.layers.{{i}}"
    mixer = {"query_key": "qk", "query": "q", "key": "k", "value": "v"}
    position, place = spec.embedding.position, "~embeddings.position_embeddings"
    found: list[Rule] = [Rename("lm_head.bias", "head.idle.bias")]
    for i in range(len(position.shape) if isinstance(position, AxialLearned) else 0):
        sides = [position.shape[i] if side == i else 1 for side in range(len(position.shape))]
        found.append(Reshape(f"{place}.weights.{i}", f"embedding.position.side{i}", (*sides, position.widths[i])))
    return found + encoder.renames(
        {
            "~embeddings.word_embeddings": "embedding.tokens",
            f"{place}.embedding": "embedding.position",
            **{f"{layer}.attention.self_attention.{n}": f"{ours}.attention.op.{mine}" for n, mine in mixer.items()},
            f"{layer}.attention.output.dense": f"{ours}.attention.op.o",
            f"{layer}.attention.layer_norm": f"{ours}.attention.pre_norm",
            f"{layer}.feed_forward.layer_norm": f"{ours}.feedforward.pre_norm",
            f"{layer}.feed_forward.dense.dense": f"{ours}.feedforward.op.up",
            f"{layer}.feed_forward.output.dense": f"{ours}.feedforward.op.down",
            "~encoder.layer_norm": f"{name}.norm",
            "classifier.dense": "head.pool.dense",
            OUT.get(type(spec.head), ""): "head.out",
        }
    )


WRITER = {"architectures": ["ReformerModelWithLMHead"], "is_decoder": True}
CRIME = {
    "num_attention_heads": 2,
    "axial_pos_shape": [512, 1024],
    "max_position_embeddings": 524288,
    "num_buckets": [64, 128],
}
ENWIK8 = {
    "vocab_size": 258, "hidden_size": 1024, "num_attention_heads": 8, "attention_head_size": 128,
    "attn_layers": ["local", "local", "lsh", "local"] * 3, "feed_forward_size": 4096, "hidden_dropout_prob": 0.2,
    "axial_pos_shape": [128, 512], "axial_pos_embds_dim": [256, 768], "max_position_embeddings": 65536,
    "num_buckets": 512, "num_hashes": 4, "local_attn_chunk_length": 128, "lsh_attn_chunk_length": 256,
    "local_attention_probs_dropout_prob": 0.2, "lsh_attention_probs_dropout_prob": 0.1,
}  # fmt: skip
SIZES = {
    "reformer-crime-and-punishment": Size({**WRITER, **CRIME}),
    "reformer-enwik8": Size({**WRITER, **ENWIK8}, 149e6),
}

FAMILIES = (
    Family(
        name="reformer",
        about="encoders and decoders for long texts, in chunks sorted by a hash",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=(
            "ReformerForMaskedLM",
            "ReformerModel",
            "ReformerModelWithLMHead",
            "ReformerForSequenceClassification",
            "ReformerForQuestionAnswering",
        ),
        base=("ReformerModel",),
        prefix="reformer.",
        dropped=tuple(
            f"~encoder.layers.{{i}}.attention.self_attention.{kind}mask_value_float{bits}"
            for kind in ("", "self_")
            for bits in (16, 32)
        ),
        sizes=SIZES,
    ),
)
