"""XLNet [Yang et al. 2019]: Transformer-XL's layers, which read a text in any order. What is asked for is a second
stream that sees the tokens before it in that order and not itself."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import ConfigField, Field, Ignored, Removed, activation_at, tied
from anyformer.families.shared.encoder import TOKENS, renames
from anyformer.families.shared.heads import encoder_head
from anyformer.families.shared.summary import pool_fields, summary_pool
from anyformer.models import EncoderModel, Model
from anyformer.parts.activation import activation_named
from anyformer.parts.attention.attention import Attention
from anyformer.parts.embedding.permuted_text import OrderedText
from anyformer.parts.embedding.segments import SegmentedSinusoids
from anyformer.parts.embedding.text import Tokens
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.head.base import Head
from anyformer.parts.head.language import LMHead
from anyformer.parts.head.likely_spans import LikelySpans
from anyformer.parts.head.span import SpanHead
from anyformer.parts.head.tag import TagHead
from anyformer.parts.init import Normal
from anyformer.parts.norm import LayerNorm
from anyformer.runtime.mask import CAUSAL, FULL, Full, Mask, SameReach
from anyformer.specs.addresses import at
from anyformer.specs.messages import quote
from anyformer.specs.part import nearest
from anyformer.stacks.block import Block
from anyformer.stacks.sublayer import Sublayer
from anyformer.stacks.two_streams import TwoStreams
from anyformer.weights.rules import Flip, Heads, Rename, Reshape, Rule

ATTENTION, WAYS = "encoder.layers.attention.op", ("uni", "bi")
SUMMARISED = ("XLNetForSequenceClassification", "XLNetForMultipleChoice")


def mask_of(spec: Any) -> Mask:
    return at(spec, f"{ATTENTION}.mask")


FIELDS: dict[str, ConfigField] = {
    "vocab_size": Field(32000, "embedding.tokens.vocab_size"),
    "d_model": Field(1024, "width"),
    "n_layer": Field(24, "encoder.depth"),
    "n_head": Field(16, f"{ATTENTION}.num_heads"),
    "d_inner": Field(4096, "encoder.layers.feedforward.op.width"),
    "d_head": Field(None, lambda spec: spec.width // at(spec, f"{ATTENTION}.num_heads")),
    "ff_activation": Field("gelu", activation_at("encoder.layers.feedforward.op.activation")),
    "attn_type": Field("bi", lambda spec: WAYS[isinstance(mask_of(spec), Full)]),
    "same_length": Field(False, lambda spec: mask_of(spec) == CAUSAL & SameReach()),
    "initializer_range": Field(0.02, lambda spec: spec.init["*"].std),
    "layer_norm_eps": Field(1e-12, "encoder.layers.attention.out_norm.eps"),
    "dropout": Field(0.1, "embedding.dropout"),
    "mem_len": Field(512, "encoder.kept"),
    "reuse_len": Field(None, "encoder.reused"),
    "use_mems_eval": Field(True, "encoder.keeps"),
    "use_mems_train": Field(False, "encoder.keeps_training"),
    "bi_data": Field(False, f"{ATTENTION}.position.mirrored"),
    "clamp_len": Field(-1, lambda spec: at(spec, f"{ATTENTION}.position.most") or -1),
    **pool_fields("last", "tanh", 0.1, SUMMARISED),
    "start_n_top": Field(5, "head.starts"),
    "end_n_top": Field(5, "head.ends"),
    "tie_word_embeddings": Field(True, tied(LMHead)),
    "problem_type": Field(None, "head.problem"),
    "pad_token_id": Ignored(5, "a token id, used by tokenizers; no vector of it is special"),
    "bos_token_id": Ignored(1, "a token id, used by tokenizers and generation"),
    "eos_token_id": Ignored(2, "a token id, used by tokenizers and generation"),
    "untie_r": Removed(True, "one set of position vectors for all layers, which published classes never read"),
}


def describe(c: Any) -> Model:
    if c.d_model % c.n_head or c.d_head not in (None, 0, c.d_model // c.n_head):
        raise ValueError(f"d_model {c.d_model} is not n_head {c.n_head} times d_head {c.d_head}")
    if c.attn_type not in WAYS:
        raise ValueError(f"attn_type {quote(c.attn_type)} is not valid; {nearest(str(c.attn_type), WAYS)}")
    back = CAUSAL & SameReach() if c.same_length else CAUSAL
    attention = Attention(
        num_heads=c.n_head,
        bias="",
        dropout=c.dropout,
        mask=FULL if c.attn_type == "bi" else back,
        position=SegmentedSinusoids(
            num_heads=c.n_head,
            width=c.d_model,
            dropout=c.dropout,
            joint=None,
            first_apart=False,
            most=c.clamp_len if c.clamp_len > 0 else None,
            mirrored=c.bi_data,
        ),
    )
    inner = MLP(width=c.d_inner, activation=activation_named(c.ff_activation), dropout=c.dropout)
    norm, dropout = LayerNorm(eps=c.layer_norm_eps), c.dropout
    layer = Block(
        attention=Sublayer(op=attention, out_norm=norm, dropout=dropout),
        feedforward=Sublayer(op=inner, out_norm=norm, dropout=dropout),
    )
    out = head(c)
    tie = c.tie_word_embeddings and isinstance(out, LMHead)
    return EncoderModel(
        width=c.d_model,
        embedding=OrderedText(tokens=Tokens(vocab_size=c.vocab_size), dropout=dropout),
        encoder=TwoStreams(
            layers=layer,
            depth=c.n_layer,
            dropout=dropout,
            shows="stream",
            kept=c.mem_len or None,
            reused=c.reuse_len or None,
            keeps=c.use_mems_eval,
            keeps_training=c.use_mems_train,
        ),
        head=out,
        ties=(("head.out.weight", TOKENS),) if tie else (),
        init={"*": Normal(std=c.initializer_range)},
    )


def head(c: Any) -> Head | None:
    lm = LMHead(vocab_size=c.vocab_size, bias=True, shift=False)
    if c.architecture == "XLNetLMHeadModel":
        return lm
    if c.architecture == "XLNetForQuestionAnswering":
        return LikelySpans(starts=c.start_n_top, ends=c.end_n_top, norm=LayerNorm(eps=c.layer_norm_eps))
    if c.architecture == "XLNetForQuestionAnsweringSimple":
        if c.num_labels != 2:
            raise ValueError(f"num_labels is {c.num_labels}; an answer has two ends, a start and an end")
        return SpanHead()
    pool = summary_pool(c, c.d_model, SUMMARISED)
    return encoder_head(c, lm, pool, pool, dropout=0.0)


def rules(spec: Any) -> list[Rule]:
    theirs, ours = "~layer.{i}.rel_attn", "encoder.layers.{i}.attention.op"
    num_heads = at(spec, f"{ATTENTION}.num_heads")
    shape = num_heads, spec.width // num_heads
    inner, mine = "~layer.{i}.ff", "encoder.layers.{i}.feedforward"
    out = {LMHead: "lm_loss", SpanHead: "qa_outputs", TagHead: "classifier"}
    return [
        Reshape("~mask_emb", "embedding.mask_embedding", (1, 1, -1)),
        *[Heads(f"{theirs}.{n}", f"{ours}.{n}.weight", shape) for n in "qkv"],
        Heads(f"{theirs}.r", f"{ours}.position.project.weight", shape),
        Reshape(f"{theirs}.o", f"{ours}.o.weight", (-1, *shape)),
        *[Rename(f"{theirs}.r_{a}_bias", f"{ours}.position.{b}") for a, b in zip("wrs", "uvs", strict=True)],
        Flip(f"{theirs}.seg_embed", f"{ours}.position.kinds"),
        *renames(
            {
                "~word_embedding": "embedding.tokens",
                f"{theirs}.layer_norm": "encoder.layers.{i}.attention.out_norm",
                f"{inner}.layer_1": f"{mine}.op.up",
                f"{inner}.layer_2": f"{mine}.op.down",
                f"{inner}.layer_norm": f"{mine}.out_norm",
                "sequence_summary.summary": "head.pool.dense",
                "start_logits.dense": "head.begin",
                "end_logits.dense_0": "head.end_dense",
                "end_logits.LayerNorm": "head.end_norm",
                "end_logits.dense_1": "head.end",
                "answer_class.dense_0": "head.none_dense",
                "answer_class.dense_1": "head.none",
                out.get(type(spec.head), "logits_proj"): "head.out",
            }
        ),
    ]


def size(width: int, depth: int, published: float) -> Size:
    shape = {"d_model": width, "n_layer": depth, "n_head": width // 64, "d_inner": 4 * width}
    return Size({**shape, "mem_len": None}, published)


FAMILIES = (
    Family(
        name="xlnet",
        about="encoders for text that learned to write it in any order",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=(
            "XLNetLMHeadModel",
            "XLNetModel",
            "XLNetForSequenceClassification",
            "XLNetForTokenClassification",
            "XLNetForMultipleChoice",
            "XLNetForQuestionAnsweringSimple",
            "XLNetForQuestionAnswering",
        ),
        base=("XLNetModel",),
        prefix="transformer.",
        aliases={
            "n_token": "vocab_size",
            "hidden_size": "d_model",
            "num_attention_heads": "n_head",
            "num_hidden_layers": "n_layer",
        },
        sizes={"xlnet-base-cased": size(768, 12, 117e6), "xlnet-large-cased": size(1024, 24, 360e6)},
    ),
)
