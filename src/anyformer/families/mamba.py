"""Mamba [Gu and Dao 2023]: a decoder without attention; every layer is one selective state space mixer."""

from __future__ import annotations

import math
from typing import Any

from anyformer.block import Block, Stack, Sublayer
from anyformer.families.family import Absent, ConfigField, Family, Field, Inert, Only, Size, activation_at, tied
from anyformer.model import DecoderModel, Model
from anyformer.parts.activation import activation_named
from anyformer.parts.embed import TextEmbedding, Tokens
from anyformer.parts.head import LMHead
from anyformer.parts.init import Kaiming, Normal
from anyformer.parts.norm import RMSNorm
from anyformer.parts.residual import Add
from anyformer.parts.ssm import Rates, SelectiveState, StepBias, StepWeight
from anyformer.weights.rules import Rename, Rule, Split

MIXER = "decoder.layers.mixer.op"
_ORIGINAL = "left behind by the conversion from the original implementation; the published class does not read it"
_RUN = "how the scan is computed, not what"


def expansion(spec: Any) -> int:
    width = spec.decoder.layers.steps["mixer"].op.width
    if width % spec.width:
        raise Absent
    return width // spec.width


FIELDS: dict[str, ConfigField] = {
    "vocab_size": Field(50280, "embedding.tokens.vocab_size"),
    "hidden_size": Field(768, "width"),
    "num_hidden_layers": Field(32, "decoder.depth"),
    "state_size": Field(16, f"{MIXER}.states"),
    "expand": Field(2, expansion),
    "intermediate_size": Field(None, f"{MIXER}.width"),  # expand times the width unless said
    "conv_kernel": Field(4, f"{MIXER}.taps"),
    "use_bias": Field(False, f"{MIXER}.bias"),
    "use_conv_bias": Field(True, f"{MIXER}.conv_bias"),
    "hidden_act": Field("silu", activation_at(f"{MIXER}.activation")),
    "layer_norm_epsilon": Field(1e-5, "decoder.norm.eps"),
    "residual_in_fp32": Field(True, "decoder.layers.mixer.residual.float32"),
    "time_step_rank": Field("auto", f"{MIXER}.rank"),
    "time_step_scale": Field(1.0, lambda spec: spec.init["*.step.weight"].scale),
    "time_step_init_scheme": Field("random", lambda spec: spec.init["*.step.weight"].scheme),
    "time_step_min": Field(0.001, lambda spec: spec.init["*.step_bias"].low),
    "time_step_max": Field(0.1, lambda spec: spec.init["*.step_bias"].high),
    "time_step_floor": Field(1e-4, lambda spec: spec.init["*.step_bias"].floor),
    "rescale_prenorm_residual": Field(False, lambda spec: spec.init["*.down.weight"].branches is not None),
    "initializer_range": Field(0.1, lambda spec: spec.init["*"].std),
    "tie_word_embeddings": Field(True, tied(LMHead)),
    "use_mambapy": Inert(False, _RUN),
    "use_associative_scan": Inert(True, _RUN),
    "pad_token_id": Inert(0, "used by tokenizers; its vector is one like others"),
    "bos_token_id": Inert(0, "used by generation"),
    "eos_token_id": Inert(0, "used by generation"),
    **{name: Inert(None, _ORIGINAL) for name in ("d_model", "d_inner", "n_layer", "pad_vocab_size_multiple")},
    "fused_add_norm": Inert(True, _RUN),
    "rms_norm": Only(True, "LayerNorm in place of RMSNorm"),
    "ssm_cfg": Only(None, "settings of the original implementation", (None, {})),
}


def describe(c: Any) -> Model:
    rank = math.ceil(c.hidden_size / 16) if c.time_step_rank == "auto" else c.time_step_rank
    if not isinstance(rank, int):
        raise ValueError(f"time_step_rank is a number or 'auto', got {rank!r}")
    norm = RMSNorm(eps=c.layer_norm_epsilon)
    mixer = SelectiveState(
        width=int(c.expand * c.hidden_size) if c.intermediate_size is None else c.intermediate_size,
        states=c.state_size,
        taps=c.conv_kernel,
        rank=rank,
        activation=activation_named(c.hidden_act),
        bias=c.use_bias,
        conv_bias=c.use_conv_bias,
    )
    lm = c.architecture == "MambaForCausalLM"
    torch_default = math.sqrt(1 / 3)  # uniform up to 1 / sqrt(inputs)
    return DecoderModel(
        width=c.hidden_size,
        embedding=TextEmbedding(tokens=Tokens(vocab_size=c.vocab_size)),
        decoder=Stack(
            layers=Block(mixer=Sublayer(pre_norm=norm, op=mixer, residual=Add(float32=c.residual_in_fp32))),
            depth=c.num_hidden_layers,
            norm=norm,
            shows="outputs",
        ),
        head=LMHead(vocab_size=c.vocab_size) if lm else None,
        ties=(("head.out.weight", "embedding.tokens.weight"),) if lm and c.tie_word_embeddings else (),
        state_name="cache_params",
        init={
            "*.rate": Rates(),
            "*.step.weight": StepWeight(scale=c.time_step_scale, scheme=c.time_step_init_scheme),
            "*.step_bias": StepBias(low=c.time_step_min, high=c.time_step_max, floor=c.time_step_floor),
            "*.conv.weight": Kaiming(gain=torch_default, normal=False),
            "*.down.weight": Kaiming(
                gain=torch_default, normal=False, branches=1 if c.rescale_prenorm_residual else None
            ),
            "*": Normal(std=c.initializer_range),
        },
    )


def rules(spec: Model) -> list[Rule]:
    theirs, ours = "~layers.{i}", "decoder.layers.{i}.mixer"
    mixer, op = f"{theirs}.mixer", f"{ours}.op"
    return [
        Rename("~embeddings.weight", "embedding.tokens.weight"),
        Rename(f"{theirs}.norm.weight", f"{ours}.pre_norm.weight"),
        *[Split(f"{mixer}.in_proj.{p}", [f"{op}.up.{p}", f"{op}.gate.{p}"]) for p in ("weight", "bias")],
        Rename(f"{mixer}.conv1d.{{p}}", f"{op}.conv.{{p}}"),
        Rename(f"{mixer}.x_proj.weight", f"{op}.select.weight"),
        Rename(f"{mixer}.dt_proj.weight", f"{op}.step.weight"),
        Rename(f"{mixer}.dt_proj.bias", f"{op}.step_bias"),
        Rename(f"{mixer}.A_log", f"{op}.rate"),
        Rename(f"{mixer}.D", f"{op}.skip"),
        Rename(f"{mixer}.out_proj.{{p}}", f"{op}.down.{{p}}"),
        Rename("~norm_f.weight", "decoder.norm.weight"),
        Rename("lm_head.weight", "head.out.weight"),
    ]


def size(width: int, depth: int, published: float) -> Size:
    return Size({"hidden_size": width, "num_hidden_layers": depth}, published)


FAMILIES = (
    Family(
        name="mamba",
        about="language models without attention, linear in the length",
        fields=FIELDS,
        describe=describe,
        rules=rules,
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
