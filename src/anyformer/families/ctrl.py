"""CTRL [Keskar et al. 2019]: pre-norm decoder with sinusoidal positions; the first token is a control code."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Ignored
from anyformer.families.base.template import Class, divides, tied
from anyformer.families.gpt2 import GPT2
from anyformer.families.shared.heads import causal_mask
from anyformer.parts import (
    Attention, Block, Causal, ClassifyHead, DecoderModel, LMHead, LastToken, LayerNorm, MLP, Normal, Pool, Sinusoidal,
    Stack, Sublayer, TextEmbedding, TokenSegments, Tokens,
)  # fmt: skip

LAYER, NORM = "decoder.layers.{i}", LayerNorm(eps=1e-6)

TEMPLATE = DecoderModel(
    width=1280,
    embedding=TextEmbedding(
        tokens=Tokens(vocab_size=246534),
        scale=1280**0.5,
        position=Sinusoidal(length=256),
        segments=TokenSegments(),
        dropout=0.1,
    ),
    decoder=Stack(
        depth=48,
        layers=Block(
            attention=Sublayer(pre_norm=NORM, op=Attention(num_heads=16, mask=Causal()), dropout=0.1),
            feedforward=Sublayer(pre_norm=NORM, op=MLP(width=8192, activation="relu"), dropout=0.1),
        ),
        norm=NORM,
    ),
    state_offered="always",
    init={"*": Normal(std=0.02)},
)

OLD = "a field of the published file that no class reads"

CONFIG: dict[str, Any] = {
    "vocab_size": ("embedding.tokens.vocab_size", "head.vocab_size"),
    "n_positions": "embedding.position.length",
    "n_embd": "width",
    "dff": "decoder.layers.feedforward.op.width",
    "n_layer": "decoder.depth",
    "n_head": "decoder.layers.attention.op.num_heads",
    "resid_pdrop": "decoder.layers.*.dropout",
    "embd_pdrop": "embedding.dropout",
    "layer_norm_epsilon": "decoder.norm.eps",  # the norms of the layers have a fixed eps
    "initializer_range": "init.*.std",
    "tie_word_embeddings": tied(True, LMHead="head.out.weight"),
    "pad_token_id": "head.pool.take.padding_token",
    "is_causal": causal_mask("decoder.layers.attention.op.mask"),
    "attn_pdrop": Ignored(0.1, "the published class drops no attention weights"),
    **{f"summary_{name}": Ignored(None, OLD) for name in ("type", "use_proj", "activation", "proj_to_labels")},
    **{name: Ignored(None, OLD) for name in ("summary_first_dropout", "n_ctx", "from_tf", "output_past")},
}

WEIGHTS = {
    "~w": "embedding.tokens",
    "~h.{i}.layernorm1": f"{LAYER}.attention.pre_norm",
    "~h.{i}.multi_head_attention.{Wq,Wk,Wv,dense}": f"{LAYER}.attention.op.{{q,k,v,o}}",
    "~h.{i}.layernorm2": f"{LAYER}.feedforward.pre_norm",
    "~h.{i}.ffn.{0,2}": f"{LAYER}.feedforward.op.{{up,down}}",
    "~layernorm": "decoder.norm",
}

CTRL = Family(
    name="ctrl",
    about="decoder language model steered by control codes",
    template=TEMPLATE,
    classes={
        "CTRLLMHeadModel": Class(LMHead(vocab_size=246534, bias=True), "lm_head"),
        "CTRLModel": Class(prefix=""),
        "CTRLForSequenceClassification": Class(
            ClassifyHead(num_labels=2, pool=Pool(take=LastToken()), bias=False),
            "classifier",
            changes={"state_offered": "never"},
        ),
    },
    config=CONFIG,
    computed={"embedding.scale": lambda c: c.n_embd**0.5},
    weights=WEIGHTS,
    prefix="transformer.",
    checks=(divides("n_head", "n_embd"),),
    aliases=GPT2.aliases,
    dropped=("~pos_encoding",),
    sizes={"ctrl": Size({}, 1.63e9)},
)
