"""GPT-2 [Radford et al. 2019] and GPT-3 [Brown et al. 2020]: pre-norm decoder, learned positions, tied embeddings."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import ConfigField, Field, Ignored, activation_at, tied
from anyformer.families.shared import summary
from anyformer.families.shared.heads import causal, decoder_head, seen
from anyformer.families.shared.summary import double_head
from anyformer.models import DecoderModel, Model
from anyformer.parts.activation import activation_named
from anyformer.parts.attention.attention import Attention
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.head.classify import ClassifyHead
from anyformer.parts.head.double import DoubleHead
from anyformer.parts.head.language import LMHead
from anyformer.parts.head.span import SpanHead
from anyformer.parts.head.tag import TagHead
from anyformer.parts.init import Initializer, Normal
from anyformer.parts.norm import LayerNorm, RMSNorm
from anyformer.parts.position.absolute import Learned
from anyformer.specs.addresses import at
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from anyformer.weights.rules import Rename, Rule, Split, Transpose

ATTENTION, MLP_OP = "decoder.layers.attention.op", "decoder.layers.feedforward.op"
DOUBLE = "GPT2DoubleHeadsModel"

FIELDS: dict[str, ConfigField] = {
    "vocab_size": Field(50257, "embedding.tokens.vocab_size"),
    "n_positions": Field(1024, "embedding.position.length"),
    "n_embd": Field(768, "width"),
    "n_layer": Field(12, "decoder.depth"),
    "n_head": Field(12, f"{ATTENTION}.num_heads"),
    "n_inner": Field(None, lambda spec: None if (width := at(spec, f"{MLP_OP}.width")) == 4 * spec.width else width),
    "activation_function": Field("gelu_new", activation_at(f"{MLP_OP}.activation")),
    "resid_pdrop": Field(0.1, "decoder.layers.attention.dropout"),
    "embd_pdrop": Field(0.1, "embedding.dropout"),
    "attn_pdrop": Field(0.1, f"{ATTENTION}.dropout"),
    "layer_norm_epsilon": Field(1e-5, "decoder.norm.eps"),
    "initializer_range": Field(0.02, lambda spec: spec.init["*"].std),
    "scale_attn_weights": Field(True, lambda spec: spec.decoder.layers.steps["attention"].op.scale is None),
    "scale_attn_by_inverse_layer_idx": Field(False, f"{ATTENTION}.scale_by_layer"),
    "add_cross_attention": Field(False, lambda spec: "cross" in spec.decoder.layers.steps),
    "tie_word_embeddings": Field(True, tied(LMHead, DoubleHead)),
    "pad_token_id": Field(None, "head.pool.padding_token"),
    "problem_type": Field(None, "head.problem"),
    "is_causal": causal(f"{ATTENTION}.mask"),
    "bos_token_id": Ignored(50256, "used by generation"),
    "eos_token_id": Ignored(50256, "used by generation"),
    "reorder_and_upcast_attn": Ignored(False, "softmax is computed in fp32 anyway"),
    "classifier_dropout": Field(None),
    "hidden_dropout": Field(None),
    "n_ctx": Ignored(1024, "an old name of n_positions that nothing reads"),
    **summary.FIELDS,
}


def stack(c: Any, kind: type[LayerNorm | RMSNorm] = LayerNorm) -> Stack:
    """The layers of a config, whose width it calls n_embd, with this kind of norm."""
    if c.n_embd % c.n_head:
        raise ValueError(f"n_embd {c.n_embd} is not a multiple of n_head {c.n_head}")
    norm = kind(eps=c.layer_norm_epsilon)

    def attention(**more: Any) -> Sublayer:
        op = Attention(
            num_heads=c.n_head, head_width=c.n_embd // c.n_head, scale=None if c.scale_attn_weights else 1.0,
            scale_by_layer=c.scale_attn_by_inverse_layer_idx, dropout=c.attn_pdrop, **more,
        )  # fmt: skip
        return Sublayer(pre_norm=norm, op=op, dropout=c.resid_pdrop)

    mlp = MLP(width=c.n_inner or 4 * c.n_embd, activation=activation_named(c.activation_function))
    steps = {"attention": attention(mask=seen(c))}
    if c.add_cross_attention:
        steps["cross"] = attention(memory=True)
    steps["feedforward"] = Sublayer(pre_norm=norm, op=mlp, dropout=c.resid_pdrop)
    return Stack(layers=Block(**steps), depth=c.n_layer, norm=norm)


def init(c: Any) -> dict[str, Initializer]:
    residual = Normal(std=c.initializer_range, residual=True)
    # experts in place of a feed-forward begin as it does
    ends = {"*.o.weight": residual, "*.down.weight": residual, "*.experts.down": residual}
    return {**ends, "*": Normal(std=c.initializer_range)}


def describe(c: Any) -> Model:
    out = {"GPT2LMHeadModel": "head.out.weight", DOUBLE: "head.lm.out.weight"}.get(c.architecture)
    return DecoderModel(
        width=c.n_embd,
        embedding=TextEmbedding(
            tokens=Tokens(vocab_size=c.vocab_size), position=Learned(length=c.n_positions), token_segments=True,
            dropout=c.embd_pdrop,
        ),
        decoder=stack(c),
        head=double_head(c) if c.architecture == DOUBLE else decoder_head(c),
        ties=((out, "embedding.tokens.weight"),) if out and c.tie_word_embeddings else (),
        init=init(c),
    )


def rules(spec: Model) -> list[Rule]:
    layer, block = "~h.{i}", "decoder.layers.{i}"

    def projection(theirs: str, targets: list[str]) -> list[Rule]:
        """GPT-2 stores matrices transposed, and q, k, v in one."""
        if len(targets) == 1:
            (ours,) = targets
            return [Transpose(f"{theirs}.weight", f"{ours}.weight"), Rename(f"{theirs}.bias", f"{ours}.bias")]
        return [
            Split(f"{theirs}.weight", [f"{t}.weight" for t in targets], transpose=True),
            Split(f"{theirs}.bias", [f"{t}.bias" for t in targets]),
        ]

    heads: dict[Any, str] = {ClassifyHead: "score", TagHead: "classifier", SpanHead: "qa_outputs"}
    out = heads.get(type(spec.head), "lm_head")
    return [
        Rename("~wte.weight", "embedding.tokens.weight"),
        Rename("~wpe.weight", "embedding.position.weight"),
        Rename(f"{layer}.ln_1.{{p}}", f"{block}.attention.pre_norm.{{p}}"),
        *projection(f"{layer}.attn.c_attn", [f"{block}.attention.op.{n}" for n in "qkv"]),
        *projection(f"{layer}.attn.c_proj", [f"{block}.attention.op.o"]),
        Rename(f"{layer}.ln_cross_attn.{{p}}", f"{block}.cross.pre_norm.{{p}}"),
        *projection(f"{layer}.crossattention.q_attn", [f"{block}.cross.op.q"]),
        *projection(f"{layer}.crossattention.c_attn", [f"{block}.cross.op.{n}" for n in "kv"]),
        *projection(f"{layer}.crossattention.c_proj", [f"{block}.cross.op.o"]),
        Rename(f"{layer}.ln_2.{{p}}", f"{block}.feedforward.pre_norm.{{p}}"),
        *projection(f"{layer}.mlp.c_fc", [f"{block}.feedforward.op.up"]),
        *projection(f"{layer}.mlp.c_proj", [f"{block}.feedforward.op.down"]),
        Rename("~ln_f.{p}", "decoder.norm.{p}"),
        Rename(f"{out}.{{p}}", "head.lm.out.{p}" if isinstance(spec.head, DoubleHead) else "head.out.{p}"),
        Rename("multiple_choice_head.summary.{p}", "head.summary.dense.{p}"),
    ]


def size(n_layer: int, n_embd: int, n_head: int, published: float, n_positions: int = 1024, note: str = "") -> Size:
    config = {"n_layer": n_layer, "n_embd": n_embd, "n_head": n_head, "n_positions": n_positions}
    return Size(config, published, note)


XL_NOTE = "the paper's table says 24 heads of 128 on width 2048; 16 heads give the published 1.3B"
B13_NOTE = "the paper's table says width 5140; 40 heads of 128 make 5120, which gives the published 13B"

FAMILIES = (
    Family(
        name="gpt2",
        about="decoder language models",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=(
            "GPT2LMHeadModel", "GPT2Model", "GPT2ForSequenceClassification", "GPT2ForTokenClassification",
            "GPT2ForQuestionAnswering", DOUBLE,
        ),
        base=("GPT2Model",),
        prefix="transformer.",
        aliases={
            "hidden_size": "n_embd", "max_position_embeddings": "n_positions", "num_attention_heads": "n_head",
            "num_hidden_layers": "n_layer",
        },
        dropped=("~h.{i}.attn.bias", "~h.{i}.attn.masked_bias", "~h.{i}.crossattention.bias"),
        sizes={
            "gpt2": size(12, 768, 12, 124e6),
            "gpt2-medium": size(24, 1024, 16, 355e6),
            "gpt2-large": size(36, 1280, 20, 774e6),
            "gpt2-xl": size(48, 1600, 25, 1.56e9),
            "gpt3-small": size(12, 768, 12, 125e6, 2048),
            "gpt3-medium": size(24, 1024, 16, 350e6, 2048),
            "gpt3-large": size(24, 1536, 16, 760e6, 2048),
            "gpt3-xl": size(24, 2048, 16, 1.3e9, 2048, XL_NOTE),
            "gpt3-2.7b": size(32, 2560, 32, 2.7e9, 2048),
            "gpt3-6.7b": size(32, 4096, 32, 6.7e9, 2048),
            "gpt3-13b": size(40, 5120, 40, 13e9, 2048, B13_NOTE),
            "gpt3-175b": size(96, 12288, 96, 175e9, 2048),
        },
    ),
)  # fmt: skip
