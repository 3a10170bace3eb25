"""GPT [Radford et al. 2018]: post-norm decoder with learned positions, and a second head for fine-tuning."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import ConfigField, Field, Ignored, Removed, tied
from anyformer.families.shared import summary
from anyformer.families.shared.heads import decoder_head
from anyformer.families.shared.summary import double_head
from anyformer.models import DecoderModel, Model
from anyformer.parts.activation import Activation
from anyformer.parts.attention.attention import Attention
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.head.double import DoubleHead
from anyformer.parts.head.language import LMHead
from anyformer.parts.init import Normal
from anyformer.parts.norm import LayerNorm
from anyformer.parts.position.absolute import Learned
from anyformer.runtime.mask import Causal
from anyformer.specs.messages import quote
from anyformer.specs.part import nearest
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from anyformer.weights.rules import Rename, Rule, Split, Transpose

ATTENTION, MLP_OP = "decoder.layers.attention.op", "decoder.layers.feedforward.op"
# published under names of its own: what is called gelu is the tanh form
ACTIVATIONS: dict[str, Activation] = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}


def afn(spec: Any) -> str:
    ours = spec.decoder.layers.steps["feedforward"].op.activation
    return next(name for name, activation in ACTIVATIONS.items() if activation == ours)


FIELDS: dict[str, ConfigField] = {
    "vocab_size": Field(40478, "embedding.tokens.vocab_size"),
    "n_positions": Field(512, "embedding.position.length"),
    "n_embd": Field(768, "width"),
    "n_layer": Field(12, "decoder.depth"),
    "n_head": Field(12, f"{ATTENTION}.num_heads"),
    "afn": Field("gelu", afn),
    "resid_pdrop": Field(0.1, "decoder.layers.attention.dropout"),
    "embd_pdrop": Field(0.1, "embedding.dropout"),
    "attn_pdrop": Field(0.1, f"{ATTENTION}.dropout"),
    "layer_norm_epsilon": Field(1e-5, "decoder.layers.attention.out_norm.eps"),
    "initializer_range": Field(0.02, lambda spec: spec.init["*"].std),
    **summary.FIELDS,
    "tie_word_embeddings": Field(True, tied(LMHead, DoubleHead)),
    "pad_token_id": Field(None, "head.pool.padding_token"),
    "problem_type": Field(None, "head.problem"),
    "n_ctx": Ignored(512, "an old name of n_positions that nothing reads"),
    "n_special": Removed(0, "rows for special tokens, which the published class no longer adds"),
    "predict_special_tokens": Ignored(True, "about special tokens, of which there are none"),
}


def describe(c: Any) -> Model:
    if c.n_embd % c.n_head:
        raise ValueError(f"n_embd {c.n_embd} is not a multiple of n_head {c.n_head}")
    if c.afn not in ACTIVATIONS:
        raise ValueError(f"afn {quote(c.afn)} is not supported; {nearest(c.afn, ACTIVATIONS)}")

    def step(op: Any) -> Sublayer:
        return Sublayer(op=op, out_norm=LayerNorm(eps=c.layer_norm_epsilon), dropout=c.resid_pdrop)

    attention = Attention(num_heads=c.n_head, mask=Causal(), dropout=c.attn_pdrop)
    mlp = MLP(width=4 * c.n_embd, activation=ACTIVATIONS[c.afn])
    ties = {  # with two heads the output matrix is the one that files hold
        "OpenAIGPTLMHeadModel": ("head.out.weight", "embedding.tokens.weight"),
        "OpenAIGPTDoubleHeadsModel": ("embedding.tokens.weight", "head.lm.out.weight"),
    }
    return DecoderModel(
        width=c.n_embd,
        embedding=TextEmbedding(
            tokens=Tokens(vocab_size=c.vocab_size), position=Learned(length=c.n_positions), token_segments=True,
            dropout=c.embd_pdrop,
        ),
        decoder=Stack(layers=Block(attention=step(attention), feedforward=step(mlp)), depth=c.n_layer),
        state_offered="never",  # the published class has none at all
        head=double_head(c) if c.architecture == "OpenAIGPTDoubleHeadsModel" else decoder_head(c),
        ties=(ties[c.architecture],) if c.architecture in ties and c.tie_word_embeddings else (),
        # published: the range reaches tables and heads alone
        init={"*.op.*.weight": Normal(std=0.02), "*": Normal(std=c.initializer_range)},
    )  # fmt: skip


def rules(spec: Model) -> list[Rule]:
    layer, ours = "~h.{i}", "decoder.layers.{i}"
    attention, mlp = f"{ours}.attention", f"{ours}.feedforward"
    out = "score" if spec.architecture == "OpenAIGPTForSequenceClassification" else "lm_head"
    matrices = {  # stored transposed
        f"{layer}.attn.c_proj": f"{attention}.op.o",
        f"{layer}.mlp.c_fc": f"{mlp}.op.up",
        f"{layer}.mlp.c_proj": f"{mlp}.op.down",
    }
    modules = {
        "~tokens_embed": "embedding.tokens",
        "~positions_embed": "embedding.position",
        f"{layer}.ln_1": f"{attention}.out_norm",
        f"{layer}.ln_2": f"{mlp}.out_norm",
        out: "head.lm.out" if isinstance(spec.head, DoubleHead) else "head.out",
        "multiple_choice_head.summary": "head.summary.dense",
    }
    return [
        Split(f"{layer}.attn.c_attn.weight", [f"{attention}.op.{n}.weight" for n in "qkv"], transpose=True),
        Split(f"{layer}.attn.c_attn.bias", [f"{attention}.op.{n}.bias" for n in "qkv"]),
        *[Transpose(f"{theirs}.weight", f"{name}.weight") for theirs, name in matrices.items()],
        *[Rename(f"{theirs}.{{p}}", f"{name}.{{p}}") for theirs, name in {**modules, **matrices}.items()],
    ]


FAMILIES = (
    Family(
        name="openai-gpt",
        about="the first GPT",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=(
            "OpenAIGPTLMHeadModel", "OpenAIGPTModel", "OpenAIGPTDoubleHeadsModel", "OpenAIGPTForSequenceClassification",
        ),
        base=("OpenAIGPTModel",),
        prefix="transformer.",
        aliases={
            "hidden_size": "n_embd", "max_position_embeddings": "n_positions", "num_attention_heads": "n_head",
            "num_hidden_layers": "n_layer",
        },
        dropped=("~h.{i}.attn.bias", "~position_ids"),
        sizes={"gpt1": Size({}, 117e6)},
    ),
)  # fmt: skip
