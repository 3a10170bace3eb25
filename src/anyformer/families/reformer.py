"""Reformer [Kitaev et al. 2020]: a model for long texts; attention within chunks, either in text order or sorted by a
hash, and reversible layers that are recomputed in the backward pass."""

from __future__ import annotations

import math
from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Ignored
from anyformer.families.base.template import Class, Config, Entry, activation, entry, expand, parameter
from anyformer.families.shared import axial
from anyformer.families.shared.bert_like import check_span, head_dropout, stack_name
from anyformer.parts import (
    AxialLearned, ChunkAttention, ClassifyHead, DecoderModel, EncoderModel, FirstToken, InChunks, LMHead, LSHAttention,
    LayerNorm, MLP, Model, Normal, Pool, Reversible, SpanHead, Stack, Sublayer, TextEmbedding, Tokens,
)  # fmt: skip
from anyformer.specs.addresses import edit, find, value_at
from anyformer.specs.messages import quote

NORM = LayerNorm(eps=1e-12)
CHUNKS: dict[str, Any] = {"num_heads": 12, "head_width": 64, "chunk": 64, "before": 1, "after": 0, "multiple": 64}


def layer(attention: InChunks) -> Reversible:
    inner = MLP(width=512, activation="relu", dropout=0.05)  # published: before the ReLU, which is equivalent
    return Reversible(
        attention=Sublayer(op=attention, pre_norm=NORM, dropout=0.05),
        feedforward=Sublayer(op=inner, pre_norm=NORM, dropout=0.05),
    )


TEMPLATE = EncoderModel(
    width=256,
    embedding=TextEmbedding(  # separate dropout for tokens and positions
        tokens=Tokens(vocab_size=320),
        position=AxialLearned(shape=(64, 64), widths=(64, 192), std=1.0, dropout=0.05),
        dropout=0.05,
        order=("segments", "dropout", "position", "norm", "project"),
    ),
    encoder=Stack(
        layers={
            "local": layer(ChunkAttention(**CHUNKS, ring=True, dropout=0.05)),
            "lsh": layer(LSHAttention(**CHUNKS, rounds=1, buckets=None, longest=4096, rotations="fresh")),
        },
        pattern=("local", "lsh") * 3,
        depth=6,
        norm=NORM,
        dropout=0.05,
        shows="stream",
    ),
    state_name="past_buckets_states",
    init={"*": Normal(std=0.02)},
)
LM = LMHead(vocab_size=320, shift=False, unused_bias=True)  # files contain a bias that nothing reads
POOL = Pool(take=FirstToken(), dense=True, width=256, activation="tanh", input_dropout=0.05, dropout=0.05)

OP, INNER, LM_CLASS = "*.layers.attention.op", "*.layers.feedforward.op", "ReformerModelWithLMHead"
KINDS = {"local": f"{OP}[ChunkAttention]", "lsh": f"{OP}[LSHAttention]"}


def layer_names(c: Config) -> list[str]:
    depth = len(c.attn_layers) if c.num_hidden_layers is None else c.num_hidden_layers
    return ([*c.attn_layers] * depth)[:depth]


def check(c: Config) -> None:
    layers, is_lm = [*c.attn_layers] if isinstance(c.attn_layers, (list, tuple)) else [], c.architecture == LM_CLASS
    if not layers or any(name not in ("lsh", "local") for name in layers):
        raise ValueError(f"attn_layers must be a list of 'lsh' and 'local', one per layer; got {quote(c.attn_layers)}")
    if (depth := c.num_hidden_layers) is not None and depth > len(layers) and len({*layers}) > 1:
        raise ValueError(f"num_hidden_layers is {depth}, but attn_layers has {len(layers)} entries")
    if is_lm and not c.is_decoder:
        raise ValueError(f"{LM_CLASS} needs is_decoder=True; set it, or load ReformerForMaskedLM")
    if c.is_decoder and c.architecture == "ReformerForMaskedLM":
        raise ValueError(f"ReformerForMaskedLM needs is_decoder=False; set it, or load {LM_CLASS}")
    for name in dict.fromkeys(layers):
        if is_lm and name in layer_names(c) and c[f"{name}_num_chunks_after"]:
            raise ValueError(f"{name}_num_chunks_after must be 0 in {LM_CLASS}, which cannot see later chunks")
        length = c[f"{name}_attn_chunk_length"]
        if type(length) is not int or length < 1:
            raise ValueError(f"{name}_attn_chunk_length must be an integer of at least 1, got {length}")


def build_layers(spec: EncoderModel, attn_layers: Any, c: Config) -> Model:
    """Build the layers of a config. Rows are padded to a common multiple of the chunk lengths."""
    names, stack, kinds = layer_names(c), value_at(spec, "encoder"), {}
    rows = math.lcm(*(c[f"{name}_attn_chunk_length"] for name in {*c.attn_layers}))  # even of unused kinds
    for name in sorted({*names}):
        changes = {"causal": c.is_decoder, "multiple": rows, "loose": c.architecture == LM_CLASS}
        if name == "local" and c.is_decoder and c.local_num_chunks_before < 2 and not c.local_num_chunks_after:
            changes |= {"ring": False, "multiple": None, "loose": False}  # here padding the rows has no effect
        kinds[name] = edit(stack.layers[name], {f"attention.op.{field}": value for field, value in changes.items()})
    layers, pattern = (kinds, tuple(names)) if len(kinds) > 1 else (kinds[names[0]], ())
    stack = stack.replace(layers=layers, pattern=pattern, depth=len(names))
    rest = {name: value for name, value in spec.items() if name != "encoder"}
    return DecoderModel(decoder=stack, **rest) if c.is_decoder else EncoderModel(encoder=stack, **rest)


def attn_layers(spec: Model) -> list[str]:
    stack: Stack = value_at(spec, stack_name(spec))
    names = {ChunkAttention: "local", LSHAttention: "lsh"}
    return [names[type(stack.layer(i).steps["attention"].op)] for i in range(stack.depth)]


def max_position_embeddings(spec: Model) -> int:
    lengths = [length for _, length in find(spec, f"{KINDS['lsh']}.longest") if length is not None]
    position = value_at(spec, "embedding.position")
    return lengths[0] if lengths else position.length or math.prod(position.shape)


def kind_field(kind: str, name: str, read: Any = lambda value: value, **more: Any) -> Entry:
    """An entry of one kind of layer; not read if the model has no layer of this kind."""
    address, default = f"{KINDS[kind]}.{name}", value_at(TEMPLATE, f"encoder.layers.{kind}.attention.op.{name}")
    return entry(address, read=lambda value, c: read(value) if kind in layer_names(c) else default, **more)


CONFIG: dict[str, Any] = {
    "vocab_size": "**.vocab_size",
    "hidden_size": ("width", "head.pool.width"),
    "attn_layers": Entry(("local", "lsh") * 3, attn_layers, build=build_layers),
    "num_hidden_layers": Entry(None, lambda spec: getattr(spec, stack_name(spec)).depth),  # default: len(attn_layers)
    "num_attention_heads": f"{OP}.num_heads",
    "attention_head_size": f"{OP}.head_width",
    "feed_forward_size": f"{INNER}.width",
    "hidden_act": activation(f"{INNER}.activation"),
    "hidden_dropout_prob": ("embedding.dropout", "encoder.dropout", "*.layers.*.dropout", f"{INNER}.dropout"),
    "layer_norm_eps": "**.eps",
    "initializer_range": "init.*.std",
    "is_decoder": Entry(False, lambda spec: isinstance(spec, DecoderModel)),
    **{f"{kind}_attn_chunk_length": kind_field(kind, "chunk") for kind in KINDS},
    **{f"{kind}_num_chunks_{side}": kind_field(kind, side) for kind in KINDS for side in ("before", "after")},
    **{f"{kind}_attention_probs_dropout_prob": kind_field(kind, "dropout") for kind in KINDS},
    "num_hashes": kind_field("lsh", "rounds"),
    "num_buckets": kind_field(
        "lsh",
        "buckets",
        lambda n: (n,) if isinstance(n, int) else n and tuple(n),
        write=lambda n: n[0] if n and len(n) == 1 else n,
    ),
    "hash_seed": kind_field(
        "lsh", "rotations", lambda n: "fresh" if n is None else n, write=lambda n: None if n == "fresh" else n
    ),
    **axial.ENTRIES,
    "max_position_embeddings": Entry(4096, max_position_embeddings),
    "classifier_dropout": head_dropout("head.pool.input_dropout", "head.pool.dropout"),
    "tie_word_embeddings": Ignored(False, "the published class ties nothing: its head reads both streams"),
    "chunk_size_lm_head": Ignored(0, "computes the same result in chunks"),
    "pad_token_id": Ignored(0, "pads rows, but no token sees it"),
    "bos_token_id": Ignored(None, "used by tokenizers"),
    "eos_token_id": Ignored(2, "used by tokenizers"),
}


ATTENTION, FORWARD = "~encoder.layers.{i}.attention", "~encoder.layers.{i}.feed_forward"
WEIGHTS = {
    "~embeddings.word_embeddings": "embedding.tokens",
    "~embeddings.position_embeddings.weights": axial.rules,
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

LM_CONFIG = {"architectures": [LM_CLASS], "is_decoder": True}
CRIME = {
    "num_attention_heads": 2, "axial_pos_shape": [512, 1024], "max_position_embeddings": 2**19, "num_buckets": [64, 128]
}  # fmt: skip
ENWIK8 = {
    "vocab_size": 258, "hidden_size": 1024, "num_attention_heads": 8, "attention_head_size": 128,
    "attn_layers": ["local", "local", "lsh", "local"] * 3, "feed_forward_size": 4096, "hidden_dropout_prob": 0.2,
    "axial_pos_shape": [128, 512], "axial_pos_embds_dim": [256, 768], "max_position_embeddings": 65536,
    "num_buckets": 512, "num_hashes": 4, "local_attn_chunk_length": 128, "lsh_attn_chunk_length": 256,
    "local_attention_probs_dropout_prob": 0.2, "lsh_attention_probs_dropout_prob": 0.1,
}  # fmt: skip

REFORMER = Family(
    name="reformer",
    about="encoders and decoders for long texts, with attention in chunks sorted by a hash",
    tokenizer="ReformerTokenizer",
    template=TEMPLATE,
    classes={
        "ReformerForMaskedLM": Class(LM, "lm_head.decoder"),
        "ReformerModel": Class(prefix=""),
        "ReformerModelWithLMHead": Class(LM.replace(shift=True), "lm_head.decoder"),
        "ReformerForSequenceClassification": Class(ClassifyHead(num_labels=2, pool=POOL), "classifier.out_proj"),
        "ReformerForQuestionAnswering": Class(SpanHead(), "qa_outputs"),
    },
    config=CONFIG,
    computed={
        "embedding.position": axial.position,
        f"{KINDS['lsh']}.longest": lambda c: None if c.num_buckets else c.max_position_embeddings,
    },
    checks=(check, check_span),
    weights=WEIGHTS,
    prefix="reformer.",
    dropped=tuple(expand(f"{ATTENTION}.self_attention.{{mask,self_mask}}_value_{{float16,float32}}")),
    sizes={
        "reformer-crime-and-punishment": Size({**LM_CONFIG, **CRIME}),
        "reformer-enwik8": Size({**LM_CONFIG, **ENWIK8}, 149e6),
    },
)
