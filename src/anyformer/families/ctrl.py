"""CTRL [Keskar et al. 2019]: pre-norm decoder with sinusoidal positions; the first token is a control code."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import ConfigField, Field, Ignored, tied
from anyformer.families.shared.heads import causal, decoder_head, seen
from anyformer.models import DecoderModel, Model
from anyformer.parts.attention.attention import Attention
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.head.classify import ClassifyHead
from anyformer.parts.head.language import LMHead
from anyformer.parts.init import Normal
from anyformer.parts.norm import LayerNorm
from anyformer.parts.position.absolute import Sinusoidal
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from anyformer.weights.rules import Rename, Rule

OLD = "a field of the published file that no class reads"

FIELDS: dict[str, ConfigField] = {
    "vocab_size": Field(246534, "embedding.tokens.vocab_size"),
    "n_positions": Field(256, "embedding.position.length"),
    "n_embd": Field(1280, "width"),
    "dff": Field(8192, "decoder.layers.feedforward.op.width"),
    "n_layer": Field(48, "decoder.depth"),
    "n_head": Field(16, "decoder.layers.attention.op.num_heads"),
    "resid_pdrop": Field(0.1, "decoder.layers.attention.dropout"),
    "embd_pdrop": Field(0.1, "embedding.dropout"),
    "layer_norm_epsilon": Field(1e-6, "decoder.norm.eps"),
    "initializer_range": Field(0.02, lambda spec: spec.init["*"].std),
    "tie_word_embeddings": Field(True, tied(LMHead)),
    "pad_token_id": Field(None, "head.pool.padding_token"),
    "problem_type": Field(None, "head.problem"),
    "is_causal": causal("decoder.layers.attention.op.mask"),
    "attn_pdrop": Ignored(0.1, "the published class drops no attention weights"),
    **{f"summary_{name}": Ignored(None, OLD) for name in ("type", "use_proj", "activation", "proj_to_labels")},
    **{name: Ignored(None, OLD) for name in ("summary_first_dropout", "n_ctx", "from_tf", "output_past")},
}


def describe(c: Any) -> Model:
    if c.n_embd % c.n_head:
        raise ValueError(f"n_embd {c.n_embd} is not a multiple of n_head {c.n_head}")

    def step(op: Any) -> Sublayer:  # layer_norm_epsilon is that of the last norm alone
        return Sublayer(pre_norm=LayerNorm(eps=1e-6), op=op, dropout=c.resid_pdrop)

    attention, mlp = Attention(num_heads=c.n_head, mask=seen(c)), MLP(width=c.dff, activation="relu")
    head = decoder_head(c)
    writes = isinstance(head, LMHead)
    return DecoderModel(
        width=c.n_embd,
        embedding=TextEmbedding(
            tokens=Tokens(vocab_size=c.vocab_size), scale=c.n_embd**0.5, position=Sinusoidal(length=c.n_positions),
            token_segments=True, dropout=c.embd_pdrop,
        ),
        decoder=Stack(
            layers=Block(attention=step(attention), feedforward=step(mlp)), depth=c.n_layer,
            norm=LayerNorm(eps=c.layer_norm_epsilon),
        ),
        state_offered="never" if isinstance(head, ClassifyHead) else "always",
        head=head.replace(bias=True) if writes and head is not None else head,
        ties=(("head.out.weight", "embedding.tokens.weight"),) if writes and c.tie_word_embeddings else (),
        init={"*": Normal(std=c.initializer_range)},
    )  # fmt: skip


def rules(spec: Model) -> list[Rule]:
    layer, ours = "~h.{i}", "decoder.layers.{i}"
    modules = {
        "~w": "embedding.tokens",
        f"{layer}.layernorm1": f"{ours}.attention.pre_norm",
        **{f"{layer}.multi_head_attention.W{n}": f"{ours}.attention.op.{n}" for n in "qkv"},
        f"{layer}.multi_head_attention.dense": f"{ours}.attention.op.o",
        f"{layer}.layernorm2": f"{ours}.feedforward.pre_norm",
        f"{layer}.ffn.0": f"{ours}.feedforward.op.up",
        f"{layer}.ffn.2": f"{ours}.feedforward.op.down",
        "~layernorm": "decoder.norm",
        "classifier" if spec.architecture == "CTRLForSequenceClassification" else "lm_head": "head.out",
    }
    return [Rename(f"{theirs}.{{p}}", f"{name}.{{p}}") for theirs, name in modules.items()]


FAMILIES = (
    Family(
        name="ctrl",
        about="text steered by control codes",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=("CTRLLMHeadModel", "CTRLModel", "CTRLForSequenceClassification"),
        base=("CTRLModel",),
        prefix="transformer.",
        aliases={
            "hidden_size": "n_embd", "max_position_embeddings": "n_positions", "num_attention_heads": "n_head",
            "num_hidden_layers": "n_layer",
        },
        dropped=("~pos_encoding",),
        sizes={"ctrl": Size({}, 1.63e9)},
    ),
)  # fmt: skip
