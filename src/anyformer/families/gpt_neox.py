"""GPT-NeoX [Black et al. 2022] and Pythia [Biderman et al. 2023]: attention and feed-forward read the same input side
by side, and only a part of each head is turned by rotary positions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import ConfigField, Field, Ignored, Removed, tied
from anyformer.families.shared.heads import causal, decoder_model, seen, tag_dropout
from anyformer.families.shared.rope import ROPE, read_rope, write_rope
from anyformer.models import Model
from anyformer.parts.activation import activation_named, published_name
from anyformer.parts.attention.attention import Attention
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.head.language import LMHead
from anyformer.parts.norm import LayerNorm
from anyformer.parts.position.rotary import Rope
from anyformer.stacks.block import Block, Parallel
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from anyformer.weights.rules import Interleave, Rename, Rule

OLD = "a name of old configs that the published class does not honour"
BESIDE = "written beside rotary_emb_base and rotary_pct, which are what the published class reads"


def is_parallel(spec: Any) -> bool:
    return "both" in spec.decoder.layers.steps


def step(spec: Any, name: str) -> Any:
    steps = spec.decoder.layers.steps
    return (steps["both"].steps if is_parallel(spec) else steps)[name]


def attention(spec: Any) -> Attention:
    return step(spec, "attention").op


def mlp(spec: Any) -> MLP:
    return step(spec, "feedforward").op


def rope_parameters(spec: Any) -> dict[str, Any]:
    rope: Any = attention(spec).position
    return {**write_rope(rope), "partial_rotary_factor": rope.fraction}


FIELDS: dict[str, ConfigField] = {
    "vocab_size": Field(50432, "embedding.tokens.vocab_size"),
    "hidden_size": Field(6144, "width"),
    "num_hidden_layers": Field(44, "decoder.depth"),
    "num_attention_heads": Field(64, lambda spec: attention(spec).num_heads),
    "intermediate_size": Field(24576, lambda spec: mlp(spec).width),
    "hidden_act": Field("gelu", lambda spec: published_name(mlp(spec).activation)),
    "attention_dropout": Field(0.0, lambda spec: attention(spec).dropout),
    "hidden_dropout": Field(0.0, "embedding.dropout"),
    "classifier_dropout": Field(0.1, tag_dropout),
    "max_position_embeddings": Field(2048, "length"),
    "initializer_range": Field(0.02, lambda spec: spec.init["*"].std),
    "layer_norm_eps": Field(1e-5, "decoder.norm.eps"),
    "use_parallel_residual": Field(True, is_parallel),
    "rope_parameters": Field(None, rope_parameters, within=ROPE),
    "rope_scaling": Field(None, within=ROPE),
    "original_max_position_embeddings": Field(None),
    "rotary_emb_base": Field(None),
    "rotary_pct": Field(None),
    **{name: Ignored(None, BESIDE) for name in ("rope_theta", "partial_rotary_factor")},
    "head_dim": Field(None),  # published: of the rotary positions alone
    "attention_bias": Field(True, lambda spec: attention(spec).bias == "qkvo"),
    "tie_word_embeddings": Field(False, tied(LMHead)),
    "pad_token_id": Field(None, "head.pool.padding_token"),
    "problem_type": Field(None, "head.problem"),
    "is_causal": causal(lambda spec: attention(spec).mask),
    "bos_token_id": Ignored(0, "used by generation"),
    "eos_token_id": Ignored(2, "used by generation"),
    "is_decoder": Ignored(False, "it reads from left to right whatever this says"),
    "attention_probs_dropout_prob": Removed(0.0, OLD),
    "hidden_dropout_prob": Removed(0.0, OLD),
}


def rotary(c: Any) -> Rope:
    given = {**(c.rope_scaling or c.rope_parameters or {})}
    given.setdefault("rope_theta", 10000.0 if c.rotary_emb_base is None else c.rotary_emb_base)
    fraction = given.setdefault("partial_rotary_factor", 0.25 if c.rotary_pct is None else c.rotary_pct)
    return read_rope(SimpleNamespace(**{**vars(c), "rope_scaling": None, "rope_parameters": given}), fraction)


def describe(c: Any) -> Model:
    if c.hidden_size % c.num_attention_heads:
        raise ValueError(f"hidden_size {c.hidden_size} is not a multiple of {c.num_attention_heads} attention heads")
    if c.head_dim not in (None, c.hidden_size // c.num_attention_heads):
        raise ValueError(f"head_dim={c.head_dim} is not hidden_size / num_attention_heads")
    norm = LayerNorm(eps=c.layer_norm_eps)
    ops = {
        "attention": Attention(
            num_heads=c.num_attention_heads, bias="qkvo" if c.attention_bias else "", mask=seen(c),
            position=rotary(c), dropout=c.attention_dropout,
        ),
        "feedforward": MLP(width=c.intermediate_size, activation=activation_named(c.hidden_act)),
    }  # fmt: skip
    steps = {name: Sublayer(pre_norm=norm, op=op, dropout=c.hidden_dropout) for name, op in ops.items()}
    layers = Block(both=Parallel(**steps)) if c.use_parallel_residual else Block(**steps)
    embedding = TextEmbedding(tokens=Tokens(vocab_size=c.vocab_size), dropout=c.hidden_dropout)
    stack = Stack(layers=layers, depth=c.num_hidden_layers, norm=norm)
    return decoder_model(c, stack, embedding, length=c.max_position_embeddings)


def rules(spec: Model) -> list[Rule]:
    layer, ours = "~layers.{i}", "decoder.layers.{i}.both" if is_parallel(spec) else "decoder.layers.{i}"
    op, heads = f"{ours}.attention.op", attention(spec).num_heads
    outs = {"GPTNeoXForSequenceClassification": "score", "GPTNeoXForTokenClassification": "classifier",
            "GPTNeoXForQuestionAnswering": "qa_outputs"}  # fmt: skip
    modules = {
        "~embed_in": "embedding.tokens",
        f"{layer}.input_layernorm": f"{ours}.attention.pre_norm",
        f"{layer}.attention.dense": f"{op}.o",
        f"{layer}.post_attention_layernorm": f"{ours}.feedforward.pre_norm",
        f"{layer}.mlp.dense_h_to_4h": f"{ours}.feedforward.op.up",
        f"{layer}.mlp.dense_4h_to_h": f"{ours}.feedforward.op.down",
        "~final_layer_norm": "decoder.norm",
        outs.get(spec.architecture, "embed_out"): "head.out",
    }
    joint = f"{layer}.attention.query_key_value"
    return [
        *[Interleave(f"{joint}.{p}", [f"{op}.{n}.{p}" for n in "qkv"], heads) for p in ("weight", "bias")],
        *[Rename(f"{theirs}.{{p}}", f"{name}.{{p}}") for theirs, name in modules.items()],
    ]


def pythia(depth: int, width: int, heads: int, published: float, vocab_size: int = 50304) -> Size:
    config = {"num_hidden_layers": depth, "hidden_size": width, "num_attention_heads": heads, "vocab_size": vocab_size}
    return Size({**config, "intermediate_size": 4 * width}, published)


FAMILIES = (
    Family(
        name="gpt_neox",
        about="decoder language models",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=(
            "GPTNeoXForCausalLM", "GPTNeoXModel", "GPTNeoXForSequenceClassification", "GPTNeoXForTokenClassification",
            "GPTNeoXForQuestionAnswering",
        ),
        base=("GPTNeoXModel",),
        prefix="gpt_neox.",
        dropped=tuple(f"~layers.{{i}}.attention.{n}" for n in ("bias", "masked_bias", "rotary_emb.inv_freq")),
        legacy={"lm_head.weight": "embed_out.weight"},
        sizes={
            "gpt-neox-20b": Size({"hidden_act": "gelu_fast"}, 20e9),
            "pythia-70m": pythia(6, 512, 8, 70.4e6),
            "pythia-160m": pythia(12, 768, 12, 162.3e6),
            "pythia-410m": pythia(24, 1024, 16, 405.3e6),
            "pythia-1.4b": pythia(24, 2048, 16, 1.41e9),
            "pythia-12b": pythia(36, 5120, 40, 11.8e9, 50688),
        },
    ),
)  # fmt: skip
