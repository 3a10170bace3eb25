"""Mamba-2 [Dao and Gu 2024]: Mamba with heads, each of which forgets at one pace."""

from __future__ import annotations

import math
from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import ConfigField, Field, Ignored, Removed, tied
from anyformer.families.shared import mamba
from anyformer.families.shared.mamba import MIXER
from anyformer.models import Model
from anyformer.parts.activation import activation_named
from anyformer.parts.head.language import LMHead
from anyformer.parts.norm import RMSNorm
from anyformer.parts.recurrent.mamba2 import DualState
from anyformer.weights.rules import Rename, Rule, Split

_FIRST = "of Mamba's first form; the published class does not read it"


def limit(spec: Any) -> list[Any]:
    op = spec.decoder.layers.steps["mixer"].op
    return [op.step_low, math.inf if op.step_high is None else op.step_high]


FIELDS: dict[str, ConfigField] = {
    **mamba.FIELDS,
    "vocab_size": Field(32768, "embedding.tokens.vocab_size"),
    "hidden_size": Field(4096, "width"),
    "num_hidden_layers": Field(64, "decoder.depth"),
    "num_heads": Field(128, f"{MIXER}.num_heads"),
    "head_dim": Field(64, f"{MIXER}.head_width"),
    "n_groups": Field(8, f"{MIXER}.groups"),
    "state_size": Field(128, f"{MIXER}.states"),
    "expand": Field(2, mamba.expansion(lambda op: op.num_heads * op.head_width)),
    "time_step_limit": Field((0.0, math.inf), limit),
    "tie_word_embeddings": Field(False, tied(LMHead)),
    **{name: Ignored(None, _FIRST) for name in ("time_step_rank", "time_step_scale", "time_step_init_scheme")},
    "norm_before_gate": Ignored(True, "of the original code; the published class always norms what the gate left"),
    "rms_norm": Removed(True, "LayerNorm in place of RMSNorm"),
    "chunk_size": Ignored(256, "how the recurrence is computed, not what"),
    "pad_token_id": Ignored(1, "used by tokenizers; its vector is one like others"),
    "eos_token_id": Ignored(2, "used by generation"),
}


def describe(c: Any) -> Model:
    if c.hidden_size * c.expand != c.num_heads * c.head_dim:
        raise ValueError(f"expand {c.expand} times hidden_size {c.hidden_size} is not num_heads {c.num_heads} times "
                         f"head_dim {c.head_dim}")  # fmt: skip
    low, high = c.time_step_limit
    norm = RMSNorm(eps=c.layer_norm_epsilon)
    mixer = DualState(
        num_heads=c.num_heads,
        head_width=c.head_dim,
        groups=c.n_groups,
        states=c.state_size,
        taps=c.conv_kernel,
        activation=activation_named(c.hidden_act),
        bias=c.use_bias,
        conv_bias=c.use_conv_bias,
        step_low=low,
        step_high=None if high == math.inf else high,
        norm=norm,
        bias_start=mamba.bias_start(c),
    )
    return mamba.model(c, norm, mixer)


def mixer_rules(mixer: str, op: str) -> list[Rule]:
    inner = ("gate", "up", "step")
    return [
        *[Split(f"{mixer}.in_proj.{p}", [f"{op}.{name}.{p}" for name in inner]) for p in ("weight", "bias")],
        Rename(f"{mixer}.dt_bias", f"{op}.step_bias"),
        Rename(f"{mixer}.norm.weight", f"{op}.norm.weight"),
    ]


def size(width: int, depth: int, published: float) -> Size:
    shape = {"hidden_size": width, "num_hidden_layers": depth, "num_heads": width // 32, "n_groups": 1}
    return Size({**shape, "vocab_size": 50288, "tie_word_embeddings": True}, published)


FAMILIES = (
    Family(
        name="mamba2",
        about="language models without attention, linear in the length, in matrix products",
        fields=FIELDS,
        describe=describe,
        rules=mamba.rules(mixer_rules),
        architectures=("Mamba2ForCausalLM", "Mamba2Model"),
        base=("Mamba2Model",),
        prefix="backbone.",
        legacy={"embedding.weight": "embeddings.weight"},
        sizes={
            "mamba2-130m": size(768, 24, 130e6),
            "mamba2-370m": size(1024, 48, 370e6),
            "mamba2-780m": size(1536, 48, 780e6),
            "mamba2-1.3b": size(2048, 48, 1.3e9),
            "mamba2-2.7b": size(2560, 64, 2.7e9),
        },
    ),
)
