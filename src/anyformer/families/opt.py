"""OPT [Zhang et al. 2022]: decoders with ReLU and learned positions that skip padding; the 350M one has its norms after
the add and narrower embeddings."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Absent, ConfigField, Field, Ignored, Removed, activation_at, tied
from anyformer.families.shared.heads import causal, decoder_head, seen
from anyformer.models import DecoderModel, Model
from anyformer.parts.activation import activation_named
from anyformer.parts.attention.attention import Attention
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.head.language import LMHead
from anyformer.parts.init import Normal
from anyformer.parts.norm import LayerNorm
from anyformer.parts.position.absolute import Learned
from anyformer.parts.position.numbering import RealTokens
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from anyformer.weights.rules import Rename, Rule

ATTENTION, MLP_OP = "decoder.layers.attention.op", "decoder.layers.feedforward.op"


def is_pre_norm(spec: Any) -> bool:
    return spec.decoder.layers.steps["attention"].pre_norm is not None


def has_no_last_norm(spec: Any) -> bool:
    if not is_pre_norm(spec):
        raise Absent
    return spec.decoder.norm is None


def affine(spec: Any) -> bool:
    step = spec.decoder.layers.steps["attention"]
    return (step.pre_norm or step.out_norm).affine


FIELDS: dict[str, ConfigField] = {
    "vocab_size": Field(50272, "embedding.tokens.vocab_size"),
    "hidden_size": Field(768, "width"),
    "num_hidden_layers": Field(12, "decoder.depth"),
    "ffn_dim": Field(3072, f"{MLP_OP}.width"),
    "max_position_embeddings": Field(2048, "embedding.position.length"),
    "do_layer_norm_before": Field(True, is_pre_norm),
    "_remove_final_layer_norm": Field(False, has_no_last_norm),
    "word_embed_proj_dim": Field(None, lambda spec: spec.decoder.project or spec.width),
    "dropout": Field(0.1, "decoder.layers.attention.dropout"),
    "attention_dropout": Field(0.0, f"{ATTENTION}.dropout"),
    "num_attention_heads": Field(12, f"{ATTENTION}.num_heads"),
    "activation_function": Field("relu", activation_at(f"{MLP_OP}.activation")),
    "layerdrop": Field(0.0, "decoder.layer_drop"),
    "init_std": Field(0.02, lambda spec: spec.init["*"].std),
    "enable_bias": Field(True, f"{MLP_OP}.bias"),
    "layer_norm_elementwise_affine": Field(True, affine),
    "tie_word_embeddings": Field(True, tied(LMHead)),
    "pad_token_id": Field(1, "embedding.tokens.padding_index"),
    "problem_type": Field(None, "head.problem"),
    "is_causal": causal(f"{ATTENTION}.mask"),
    "bos_token_id": Ignored(2, "used by generation"),
    "eos_token_id": Ignored(2, "used by generation"),
    "activation_dropout": Removed(0.0, "a field of old configs that the published class does not honour"),
}


def describe(c: Any) -> Model:
    if c.hidden_size % c.num_attention_heads:
        raise ValueError(f"hidden_size {c.hidden_size} is not a multiple of {c.num_attention_heads} attention heads")
    norm = LayerNorm(affine=c.layer_norm_elementwise_affine)
    place: dict[str, Any] = {"pre_norm" if c.do_layer_norm_before else "out_norm": norm}

    def step(op: Any) -> Sublayer:
        return Sublayer(op=op, dropout=c.dropout, **place)

    attention = Attention(
        num_heads=c.num_attention_heads, bias="qkvo" if c.enable_bias else "", mask=seen(c),
        dropout=c.attention_dropout,
    )  # fmt: skip
    mlp = MLP(width=c.ffn_dim, activation=activation_named(c.activation_function), bias=c.enable_bias)
    narrow = None if c.word_embed_proj_dim in (None, c.hidden_size) else c.word_embed_proj_dim
    tie = c.architecture == "OPTForCausalLM" and c.tie_word_embeddings
    return DecoderModel(
        width=c.hidden_size,
        embedding=TextEmbedding(
            tokens=Tokens(vocab_size=c.vocab_size, width=narrow, padding_index=c.pad_token_id),
            position=Learned(length=c.max_position_embeddings, offset=2), numbering=RealTokens(),
            order=("project", "segments", "position", "norm", "dropout"), project_bias=False,
        ),
        decoder=Stack(
            layers=Block(attention=step(attention), feedforward=step(mlp)), depth=c.num_hidden_layers,
            norm=norm if c.do_layer_norm_before and not c._remove_final_layer_norm else None, project=narrow,
            layer_drop=c.layerdrop,
        ),
        head=decoder_head(c),
        ties=(("head.out.weight", "embedding.tokens.weight"),) if tie else (),
        init={"*": Normal(std=c.init_std)},
    )  # fmt: skip


def rules(spec: Model) -> list[Rule]:
    layer, ours = "~decoder.layers.{i}", "decoder.layers.{i}"
    norm = "pre_norm" if is_pre_norm(spec) else "out_norm"
    heads = {"OPTForSequenceClassification": "score", "OPTForQuestionAnswering": "qa_outputs"}
    modules = {
        "~decoder.embed_tokens": "embedding.tokens",
        "~decoder.embed_positions": "embedding.position",
        "~decoder.project_in": "embedding.project",
        f"{layer}.self_attn_layer_norm": f"{ours}.attention.{norm}",
        **{f"{layer}.self_attn.{n}_proj": f"{ours}.attention.op.{n}" for n in "qkv"},
        f"{layer}.self_attn.out_proj": f"{ours}.attention.op.o",
        f"{layer}.final_layer_norm": f"{ours}.feedforward.{norm}",
        f"{layer}.fc1": f"{ours}.feedforward.op.up",
        f"{layer}.fc2": f"{ours}.feedforward.op.down",
        "~decoder.final_layer_norm": "decoder.norm",
        "~decoder.project_out": "decoder.project",
        heads.get(spec.architecture, "lm_head"): "head.out",
    }
    return [Rename(f"{theirs}.{{p}}", f"{name}.{{p}}") for theirs, name in modules.items()]


def size(depth: int, heads: int, width: int, published: float | None, note: str = "", **more: Any) -> Size:
    config = {"num_hidden_layers": depth, "num_attention_heads": heads, "hidden_size": width, "ffn_dim": 4 * width}
    return Size({**config, **more}, published, note)


FAMILIES = (
    Family(
        name="opt",
        about="decoder language models",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=("OPTForCausalLM", "OPTModel", "OPTForSequenceClassification", "OPTForQuestionAnswering"),
        base=("OPTModel",),
        prefix="model.",
        dropped=("~decoder.version",),
        sizes={
            "opt-125m": size(12, 12, 768, 125e6),
            "opt-350m": size(
                24, 16, 1024, None, "called 350M; the released weights are 331M", word_embed_proj_dim=512,
                do_layer_norm_before=False,
            ),
            "opt-1.3b": size(24, 32, 2048, 1.3e9),
            "opt-2.7b": size(32, 32, 2560, 2.7e9),
            "opt-6.7b": size(32, 32, 4096, 6.7e9),
            "opt-13b": size(40, 40, 5120, 13e9),
            "opt-30b": size(48, 56, 7168, 30e9),
            "opt-66b": size(64, 72, 9216, 66e9),
            "opt-175b": size(96, 96, 12288, 175e9),
        },
    ),
)  # fmt: skip
