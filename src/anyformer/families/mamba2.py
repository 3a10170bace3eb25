"""Mamba-2 [Dao and Gu 2024]: Mamba with heads, each of which forgets at one pace."""

from __future__ import annotations

import math
from typing import Any

from anyformer.block import Block, Stack, Sublayer
from anyformer.families.family import Absent, ConfigField, Family, Field, Inert, Size, activation_at, tied
from anyformer.model import DecoderModel, Model
from anyformer.parts.activation import activation_named
from anyformer.parts.embed import TextEmbedding, Tokens
from anyformer.parts.head import LMHead
from anyformer.parts.init import Kaiming, Normal
from anyformer.parts.norm import RMSNorm
from anyformer.parts.residual import Add
from anyformer.parts.ssd import DualState
from anyformer.parts.ssm import Rates, StepBias
from anyformer.weights.rules import Rename, Rule, Split

MIXER = "decoder.layers.mixer.op"
_RUN = "how the recurrence is computed, not what"
_NO_LIMIT = {"__float__": "Infinity"}  # as published files write it


def expansion(spec: Any) -> int:
    op = spec.decoder.layers.steps["mixer"].op
    if op.num_heads * op.head_width % spec.width:
        raise Absent
    return op.num_heads * op.head_width // spec.width


def limit(spec: Any) -> list[Any]:
    op = spec.decoder.layers.steps["mixer"].op
    return [op.step_low, _NO_LIMIT if op.step_high is None else op.step_high]


FIELDS: dict[str, ConfigField] = {
    "vocab_size": Field(32768, "embedding.tokens.vocab_size"),
    "hidden_size": Field(4096, "width"),
    "num_hidden_layers": Field(64, "decoder.depth"),
    "num_heads": Field(128, f"{MIXER}.num_heads"),
    "head_dim": Field(64, f"{MIXER}.head_width"),
    "n_groups": Field(8, f"{MIXER}.groups"),
    "state_size": Field(128, f"{MIXER}.states"),
    "expand": Field(2, expansion),
    "conv_kernel": Field(4, f"{MIXER}.taps"),
    "use_bias": Field(False, f"{MIXER}.bias"),
    "use_conv_bias": Field(True, f"{MIXER}.conv_bias"),
    "hidden_act": Field("silu", activation_at(f"{MIXER}.activation")),
    "layer_norm_epsilon": Field(1e-5, "decoder.norm.eps"),
    "residual_in_fp32": Field(True, "decoder.layers.mixer.residual.float32"),
    "time_step_limit": Field((0.0, _NO_LIMIT), limit),
    "time_step_min": Field(0.001, lambda spec: spec.init["*.step_bias"].low),
    "time_step_max": Field(0.1, lambda spec: spec.init["*.step_bias"].high),
    "time_step_floor": Field(1e-4, lambda spec: spec.init["*.step_bias"].floor),
    "rescale_prenorm_residual": Field(False, lambda spec: spec.init["*.down.weight"].branches is not None),
    "initializer_range": Field(0.1, lambda spec: spec.init["*"].std),
    "tie_word_embeddings": Field(False, tied(LMHead)),
    "time_step_rank": Inert("auto", "of Mamba's first form; the published class does not read it"),
    "chunk_size": Inert(256, _RUN),
    "pad_token_id": Inert(1, "used by tokenizers; its vector is one like others"),
    "bos_token_id": Inert(0, "used by generation"),
    "eos_token_id": Inert(2, "used by generation"),
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
        step_high=None if high in (_NO_LIMIT, math.inf) else high,
        norm=norm,
    )
    lm = c.architecture == "Mamba2ForCausalLM"
    torch_default = math.sqrt(1 / 3)  # uniform up to 1 / sqrt(inputs)
    branches = 1 if c.rescale_prenorm_residual else None
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
            "*.step_bias": StepBias(low=c.time_step_min, high=c.time_step_max, floor=c.time_step_floor),
            "*.conv.weight": Kaiming(gain=torch_default, normal=False),
            "*.down.weight": Kaiming(gain=torch_default, normal=False, branches=branches),
            "*": Normal(std=c.initializer_range),
        },
    )


def rules(spec: Model) -> list[Rule]:
    theirs, ours = "~layers.{i}", "decoder.layers.{i}.mixer"
    mixer, op = f"{theirs}.mixer", f"{ours}.op"
    names = ("gate", "up", "step")
    return [
        Rename("~embeddings.weight", "embedding.tokens.weight"),
        Rename(f"{theirs}.norm.weight", f"{ours}.pre_norm.weight"),
        *[Split(f"{mixer}.in_proj.{p}", [f"{op}.{name}.{p}" for name in names]) for p in ("weight", "bias")],
        Rename(f"{mixer}.conv1d.{{p}}", f"{op}.conv.{{p}}"),
        Rename(f"{mixer}.dt_bias", f"{op}.step_bias"),
        Rename(f"{mixer}.A_log", f"{op}.rate"),
        Rename(f"{mixer}.D", f"{op}.skip"),
        Rename(f"{mixer}.norm.weight", f"{op}.norm.weight"),
        Rename(f"{mixer}.out_proj.{{p}}", f"{op}.down.{{p}}"),
        Rename("~norm_f.weight", "decoder.norm.weight"),
        Rename("lm_head.weight", "head.out.weight"),
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
        rules=rules,
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
