"""GPT [Radford et al. 2018]: post-norm decoder with learned positions, and a second head for fine-tuning."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Absent, Ignored, Removed
from anyformer.families.base.template import Class, Config, choice, conv1d, divides, entry
from anyformer.families.gpt2 import GPT2
from anyformer.families.shared.summary import DOUBLE_HEAD_FIELDS, double_template
from anyformer.parts import (
    Attention, Block, Causal, ClassifyHead, DecoderModel, LMHead, LastToken, LayerNorm, Learned, MLP, Model, Normal,
    Pool, Stack, Sublayer, TextEmbedding, TokenSegments, Tokens,
)  # fmt: skip

INNER, LAYER, NORM = "decoder.layers.feedforward.op", "decoder.layers.{i}", LayerNorm(eps=1e-5)

TEMPLATE = DecoderModel(
    width=768,
    embedding=TextEmbedding(
        tokens=Tokens(vocab_size=40478), position=Learned(length=512), segments=TokenSegments(), dropout=0.1
    ),
    decoder=Stack(
        depth=12,
        layers=Block(
            attention=Sublayer(op=Attention(num_heads=12, mask=Causal(), dropout=0.1), out_norm=NORM, dropout=0.1),
            feedforward=Sublayer(op=MLP(width=3072, activation="gelu_tanh"), out_norm=NORM, dropout=0.1),
        ),
    ),
    state_offered="never",  # the published class has no cache
    # published: initializer_range applies only to tables and heads
    init={"*.op.*.weight": Normal(std=0.02), "*": Normal(std=0.02)},
)


TIED = {  # (shared, owner); with two heads, files contain the output matrix
    "OpenAIGPTLMHeadModel": ("head.out.weight", "embedding.tokens.weight"),
    "OpenAIGPTDoubleHeadsModel": ("embedding.tokens.weight", "head.lm.out.weight"),
}


def is_tied(spec: Model) -> bool:
    if spec.architecture not in TIED:
        raise Absent
    return bool(spec.ties)


def tie(spec: Model, value: bool, c: Config) -> Model:
    return spec.replace(ties=(TIED[c.architecture],)) if value and c.architecture in TIED else spec


CONFIG: dict[str, Any] = {
    "vocab_size": ("embedding.tokens.vocab_size", "head.vocab_size", "head.lm.vocab_size"),
    "n_positions": "embedding.position.length",
    "n_embd": "width",
    "n_layer": "decoder.depth",
    "n_head": "decoder.layers.attention.op.num_heads",
    # this class has its own names: its gelu is the tanh form
    "afn": choice(f"{INNER}.activation", {"gelu": "gelu_tanh", "relu": "relu", "swish": "silu", "silu": "silu"}),
    "resid_pdrop": "decoder.layers.*.dropout",
    "embd_pdrop": "embedding.dropout",
    "attn_pdrop": "decoder.layers.attention.op.dropout",
    "layer_norm_epsilon": "decoder.layers.*.out_norm.eps",
    "initializer_range": entry(
        "init", read=lambda std, c: {**TEMPLATE.init, "*": Normal(std=std)}, write=lambda init: init["*"].std
    ),
    **DOUBLE_HEAD_FIELDS,
    "tie_word_embeddings": entry(default=True, path=is_tied, build=tie),
    "pad_token_id": "head.pool.take.padding_token",
    "n_ctx": Ignored(512, "an old name of n_positions that nothing reads"),
    "n_special": Removed(0, "rows for special tokens, which the published class no longer adds"),
    "predict_special_tokens": Ignored(True, "for special tokens, which no model has"),
}

WEIGHTS = {
    "~tokens_embed": "embedding.tokens",
    "~positions_embed": "embedding.position",
    "~h.{i}.attn.c_attn": conv1d(f"{LAYER}.attention.op.{{q,k,v}}"),
    "~h.{i}.attn.c_proj": conv1d(f"{LAYER}.attention.op.o"),
    "~h.{i}.ln_1": f"{LAYER}.attention.out_norm",
    "~h.{i}.mlp.c_fc": conv1d(f"{LAYER}.feedforward.op.up"),
    "~h.{i}.mlp.c_proj": conv1d(f"{LAYER}.feedforward.op.down"),
    "~h.{i}.ln_2": f"{LAYER}.feedforward.out_norm",
}

OPENAI_GPT = Family(
    name="openai-gpt",
    about="the first GPT (GPT-1)",
    tokenizer="OpenAIGPTTokenizer",
    template=TEMPLATE,
    classes={
        "OpenAIGPTLMHeadModel": Class(LMHead(vocab_size=40478), "lm_head"),
        "OpenAIGPTModel": Class(prefix=""),
        "OpenAIGPTDoubleHeadsModel": Class(
            double_template(40478),
            weights={"lm_head": "head.lm.out", "multiple_choice_head.summary": "head.summary.dense"},
        ),
        "OpenAIGPTForSequenceClassification": Class(
            ClassifyHead(num_labels=2, pool=Pool(take=LastToken()), bias=False), "score"
        ),
    },
    config=CONFIG,
    computed={f"{INNER}.width": lambda c: 4 * c.n_embd},
    weights=WEIGHTS,
    prefix="transformer.",
    checks=(divides("n_head", "n_embd"),),
    aliases=GPT2.aliases,
    dropped=("~h.{i}.attn.bias", "~position_ids"),
    sizes={"gpt1": Size({}, 117e6)},
)
