"""Reformer [Kitaev et al. 2020]: long texts, read in chunks in their order or sorted by a hash, through layers that are
undone in the backward pass."""

from __future__ import annotations

import math
from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import ConfigField, Field, Ignored
from anyformer.families.base.template import Config, activation, entry, parameter, rules_of
from anyformer.families.shared.encoder import stack_of
from anyformer.models import DecoderModel, EncoderModel, Model
from anyformer.parts.activation import activation_named
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
from anyformer.parts.position.absolute import AxialLearned, Learned
from anyformer.specs.addresses import find, value_at
from anyformer.specs.messages import quote
from anyformer.stacks.reversible import Reversible
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from anyformer.weights.rules import Reshape, Rule


def describe(c: Config) -> Model:
    layers, dropout, norm = layer_names(c), c.hidden_dropout_prob, LayerNorm(eps=c.layer_norm_eps)
    # published before the activation, which for a ReLU is the same
    inner = MLP(width=c.feed_forward_size, activation=activation_named(c.hidden_act), dropout=dropout)
    kinds = {
        name: Reversible(
            attention=Sublayer(op=attention(c, name, layers), pre_norm=norm, dropout=dropout),
            feedforward=Sublayer(op=inner, pre_norm=norm, dropout=dropout),
        )
        for name in sorted({*layers})
    }
    mixed = len(kinds) > 1
    stack = Stack(
        layers=kinds if mixed else kinds[layers[0]],
        pattern=tuple(layers) if mixed else (),
        depth=len(layers),
        norm=norm,
        dropout=dropout,
        shows="last",
    )
    rest: dict[str, Any] = {
        "width": c.hidden_size,
        "embedding": TextEmbedding(  # dropout falls on tokens and positions apart
            tokens=Tokens(vocab_size=c.vocab_size),
            position=position(c),
            dropout=dropout,
            order=("segments", "dropout", "position", "norm", "project"),
        ),
        "head": head(c),
        "state_name": "past_buckets_states",
        "init": {"*": Normal(std=c.initializer_range)},
    }
    return DecoderModel(decoder=stack, **rest) if c.is_decoder else EncoderModel(encoder=stack, **rest)


def attention(c: Config, name: str, layers: list[str]) -> ChunkAttention | LSHAttention:
    """In chunks of the text in its order ("local"), or sorted by a hash ("lsh")."""
    multiple, writes = math.lcm(*(chunk_length(c, each) for each in layers)), c.architecture == WRITES
    own: dict[str, Any] = {
        "num_heads": c.num_attention_heads,
        "head_width": c.attention_head_size,
        "causal": c.is_decoder,
        "chunk": chunk_length(c, name),
        "before": getattr(c, f"{name}_num_chunks_before"),
        "after": getattr(c, f"{name}_num_chunks_after"),
        "dropout": getattr(c, f"{name}_attention_probs_dropout_prob"),
    }
    if name == "local":
        ring = not c.is_decoder or own["before"] > 1 or own["after"] > 0  # else it changes nothing
        return ChunkAttention(**own, ring=ring, multiple=multiple if ring else None, loose=ring and writes)
    return LSHAttention(
        **own,
        rounds=c.num_hashes,
        buckets=(c.num_buckets,) if isinstance(c.num_buckets, int) else c.num_buckets and tuple(c.num_buckets),
        longest=None if c.num_buckets else c.max_position_embeddings,
        multiple=multiple,
        loose=writes,
        rotations="fresh" if c.hash_seed is None else c.hash_seed,
    )


def position(c: Config) -> AxialLearned | Learned:
    dropout, length = c.hidden_dropout_prob, c.max_position_embeddings
    if not c.axial_pos_embds:
        return Learned(length=length, dropout=dropout)
    shape, widths = c.axial_pos_shape, c.axial_pos_embds_dim
    short = length if length < math.prod(shape) else None
    axial = AxialLearned(shape=shape, widths=widths, std=c.axial_norm_std, dropout=dropout, length=short)
    if sum(axial.widths) != c.hidden_size:
        raise ValueError(f"axial_pos_embds_dim {axial.widths} do not add up to hidden_size {c.hidden_size}")
    return axial


def head(c: Config) -> Head | None:
    match c.architecture:
        case "ReformerModelWithLMHead" | "ReformerForMaskedLM":  # its bias is in files, and nothing reads it
            return LMHead(vocab_size=c.vocab_size, shift=c.architecture == WRITES, unused_bias=True)
        case "ReformerForSequenceClassification":
            rate = c.hidden_dropout_prob if c.classifier_dropout is None else c.classifier_dropout
            pool = Pool(
                take="first", dense=True, width=c.hidden_size, activation="tanh", input_dropout=rate, dropout=rate
            )
            return ClassifyHead(num_labels=c.num_labels, pool=pool, problem=c.problem_type)
        case "ReformerForQuestionAnswering":
            return SpanHead()
    return None


# -- config -----------------------------------------------------------------------------------------------------------

WRITES = "ReformerModelWithLMHead"


def chunk_length(c: Config, name: str) -> int:
    length = getattr(c, f"{name}_attn_chunk_length")
    if type(length) is not int or length < 1:
        raise ValueError(f"{name}_attn_chunk_length is {length}; a chunk holds at least one token")
    return length


def layer_names(c: Config) -> list[str]:
    """The kind of each layer, once the fields that say so do not contradict each other."""
    layers, writes = [*c.attn_layers] if isinstance(c.attn_layers, (list, tuple)) else [], c.architecture == WRITES
    if not layers or any(name not in ("lsh", "local") for name in layers):
        raise ValueError(f"attn_layers is a list of 'lsh' and 'local', one for each layer; got {quote(c.attn_layers)}")
    depth = len(layers) if c.num_hidden_layers is None else c.num_hidden_layers
    if depth > len(layers) and len({*layers}) > 1:
        raise ValueError(f"num_hidden_layers is {depth}, and attn_layers names {len(layers)}")
    layers = (layers * depth)[:depth]
    if writes and not c.is_decoder:
        raise ValueError(f"is_decoder is false, and {WRITES} writes: set it, or load ReformerForMaskedLM")
    if c.is_decoder and c.architecture == "ReformerForMaskedLM":
        raise ValueError(f"is_decoder is true, and ReformerForMaskedLM sees both sides: load {WRITES}")
    for name in dict.fromkeys(layers):
        if writes and getattr(c, f"{name}_num_chunks_after"):
            raise ValueError(f"{name}_num_chunks_after is above 0: a model that writes looks at no chunk behind")
    if c.architecture == "ReformerForQuestionAnswering" and c.num_labels != 2:
        raise ValueError(f"num_labels is {c.num_labels}; an answer has two ends, a start and an end")
    return layers


def attn_layers(spec: Model) -> list[str]:
    stack: Stack = value_at(spec, stack_of(spec))
    names = {ChunkAttention: "local", LSHAttention: "lsh"}
    return [names[type(stack.layer(i).steps["attention"].op)] for i in range(stack.depth)]


def max_position_embeddings(spec: Model) -> int:
    chosen = [length for _, length in find(spec, f"{LSH}.longest") if length is not None]
    position = value_at(spec, "embedding.position")
    return chosen[0] if chosen else position.length or math.prod(position.shape)


OP, INNER, AXIAL = "*.layers.attention.op", "*.layers.feedforward.op", "embedding.position[AxialLearned]"
LOCAL, LSH = f"{OP}[ChunkAttention]", f"{OP}[LSHAttention]"
FIELDS: dict[str, ConfigField] = {
    "vocab_size": Field(320, "embedding.tokens.vocab_size"),
    "hidden_size": Field(256, "width"),
    "attn_layers": Field(("local", "lsh", "local", "lsh", "local", "lsh"), attn_layers),
    "num_hidden_layers": entry("encoder.depth", "decoder.depth", default=None),  # that of attn_layers unless said
    "num_attention_heads": entry(f"{OP}.num_heads", default=12),
    "attention_head_size": entry(f"{OP}.head_width", default=64),
    "feed_forward_size": entry(f"{INNER}.width", default=512),
    "hidden_act": activation(f"{INNER}.activation", default="relu"),
    "hidden_dropout_prob": Field(0.05, "embedding.dropout"),
    "layer_norm_eps": entry("encoder.norm.eps", "decoder.norm.eps", default=1e-12),
    "initializer_range": entry("init.*.std", default=0.02),
    "is_decoder": Field(False, lambda spec: isinstance(spec, DecoderModel)),
    "local_attn_chunk_length": entry(f"{LOCAL}.chunk", default=64),
    "local_num_chunks_before": entry(f"{LOCAL}.before", default=1),
    "local_num_chunks_after": entry(f"{LOCAL}.after", default=0),
    "local_attention_probs_dropout_prob": entry(f"{LOCAL}.dropout", default=0.05),
    "lsh_attn_chunk_length": entry(f"{LSH}.chunk", default=64),
    "lsh_num_chunks_before": entry(f"{LSH}.before", default=1),
    "lsh_num_chunks_after": entry(f"{LSH}.after", default=0),
    "lsh_attention_probs_dropout_prob": entry(f"{LSH}.dropout", default=0.0),
    "num_hashes": entry(f"{LSH}.rounds", default=1),
    "num_buckets": entry(
        f"{LSH}.buckets", default=None, write=lambda of: of[0] if of is not None and len(of) == 1 else of
    ),
    "hash_seed": entry(f"{LSH}.rotations", default=None, write=lambda seed: None if seed == "fresh" else seed),
    "axial_pos_embds": Field(True, lambda spec: isinstance(spec.embedding.position, AxialLearned)),
    "axial_pos_shape": entry(f"{AXIAL}.shape", default=(64, 64)),
    "axial_pos_embds_dim": entry(f"{AXIAL}.widths", default=(64, 192)),
    "axial_norm_std": entry(f"{AXIAL}.std", default=1.0),
    "max_position_embeddings": Field(4096, max_position_embeddings),
    "classifier_dropout": Field(None),  # hidden_dropout_prob stands in where it is None
    "problem_type": Field(None, "head.problem"),
    "tie_word_embeddings": Ignored(False, "the published class ties nothing: two streams are scored, one is read"),
    "chunk_size_lm_head": Ignored(0, "the same numbers computed in pieces"),
    "pad_token_id": Ignored(0, "what rows are made longer with, which nothing sees"),
    "bos_token_id": Ignored(None, "used by tokenizers"),
    "eos_token_id": Ignored(2, "used by tokenizers"),
}

# -- weights ----------------------------------------------------------------------------------------------------------


def positions(theirs: str, spec: Model) -> list[Rule]:
    found: list[Rule] = []
    position = value_at(spec, "embedding.position")
    for i in range(len(position.shape) if isinstance(position, AxialLearned) else 0):
        sides = [position.shape[i] if side == i else 1 for side in range(len(position.shape))]
        found.append(Reshape(f"{theirs}.{i}", f"embedding.position.side{i}", (*sides, position.widths[i])))
    return found


ATTENTION, FORWARD = "~encoder.layers.{i}.attention", "~encoder.layers.{i}.feed_forward"
WEIGHTS = {
    "~embeddings.word_embeddings": "embedding.tokens",
    "~embeddings.position_embeddings.weights": positions,
    "~embeddings.position_embeddings.embedding": "embedding.position",
    f"{ATTENTION}.self_attention.{{query_key,query,key,value}}": "*.layers.{i}.attention.op.{qk,q,k,v}",
    f"{ATTENTION}.output.dense": "*.layers.{i}.attention.op.o",
    f"{ATTENTION}.layer_norm": "*.layers.{i}.attention.pre_norm",
    f"{FORWARD}.layer_norm": "*.layers.{i}.feedforward.pre_norm",
    f"{FORWARD}.{{dense,output}}.dense": "*.layers.{i}.feedforward.op.{up,down}",
    "~encoder.layer_norm": "*.norm",
    "lm_head.bias": parameter("head.idle.bias"),
    "classifier.dense": "head.pool.dense",
}
OUT = {LMHead: "lm_head.decoder", SpanHead: "qa_outputs", ClassifyHead: "classifier.out_proj"}


def rules(spec: Model) -> list[Rule]:
    return [*rules_of({**WEIGHTS, OUT.get(type(spec.head), ""): "head.out"}, spec)]


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

FAMILIES = (
    Family(
        name="reformer",
        about="encoders and decoders for long texts, in chunks sorted by a hash",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=tuple(
            f"Reformer{name}"
            for name in ("ForMaskedLM", "Model", "ModelWithLMHead", "ForSequenceClassification", "ForQuestionAnswering")
        ),
        base=("ReformerModel",),
        prefix="reformer.",
        dropped=tuple(
            f"{ATTENTION}.self_attention.{name}"
            for name in (
                "mask_value_float16",
                "mask_value_float32",
                "self_mask_value_float16",
                "self_mask_value_float32",
            )
        ),
        sizes={
            "reformer-crime-and-punishment": Size({**WRITER, **CRIME}),
            "reformer-enwik8": Size({**WRITER, **ENWIK8}, 149e6),
        },
    ),
)
