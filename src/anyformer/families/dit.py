"""The diffusion transformer [Peebles and Xie 2023]: a ViT that predicts the noise in an image or its latents. The noise
level and the class modulate its norms and residuals."""

from __future__ import annotations

import dataclasses
from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Absent, Fixed, Ignored, Removed
from anyformer.families.base.template import Class, Config, Entry, choice, derived, entry, split
from anyformer.families.shared.vision import square
from anyformer.parts import (
    AdaptiveNorm, Attention, Block, EncoderModel, Gated, GatedMLP, LayerNorm, MLP, Model, NoiseHead, NoiseSchedule,
    NoisyEmbedding, Normal, PatchEmbedding, Sinusoidal2D, Stack, StepAndLabel, Sublayer, Value, Xavier,
)  # fmt: skip
from anyformer.parts.activation import Activation
from anyformer.specs.addresses import value_at
from anyformer.specs.messages import nearest
from anyformer.weights.rules import Rename, Rule, Split, Spread

ATTENTION, FEEDFORWARD, LAYER = "encoder.layers.attention", "encoder.layers.feedforward", "encoder.layers.{i}"
EPS = 1e-6  # of the norms without an eps in the config

TEMPLATE = EncoderModel(
    width=1152,
    embedding=NoisyEmbedding(
        image=PatchEmbedding(
            image_size=(32, 32), patch_size=(2, 2), channels=4, pad=False, position=Sinusoidal2D(rows=16, columns=16)
        ),
        condition=StepAndLabel(num_labels=1000, per_layer=True),
    ),
    encoder=Stack(
        depth=28,
        layers=Block(
            attention=Sublayer(pre_norm=AdaptiveNorm(), op=Attention(num_heads=16, bias="qkvo"), residual=Gated()),
            feedforward=Sublayer(
                pre_norm=AdaptiveNorm(norm=LayerNorm(eps=1e-5, affine=False)),
                op=MLP(width=4608, activation="gelu_tanh"),
                residual=Gated(),
            ),
        ),
        norm=AdaptiveNorm(),
    ),
    init={"embedding.condition.*.weight": Normal(std=0.02), "head.out.weight": Value(value=0.0), "*": Xavier()},
)
HEAD = NoiseHead(
    out_channels=4,
    patch_size=(2, 2),
    schedule=NoiseSchedule(curve="linear", start=1e-4, end=0.02, steps=1000, spacing="trailing", offset=0),
)

PLAIN: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu-approximate": "gelu_tanh",
    "geglu-approximate": "quick_gelu",
    "linear-silu": "silu",
}
GATED: dict[str, Activation] = {"geglu": "gelu", "swiglu": "silu"}
SCHEDULES = {"linear": "linear", "scaled_linear": "scaled_linear", "squaredcos_cap_v2": "cosine"}
OLD = "an option of Transformer2DModel, which once included this class"


def width(c: Config) -> int:
    return c.num_attention_heads * c.attention_head_dim


def side(c: Config) -> int:
    return c.sample_size // max(c.patch_size, 1)


def head_dim(spec: Model) -> int:
    return spec.width // value_at(spec, f"{ATTENTION}.op.num_heads")


def channels(spec: Model) -> int:
    return value_at(spec, "embedding.image.channels")


def feedforward(name: str, c: Config) -> MLP | GatedMLP:
    if name not in {**PLAIN, **GATED}:
        raise ValueError(f"is not valid; {nearest(str(name), {**PLAIN, **GATED})}")
    if name in PLAIN:
        return MLP(width=4 * width(c), activation=PLAIN[name], dropout=c.dropout)
    return GatedMLP(width=4 * width(c), activation=GATED[name], bias=True, dropout=c.dropout)


def activation(op: MLP | GatedMLP) -> str:
    names = GATED if isinstance(op, GatedMLP) else PLAIN
    return {ours: theirs for theirs, ours in names.items()}[op.activation]


def omit_if(default: Any, field: Entry) -> Entry:
    """Omit a field on export if it has the value of all published models: published configs do not declare it."""

    def recover(spec: Model) -> Any:
        if (value := field.recover(spec)) == default:
            raise Absent
        return value

    return dataclasses.replace(field, default=default, path=recover)


CONFIG: dict[str, Any] = {
    "num_attention_heads": "encoder.layers.*.op.num_heads",
    "attention_head_dim": Entry(72, head_dim),
    "in_channels": "embedding.image.channels",
    "out_channels": derived("head.out_channels", of=lambda c: c.in_channels, usual=channels),
    "num_layers": "encoder.depth",
    "dropout": f"{ATTENTION}.dropout",
    "attention_bias": choice(f"{ATTENTION}.op.bias", {True: "qkvo", False: "o"}),
    "sample_size": square("embedding.image.image_size"),
    "patch_size": square("embedding.image.patch_size", "head.patch_size"),
    "activation_fn": entry(f"{FEEDFORWARD}.op", read=feedforward, write=activation),
    "num_embeds_ada_norm": "embedding.condition.num_labels",
    "norm_elementwise_affine": f"{FEEDFORWARD}.pre_norm.norm.affine",
    "norm_eps": f"{FEEDFORWARD}.pre_norm.norm.eps",
    "per_layer": omit_if(True, entry("embedding.condition.per_layer")),
    "beta_schedule": omit_if("linear", choice("head.schedule.curve", SCHEDULES)),
    "beta_start": omit_if(1e-4, entry("head.schedule.start")),
    "beta_end": omit_if(0.02, entry("head.schedule.end")),
    "num_train_timesteps": omit_if(1000, entry("head.schedule.steps")),
    "timestep_spacing": omit_if("trailing", entry("head.schedule.spacing")),
    "steps_offset": omit_if(0, entry("head.schedule.offset")),
    "norm_type": Fixed("ada_norm_zero", "the published class has only this norm"),
    "norm_num_groups": Ignored(32, "for a norm that this class does not have"),
    "upcast_attention": Ignored(False, "the precision of attention scores"),
    **dict.fromkeys(("cross_attention_dim", "num_vector_embeds"), Removed(None, OLD)),
    **dict.fromkeys(("use_linear_projection", "double_self_attention", "only_cross_attention"), Removed(False, OLD)),
    "attention_type": Removed("default", OLD),
    "_class_name": Ignored(None, "the class, as diffusers writes it"),
    "_diffusers_version": Ignored(None, "where the file came from"),
    "set_alpha_to_one": Fixed(True, "the last step must remove all noise"),
    "clip_sample": Fixed(False, "samples are not clipped"),
    "prediction_type": Fixed("epsilon", "the model must predict the noise"),
    "thresholding": Fixed(False, "samples are not clipped"),
    "trained_betas": Fixed(None, "custom tables of betas"),
    "rescale_betas_zero_snr": Fixed(False, "zero signal at the last step"),
    "problem_type": None,
}


def inner(theirs: str, spec: Model) -> list[Rule]:
    ours = f"{LAYER}.feedforward.op"
    if isinstance(value_at(spec, f"{FEEDFORWARD}.op"), GatedMLP):
        return [Split(f"{theirs}.{{p}}", (f"{ours}.up.{{p}}", f"{ours}.gate.{{p}}"))]
    return [Rename(f"{theirs}.{{p}}", f"{ours}.up.{{p}}")]


def embedders(theirs: str, spec: Model) -> list[Rule]:
    """Rules of the condition embedders. Published classes store one per layer, even if all layers share it."""
    modules = {"timestep_embedder.linear_1": "up", "timestep_embedder.linear_2": "down"}
    modules |= {"class_embedder.embedding_table": "label"}
    ours = "embedding.condition.embedders"
    pairs = [(f"{theirs}.{module}.{{p}}", f"{name}.{{p}}") for module, name in modules.items()]
    if value_at(spec, "embedding.condition.per_layer"):
        return [Rename(source, f"{ours}.{{i}}.{name}") for source, name in pairs]
    layers = range(value_at(spec, "encoder.depth"))
    return [Spread([source.replace("{i}", str(i)) for i in layers], f"{ours}.0.{name}") for source, name in pairs]


STEPS = "{attention.pre_norm,attention.residual,feedforward.pre_norm,feedforward.residual}"
WEIGHTS = {
    "pos_embed.proj": "embedding.image.patch",
    "transformer_blocks.{i}.attn1.to_{q,k,v,out.0}": f"{LAYER}.attention.op.{{q,k,v,o}}",
    "transformer_blocks.{i}.norm1.linear": split(f"{LAYER}.{STEPS}.modulate"),
    "transformer_blocks.{i}.norm1.emb": embedders,
    "transformer_blocks.{i}.norm3": f"{LAYER}.feedforward.pre_norm.norm",
    "transformer_blocks.{i}.ff.net.0.proj": inner,
    "transformer_blocks.{i}.ff.net.2": f"{LAYER}.feedforward.op.down",
    "proj_out_1": "encoder.norm.modulate",
    "proj_out_2": "head.out",
}


def size(width: int, depth: int, heads: int, patch: int) -> dict[str, Any]:
    return {
        "num_attention_heads": heads,
        "attention_head_dim": width // heads,
        "num_layers": depth,
        "patch_size": patch,
        "out_channels": 8,
        "per_layer": False,
        "norm_eps": EPS,
    }


SIZES = {
    "s": (384, 12, 6, 33e6, 33e6, 33e6),
    "b": (768, 12, 12, 130e6, 130e6, 131e6),
    "l": (1024, 24, 16, 458e6, 458e6, 459e6),
    "xl": (1152, 28, 16, 675e6, 675e6, 676e6),
}
DIT = Family(
    name="dit",
    about="diffusion Transformers that generate images of a class",
    template=TEMPLATE,
    classes={"DiTTransformer2DModel": Class(HEAD)},
    config=CONFIG,
    computed={"width": width, "embedding.image.position.rows": side, "embedding.image.position.columns": side},
    weights=WEIGHTS,
    renamed={"Transformer2DModel": "DiTTransformer2DModel"},
    library="diffusers",
    sizes={
        f"dit-{name}-{patch}": Size(size(width, depth, heads, patch), count)
        for name, (width, depth, heads, *counts) in SIZES.items()
        for patch, count in zip((2, 4, 8), counts)
    },
)
