"""Mamba-2 [Dao and Gu 2024]: Mamba with heads; each head has one decay rate."""

from __future__ import annotations

import math
from typing import Any

from anyformer.families.base.family import Size
from anyformer.families.base.fields import Ignored
from anyformer.families.base.template import Class, Config, Entry, parameter, split, tied
from anyformer.families.mamba import MAMBA, MIXER, OURS, THEIRS, expansion
from anyformer.parts import DualState, LMHead, Model, RMSNorm, StepBias
from anyformer.specs.addresses import edit, value_at

FIRST = "a field of Mamba 1; the published class does not read it"
FIRST_ONLY = (
    "intermediate_size",
    "use_mambapy",
    "use_associative_scan",
    "fused_add_norm",
    "ssm_cfg",
    "d_model",
    "d_inner",
    "n_layer",
    "pad_vocab_size_multiple",
)


def check_width(c: Config) -> None:
    if c.hidden_size * c.expand != c.num_heads * c.head_dim:
        raise ValueError(
            f"expand {c.expand} x hidden_size {c.hidden_size} is not num_heads {c.num_heads} x head_dim {c.head_dim}"
        )


def limit_steps(spec: Model, value: Any, c: Config) -> Model:
    low, high = value
    return edit(spec, {f"{MIXER}.step_low": low, f"{MIXER}.step_high": None if high == math.inf else high})


def step_limit(spec: Model) -> list[Any]:
    op = value_at(spec, MIXER)
    return [op.step_low, math.inf if op.step_high is None else op.step_high]


def size(width: int, depth: int, published: float) -> Size:
    shape = {"hidden_size": width, "num_hidden_layers": depth, "num_heads": width // 32, "n_groups": 1}
    return Size({**shape, "vocab_size": 50288, "tie_word_embeddings": True}, published)


MAMBA2 = MAMBA.but(
    "mamba2",
    about="language models without attention; linear cost, computed as matrix products",
    changes={
        "width": 4096,
        "embedding.tokens.vocab_size": 32768,
        "decoder.depth": 64,
        MIXER: DualState(
            num_heads=128,
            head_width=64,
            groups=8,
            states=128,
            taps=4,
            activation="silu",
            bias=False,
            conv_bias=True,
            step_low=0.0,
            step_high=None,
            norm=RMSNorm(eps=1e-5),
            bias_start=StepBias(low=0.001, high=0.1, floor=1e-4),
        ),
    },
    classes={"Mamba2ForCausalLM": Class(LMHead(vocab_size=32768), "lm_head"), "Mamba2Model": Class(prefix="")},
    config={
        "num_heads": f"{MIXER}.num_heads",
        "head_dim": f"{MIXER}.head_width",
        "n_groups": f"{MIXER}.groups",
        "expand": expansion(lambda op: op.num_heads * op.head_width),
        "time_step_limit": Entry((0.0, math.inf), step_limit, build=limit_steps),
        "tie_word_embeddings": tied(False, LMHead="head.out.weight"),
        "norm_before_gate": Ignored(True, "in the original code; the published class always norms after the gate"),
        "chunk_size": Ignored(256, "how the recurrence is computed, not its result"),
        "pad_token_id": Ignored(1, "used by tokenizers; its vector is not special"),
        "eos_token_id": Ignored(2, "used by generation"),
        **{name: Ignored(None, FIRST) for name in ("time_step_rank", "time_step_scale", "time_step_init_scheme")},
        **dict.fromkeys(FIRST_ONLY),
    },
    checks=(check_width,),
    weights={
        f"{THEIRS}.in_proj": split(f"{OURS}.{{gate,up,step}}"),
        f"{THEIRS}.{{x_proj,dt_proj}}": None,
        f"{THEIRS}.dt_proj.bias": None,
        f"{THEIRS}.dt_bias": parameter(f"{OURS}.step_bias"),
        f"{THEIRS}.norm": f"{OURS}.norm",
    },
    sizes={
        "mamba2-130m": size(768, 24, 130e6),
        "mamba2-370m": size(1024, 48, 370e6),
        "mamba2-780m": size(1536, 48, 780e6),
        "mamba2-1.3b": size(2048, 48, 1.3e9),
        "mamba2-2.7b": size(2560, 64, 2.7e9),
    },
)
