"""Mamba [Gu and Dao 2023]: a decoder without attention; every layer is one selective state space mixer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Absent, Ignored, Removed
from anyformer.families.base.template import (
    Class,
    Config,
    Entry,
    activation,
    choice,
    derived,
    entry,
    parameter,
    split,
    tied,
)
from anyformer.parts import (
    Add, Block, DecoderModel, Kaiming, LMHead, Model, Normal, RMSNorm, SelectiveState, Stack, StepBias, StepWeight,
    Sublayer, TextEmbedding, Tokens,
)  # fmt: skip
from anyformer.specs.addresses import value_at
from anyformer.specs.messages import quote

MIXER = "decoder.layers.mixer.op"
THEIRS, OURS = "~layers.{i}.mixer", "decoder.layers.{i}.mixer.op"
TORCH_DEFAULT = math.sqrt(1 / 3)  # gain of a uniform distribution up to 1 / sqrt(inputs)

TEMPLATE = DecoderModel(
    width=768,
    embedding=TextEmbedding(tokens=Tokens(vocab_size=50280)),
    decoder=Stack(
        depth=32,
        layers=Block(
            mixer=Sublayer(
                pre_norm=RMSNorm(eps=1e-5),
                op=SelectiveState(
                    width=1536,
                    states=16,
                    taps=4,
                    rank=48,
                    activation="silu",
                    bias=False,
                    conv_bias=True,
                    step_start=StepWeight(scale=1.0, scheme="random"),
                    bias_start=StepBias(low=0.001, high=0.1, floor=1e-4),
                ),
                residual=Add(float32=True),
            )
        ),
        norm=RMSNorm(eps=1e-5),
        shows="outputs",
    ),
    state_name="cache_params",
    init={"*.down.weight": Kaiming(gain=TORCH_DEFAULT, normal=False), "*": Normal(std=0.1)},
)


def expansion(width: Callable[[Any], int]) -> Entry:
    """The entry `expand`: the mixer's width divided by the model's."""

    def times(spec: Model) -> int:
        inner = width(value_at(spec, MIXER))
        if inner % spec.width:
            raise Absent
        return inner // spec.width

    return Entry(2, times)


def step_rank(value: Any, c: Config) -> int:
    rank = math.ceil(c.hidden_size / 16) if value == "auto" else value
    if not isinstance(rank, int):
        raise ValueError(f"time_step_rank must be an integer or 'auto', got {quote(rank)}")
    return rank


ORIGINAL = "left over from the original implementation; the published class does not read it"
COMPUTED = "how the scan is computed, not its result"

CONFIG: dict[str, Any] = {
    "vocab_size": ("embedding.tokens.vocab_size", "head.vocab_size"),
    "hidden_size": "width",
    "num_hidden_layers": "decoder.depth",
    "state_size": f"{MIXER}.states",
    "expand": expansion(lambda op: op.width),
    "intermediate_size": derived(f"{MIXER}.width", of=lambda c: int(c.expand * c.hidden_size), unset=(None,)),
    "conv_kernel": f"{MIXER}.taps",
    "use_bias": f"{MIXER}.bias",
    "use_conv_bias": f"{MIXER}.conv_bias",
    "hidden_act": activation(f"{MIXER}.activation"),
    "layer_norm_epsilon": ("decoder.norm.eps", "decoder.layers.mixer.pre_norm.eps", f"{MIXER}.norm.eps"),
    "residual_in_fp32": "decoder.layers.mixer.residual.float32",
    "time_step_rank": entry(f"{MIXER}.rank", default="auto", read=step_rank),
    "time_step_scale": f"{MIXER}.step_start.scale",
    "time_step_init_scheme": f"{MIXER}.step_start.scheme",
    "time_step_min": f"{MIXER}.bias_start.low",
    "time_step_max": f"{MIXER}.bias_start.high",
    "time_step_floor": f"{MIXER}.bias_start.floor",
    "rescale_prenorm_residual": choice("init.*.branches", {False: None, True: 1}),
    "initializer_range": "init.*.std",
    "tie_word_embeddings": tied(True, LMHead="head.out.weight"),
    "problem_type": None,
    "pad_token_id": Ignored(0, "used by tokenizers; its vector is not special"),
    "bos_token_id": Ignored(0, "used by generation"),
    "eos_token_id": Ignored(0, "used by generation"),
    "use_mambapy": Ignored(False, COMPUTED),
    "use_associative_scan": Ignored(True, COMPUTED),
    "fused_add_norm": Ignored(True, COMPUTED),
    "rms_norm": Removed(True, "LayerNorm instead of RMSNorm"),
    "ssm_cfg": Removed(None, "settings of the original implementation", (None, {})),
    **{name: Ignored(None, ORIGINAL) for name in ("d_model", "d_inner", "n_layer", "pad_vocab_size_multiple")},
}

WEIGHTS = {
    "~embeddings": "embedding.tokens",
    "~layers.{i}.norm": "decoder.layers.{i}.mixer.pre_norm",
    f"{THEIRS}.in_proj": split(f"{OURS}.{{up,gate}}"),
    f"{THEIRS}.{{conv1d,out_proj}}": f"{OURS}.{{conv,down}}",
    f"{THEIRS}.{{x_proj,dt_proj}}": f"{OURS}.{{select,step}}",
    f"{THEIRS}.dt_proj.bias": parameter(f"{OURS}.step_bias"),
    f"{THEIRS}.{{A_log,D}}": parameter(f"{OURS}.{{rate,skip}}"),
    "~norm_f": "decoder.norm",
}


def size(width: int, depth: int, published: float) -> Size:
    return Size({"hidden_size": width, "num_hidden_layers": depth}, published)


MAMBA = Family(
    name="mamba",
    about="language models without attention; cost linear in the length",
    tokenizer="GPTNeoXTokenizer",
    template=TEMPLATE,
    classes={"MambaForCausalLM": Class(LMHead(vocab_size=50280), "lm_head"), "MambaModel": Class(prefix="")},
    config=CONFIG,
    weights=WEIGHTS,
    prefix="backbone.",
    legacy={"embedding.weight": "embeddings.weight"},
    sizes={
        "mamba-130m": size(768, 24, 130e6),
        "mamba-370m": size(1024, 48, 370e6),
        "mamba-790m": size(1536, 48, 790e6),
        "mamba-1.4b": size(2048, 48, 1.4e9),
        "mamba-2.8b": size(2560, 64, 2.8e9),
    },
)
