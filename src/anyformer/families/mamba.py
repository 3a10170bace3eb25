"""Mamba [Gu and Dao 2023]: a decoder without attention; every layer is one selective state space mixer."""

from __future__ import annotations

import math
from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import ConfigField, Field, Ignored, Removed
from anyformer.families.shared import mamba
from anyformer.families.shared.mamba import MIXER
from anyformer.models import Model
from anyformer.parts.activation import activation_named
from anyformer.parts.norm import RMSNorm
from anyformer.parts.recurrent.mamba import SelectiveState, StepWeight
from anyformer.specs.messages import quote
from anyformer.weights.rules import Rename, Rule, Split

_ORIGINAL = "left behind by the conversion from the original implementation; the published class does not read it"
_RUN = "how the scan is computed, not what"

FIELDS: dict[str, ConfigField] = {
    **mamba.FIELDS,
    "vocab_size": Field(50280, "embedding.tokens.vocab_size"),
    "hidden_size": Field(768, "width"),
    "num_hidden_layers": Field(32, "decoder.depth"),
    "state_size": Field(16, f"{MIXER}.states"),
    "expand": Field(2, mamba.expansion(lambda op: op.width)),
    "intermediate_size": Field(None, f"{MIXER}.width"),  # expand times the width unless said
    "time_step_rank": Field("auto", f"{MIXER}.rank"),
    "time_step_scale": Field(1.0, f"{MIXER}.step_start.scale"),
    "time_step_init_scheme": Field("random", f"{MIXER}.step_start.scheme"),
    "use_mambapy": Ignored(False, _RUN),
    "use_associative_scan": Ignored(True, _RUN),
    **{name: Ignored(None, _ORIGINAL) for name in ("d_model", "d_inner", "n_layer", "pad_vocab_size_multiple")},
    "fused_add_norm": Ignored(True, _RUN),
    "rms_norm": Removed(True, "LayerNorm in place of RMSNorm"),
    "ssm_cfg": Removed(None, "settings of the original implementation", (None, {})),
}


def describe(c: Any) -> Model:
    rank = math.ceil(c.hidden_size / 16) if c.time_step_rank == "auto" else c.time_step_rank
    if not isinstance(rank, int):
        raise ValueError(f"time_step_rank is a number or 'auto', got {quote(rank)}")
    mixer = SelectiveState(
        width=int(c.expand * c.hidden_size) if c.intermediate_size is None else c.intermediate_size,
        states=c.state_size,
        taps=c.conv_kernel,
        rank=rank,
        activation=activation_named(c.hidden_act),
        bias=c.use_bias,
        conv_bias=c.use_conv_bias,
        step_start=StepWeight(scale=c.time_step_scale, scheme=c.time_step_init_scheme),
        bias_start=mamba.bias_start(c),
    )
    return mamba.model(c, RMSNorm(eps=c.layer_norm_epsilon), mixer)


def mixer_rules(mixer: str, op: str) -> list[Rule]:
    return [
        *[Split(f"{mixer}.in_proj.{p}", [f"{op}.up.{p}", f"{op}.gate.{p}"]) for p in ("weight", "bias")],
        Rename(f"{mixer}.x_proj.weight", f"{op}.select.weight"),
        Rename(f"{mixer}.dt_proj.weight", f"{op}.step.weight"),
        Rename(f"{mixer}.dt_proj.bias", f"{op}.step_bias"),
    ]


def size(width: int, depth: int, published: float) -> Size:
    return Size({"hidden_size": width, "num_hidden_layers": depth}, published)


FAMILIES = (
    Family(
        name="mamba",
        about="language models without attention, linear in the length",
        fields=FIELDS,
        describe=describe,
        rules=mamba.rules(mixer_rules),
        architectures=("MambaForCausalLM", "MambaModel"),
        base=("MambaModel",),
        prefix="backbone.",
        legacy={"embedding.weight": "embeddings.weight"},
        sizes={
            "mamba-130m": size(768, 24, 130e6),
            "mamba-370m": size(1024, 48, 370e6),
            "mamba-790m": size(1536, 48, 790e6),
            "mamba-1.4b": size(2048, 48, 1.4e9),
            "mamba-2.8b": size(2560, 64, 2.8e9),
        },
    ),
)
