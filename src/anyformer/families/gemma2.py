"""Gemma 2 [Gemma Team 2024]: a Llama with norms around each branch, sliding windows in every other layer, and soft caps."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Size
from anyformer.families.base.fields import Absent, Ignored, Removed
from anyformer.families.base.template import Class, Config, Entry, activation, entry, tied
from anyformer.families.llama import ATTENTION, LLAMA, MLP
from anyformer.families.shared.heads import decoder_classes
from anyformer.families.shared.layer_types import decoder_entries
from anyformer.models import Model
from anyformer.parts.attention.attention import Attention
from anyformer.parts.attention.scores import SoftCap
from anyformer.parts.embedding.scaled_tokens import ScaledTokens
from anyformer.parts.feedforward.mlp import GatedMLP
from anyformer.parts.head.capped import CappedHead
from anyformer.parts.head.language import LMHead
from anyformer.parts.position.rotary import Rope
from anyformer.parts.zero_centered_norm import ZeroCenteredRMSNorm
from anyformer.runtime.mask import Causal, Mask, Window
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer

NORM = ZeroCenteredRMSNorm(eps=1e-6)


def layer(mask: Mask) -> Block:
    heads = {"num_heads": 8, "num_kv_heads": 4, "head_width": 256, "bias": ""}
    attention = Attention(**heads, mask=mask, position=Rope(), scale=256**-0.5, scores=(SoftCap(bound=50.0),))
    mlp = GatedMLP(width=9216, activation="gelu_tanh", bias=False)
    return Block(
        attention=Sublayer(pre_norm=NORM, op=attention, post_norm=NORM),
        feedforward=Sublayer(pre_norm=NORM, op=mlp, post_norm=NORM),
    )


LAYERS = {"sliding": layer(Causal() & Window(size=4096)), "full": layer(Causal())}


def final_cap(spec: Model) -> float | None:
    if not isinstance(spec.head, LMHead):
        raise Absent
    return spec.head.bound if isinstance(spec.head, CappedHead) else None


def set_final_cap(spec: Any, bound: float | None, c: Config) -> Any:
    if not isinstance(spec.head, CappedHead):
        return spec
    head = LMHead(vocab_size=spec.head.vocab_size) if bound is None else spec.head.replace(bound=bound)
    return spec.replace(head=head)


CLASSES = {**decoder_classes("Gemma2", 256000), "Gemma2ForCausalLM": Class(CappedHead(vocab_size=256000), "lm_head")}
del CLASSES["Gemma2ForQuestionAnswering"]  # not published

GEMMA2 = LLAMA.but(
    "gemma2",
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
        # the defaults of both caps are integers, because null means the default in fields of floats
        "attn_logit_softcapping": entry(
            f"{ATTENTION}.scores",
            default=50,
            read=lambda bound, c: () if bound is None else (SoftCap(bound=bound),),
            write=lambda scores: scores[0].bound if scores else None,
        ),
        "final_logit_softcapping": Entry(30, final_cap, build=set_final_cap),
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
    sizes={
        "gemma2-2b": Size({}, 2.61e9),
        "gemma2-9b": Size(
            {"hidden_size": 3584, "intermediate_size": 14336, "num_hidden_layers": 42, "num_attention_heads": 16,
             "num_key_value_heads": 8}, 9.24e9,
        ),
        "gemma2-27b": Size(
            {"hidden_size": 4608, "intermediate_size": 36864, "num_hidden_layers": 46, "num_attention_heads": 32,
             "num_key_value_heads": 16, "head_dim": 128, "query_pre_attn_scalar": 144}, 27.2e9,
        ),
    },
)  # fmt: skip

FAMILIES = (GEMMA2,)
