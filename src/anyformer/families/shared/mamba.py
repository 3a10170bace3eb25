"""What both forms of Mamba share: the fields, the shape and the weights of all but the mixer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from anyformer.families.base.fields import Absent, ConfigField, Field, Ignored, activation_at, tied
from anyformer.models import DecoderModel, Model
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.head.language import LMHead
from anyformer.parts.init import Kaiming, Normal
from anyformer.parts.norm import RMSNorm
from anyformer.parts.op import Op
from anyformer.parts.recurrent.mamba import StepBias
from anyformer.parts.residual import Add
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from anyformer.weights.rules import Rename, Rule

MIXER = "decoder.layers.mixer.op"


def expansion(width: Callable[[Any], int]) -> Callable[[Any], int]:
    """How many times as wide as the model its mixer is."""

    def times(spec: Any) -> int:
        inner = width(spec.decoder.layers.steps["mixer"].op)
        if inner % spec.width:
            raise Absent
        return inner // spec.width

    return times


FIELDS: dict[str, ConfigField] = {
    "conv_kernel": Field(4, f"{MIXER}.taps"),
    "use_bias": Field(False, f"{MIXER}.bias"),
    "use_conv_bias": Field(True, f"{MIXER}.conv_bias"),
    "hidden_act": Field("silu", activation_at(f"{MIXER}.activation")),
    "layer_norm_epsilon": Field(1e-5, "decoder.norm.eps"),
    "residual_in_fp32": Field(True, "decoder.layers.mixer.residual.float32"),
    "time_step_min": Field(0.001, f"{MIXER}.bias_start.low"),
    "time_step_max": Field(0.1, f"{MIXER}.bias_start.high"),
    "time_step_floor": Field(1e-4, f"{MIXER}.bias_start.floor"),
    "rescale_prenorm_residual": Field(False, lambda spec: spec.init["*.down.weight"].branches is not None),
    "initializer_range": Field(0.1, lambda spec: spec.init["*"].std),
    "tie_word_embeddings": Field(True, tied(LMHead)),
    "pad_token_id": Ignored(0, "used by tokenizers; its vector is one like others"),
    "bos_token_id": Ignored(0, "used by generation"),
    "eos_token_id": Ignored(0, "used by generation"),
}


def bias_start(c: Any) -> StepBias:
    return StepBias(low=c.time_step_min, high=c.time_step_max, floor=c.time_step_floor)


def model(c: Any, norm: RMSNorm, mixer: Op) -> Model:
    lm = c.architecture.endswith("ForCausalLM")
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
            "*.down.weight": Kaiming(gain=torch_default, normal=False, branches=branches),
            "*": Normal(std=c.initializer_range),
        },
    )


def rules(own: Callable[[str, str], list[Rule]]) -> Callable[[Model], list[Rule]]:
    """`own` gives the rules of this mixer's weights, from its published name and its address."""
    theirs, ours = "~layers.{i}", "decoder.layers.{i}.mixer"
    mixer, op = f"{theirs}.mixer", f"{ours}.op"
    return lambda spec: [
        Rename("~embeddings.weight", "embedding.tokens.weight"),
        Rename(f"{theirs}.norm.weight", f"{ours}.pre_norm.weight"),
        *own(mixer, op),
        Rename(f"{mixer}.conv1d.{{p}}", f"{op}.conv.{{p}}"),
        Rename(f"{mixer}.A_log", f"{op}.rate"),
        Rename(f"{mixer}.D", f"{op}.skip"),
        Rename(f"{mixer}.out_proj.{{p}}", f"{op}.down.{{p}}"),
        Rename("~norm_f.weight", "decoder.norm.weight"),
        Rename("lm_head.weight", "head.out.weight"),
    ]
