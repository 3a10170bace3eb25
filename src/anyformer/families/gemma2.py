"""Gemma 2 [Gemma Team 2024]: a Llama with norms around branches, a window in every other layer, and capped scores."""

from __future__ import annotations

from anyformer.families.base.family import size_table
from anyformer.families.base.fields import Ignored, Removed
from anyformer.families.base.template import Class, activation, entry, tied
from anyformer.families.llama import ATTENTION, LLAMA, MLP, SHAPE
from anyformer.families.shared.caps import caps
from anyformer.families.shared.heads import decoder_classes
from anyformer.families.shared.layer_types import decoder_entries
from anyformer.parts import (
    Attention, Block, CappedHead, Causal, GatedMLP, Mask, Rope, ScaledTokens, SoftCap, Stack, Sublayer, Window,
    ZeroCenteredRMSNorm,
)  # fmt: skip

NORM = ZeroCenteredRMSNorm(eps=1e-6)


def layer(mask: Mask) -> Block:
    heads = Attention(
        num_heads=8, num_kv_heads=4, head_width=256, bias="", mask=mask, position=Rope(), scale=256**-0.5,
        scores=(SoftCap(bound=50.0),),
    )  # fmt: skip
    return Block(
        attention=Sublayer(pre_norm=NORM, op=heads, post_norm=NORM),
        feedforward=Sublayer(
            pre_norm=NORM, op=GatedMLP(width=9216, activation="gelu_tanh", bias=False), post_norm=NORM
        ),
    )


LAYERS = {"sliding": layer(Causal() & Window(size=4096)), "full": layer(Causal())}
CLASSES = {**decoder_classes("Gemma2", 256000), "Gemma2ForCausalLM": Class(CappedHead(vocab_size=256000), "lm_head")}
del CLASSES["Gemma2ForQuestionAnswering"]  # not published

GEMMA2 = LLAMA.but(
    "gemma2",
    tokenizer="",
    changes={
        "width": 2304,
        "length": 8192,
        "embedding.tokens": ScaledTokens(vocab_size=256000, padding_index=0),
        "decoder": Stack(depth=26, layers=LAYERS, pattern=("sliding", "full"), norm=NORM),
    },
    classes=CLASSES,
    config={
        "num_key_value_heads": f"{ATTENTION}.num_kv_heads",
        "head_dim": f"{ATTENTION}.head_width",
        "hidden_activation": activation(f"{MLP}.activation", default="gelu_pytorch_tanh"),
        "rms_norm_eps": ("decoder.norm.eps", "decoder.layers.*.pre_norm.eps", "decoder.layers.*.post_norm.eps"),
        "query_pre_attn_scalar": entry(
            f"{ATTENTION}.scale", read=lambda value, c: value**-0.5, write=lambda scale: round(scale**-2)
        ),
        **caps(f"{ATTENTION}.scores", attention=50, final=30),
        **decoder_entries(is_windowed=lambda c, layer: layer % 2 == 0),
        "tie_word_embeddings": tied(True, LMHead="head.out.weight", CappedHead="head.out.weight"),
        "use_bidirectional_attention": Ignored(None, "only flash kernels read it; masks follow is_causal"),
        "hidden_act": Removed("gelu_pytorch_tanh", "an old name of hidden_activation"),
        "bos_token_id": Ignored(2, "used by generation"),
        "eos_token_id": Ignored(1, "used by generation"),
        **dict.fromkeys(("mlp_bias", "pretraining_tp")),
    },
    weights={
        "~layers.{i}.post_attention_layernorm": "decoder.layers.{i}.attention.post_norm",
        "~layers.{i}.{pre,post}_feedforward_layernorm": "decoder.layers.{i}.feedforward.{pre,post}_norm",
    },
    dropped=(),
    sizes=size_table(
        f"{SHAPE} head_dim query_pre_attn_scalar",
        {
            "gemma2-2b": (2304, 9216, 26, 8, 4, 256, 256, 2.61e9),
            "gemma2-9b": (3584, 14336, 42, 16, 8, 256, 256, 9.24e9),
            "gemma2-27b": (4608, 36864, 46, 32, 16, 128, 144, 27.2e9),
        },
    ),
)
