"""Llama [Touvron et al. 2023; Llama 3, 2024]: pre-norm decoder, RMSNorm, SwiGLU, rotary positions, grouped queries."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, size_table
from anyformer.families.base.fields import Ignored
from anyformer.families.base.template import activation, choice, derived, equal_heads, tied
from anyformer.families.shared.heads import TAGGER_FIELDS, causal_mask, decoder_classes
from anyformer.families.shared.rope import rope
from anyformer.parts import (
    Attention, Block, Causal, DecoderModel, GatedMLP, Normal, RMSNorm, Rope, Stack, Sublayer, TextEmbedding, Tokens,
)  # fmt: skip

ATTENTION, MLP = "decoder.layers.attention.op", "decoder.layers.feedforward.op"

TEMPLATE = DecoderModel(
    width=4096,
    length=2048,
    embedding=TextEmbedding(tokens=Tokens(vocab_size=32000)),
    decoder=Stack(
        depth=32,
        layers=Block(
            attention=Sublayer(
                pre_norm=RMSNorm(eps=1e-6),
                op=Attention(num_heads=32, num_kv_heads=32, head_width=128, bias="", mask=Causal(), position=Rope()),
            ),
            feedforward=Sublayer(pre_norm=RMSNorm(eps=1e-6), op=GatedMLP(width=11008, activation="silu", bias=False)),
        ),
        norm=RMSNorm(eps=1e-6),
    ),
    init={"*": Normal(std=0.02)},
)

CONFIG: dict[str, Any] = {
    "vocab_size": ("embedding.tokens.vocab_size", "head.vocab_size"),
    "hidden_size": "width",
    "intermediate_size": f"{MLP}.width",
    "num_hidden_layers": "decoder.depth",
    "num_attention_heads": f"{ATTENTION}.num_heads",
    "num_key_value_heads": derived(f"{ATTENTION}.num_kv_heads", of=lambda c: c.num_attention_heads),
    "head_dim": derived(f"{ATTENTION}.head_width", of=lambda c: c.hidden_size // c.num_attention_heads),
    "hidden_act": activation(f"{MLP}.activation"),
    "initializer_range": "init.*.std",
    "rms_norm_eps": ("decoder.norm.eps", "decoder.layers.*.pre_norm.eps"),
    **rope(f"{ATTENTION}.position"),
    "max_position_embeddings": "length",
    "attention_bias": choice(f"{ATTENTION}.bias", {False: "", True: "qkvo"}),
    "attention_dropout": f"{ATTENTION}.dropout",
    "mlp_bias": f"{MLP}.bias",
    "tie_word_embeddings": tied(False, LMHead="head.out.weight"),
    "pad_token_id": ("embedding.tokens.padding_index", "head.pool.take.padding_token"),
    **TAGGER_FIELDS,
    "is_causal": causal_mask(f"{ATTENTION}.mask"),
    "bos_token_id": Ignored(1, "used by generation"),
    "eos_token_id": Ignored(2, "used by generation"),
    "pretraining_tp": Ignored(1, "how sums are split over devices"),
}

WEIGHTS = {
    "~embed_tokens": "embedding.tokens",
    "~layers.{i}.input_layernorm": "decoder.layers.{i}.attention.pre_norm",
    "~layers.{i}.self_attn.{q,k,v,o}_proj": "decoder.layers.{i}.attention.op.{q,k,v,o}",
    "~layers.{i}.post_attention_layernorm": "decoder.layers.{i}.feedforward.pre_norm",
    "~layers.{i}.mlp.{gate,up,down}_proj": "decoder.layers.{i}.feedforward.op.{gate,up,down}",
    "~norm": "decoder.norm",
}

# the fields of a shape
SHAPE = "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads"


def llama3_rope(factor: float) -> dict[str, Any]:
    return {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


LLAMA = Family(
    name="llama",
    about="decoder language models",
    tokenizer="LlamaTokenizer",
    base_tokenizer="unnamed",
    template=TEMPLATE,
    classes=decoder_classes("Llama", 32000, span_prefix="transformer."),
    config=CONFIG,
    weights=WEIGHTS,
    prefix="model.",
    checks=(equal_heads,),
    dropped=("~layers.{i}.self_attn.rotary_emb.inv_freq", "~rotary_emb.inv_freq"),
    sizes=size_table(
        f"{SHAPE} max_position_embeddings tie_word_embeddings rope_parameters",
        {
            "llama3-8b": (4096, 14336, 32, 32, 8, 8192, False, {"rope_theta": 500000.0}, 8e9),
            "llama3.2-1b": (2048, 8192, 16, 32, 8, 131072, True, llama3_rope(32.0), 1.23e9),
            "llama3.1-405b": (16384, 53248, 126, 128, 8, 131072, False, llama3_rope(8.0), 405e9),
        },
        vocab_size=128256,
        rms_norm_eps=1e-5,
    ),
)
