"""The diffusion transformer [Peebles and Xie 2023]: a ViT that says which noise is in a picture, or in latents of one.
Its norms and residuals are told how noisy it is and what it shows. `dit-text` also looks at a text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Absent, ConfigField, Field, Fixed, Ignored, Removed
from anyformer.models import EncoderModel, Model
from anyformer.parts.activation import Activation
from anyformer.parts.attention.attention import Attention
from anyformer.parts.condition import AdaptiveNorm, Gated, StepAndLabel
from anyformer.parts.diffusion import NoiseHead, NoiseSchedule, NoisyEmbedding
from anyformer.parts.embedding.patches import PatchEmbedding
from anyformer.parts.feedforward.mlp import MLP, GatedMLP
from anyformer.parts.init import Normal, Value, Xavier
from anyformer.parts.norm import LayerNorm
from anyformer.parts.position.absolute import Sinusoidal2D
from anyformer.specs.addresses import at
from anyformer.specs.messages import quote
from anyformer.specs.part import nearest
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from anyformer.weights.rules import Rename, Rule, Split, Spread

OP = "encoder.layers.attention.op"
FEEDFORWARD = "encoder.layers.feedforward"
EPS = 1e-6  # of the norms whose eps no config says
PLAIN: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu-approximate": "gelu_tanh",
    "geglu-approximate": "quick_gelu",
    "linear-silu": "silu",
}
GATED: dict[str, Activation] = {"geglu": "gelu", "swiglu": "silu"}
OLD = "of the class that this one was once a part of"
SCHEDULES: dict[str, Any] = {"linear": "linear", "scaled_linear": "scaled_linear", "squaredcos_cap_v2": "cosine"}


def activation(spec: Any) -> str:
    op = spec.encoder.layers.steps["feedforward"].op
    names = GATED if isinstance(op, GatedMLP) else PLAIN
    found = [name for name, own in names.items() if own == op.activation]
    if not found:
        raise Absent
    return found[0]


def unusual(path: str, default: Any, names: dict[str, Any] | None = None) -> Field:
    """A field in words of ours: published configs say it only where it is not what all published models have."""

    def read(spec: Any) -> Any:
        value = at(spec, path)
        value = value if names is None else next(name for name, own in names.items() if own == value)
        if value == default:
            raise Absent
        return value

    return Field(default, read)


def out_channels(spec: Any) -> int | None:
    """Left open where they are those that are read."""
    return None if (count := spec.head.out_channels) == spec.embedding.image.channels else count


FIELDS: dict[str, ConfigField] = {
    "num_attention_heads": Field(16, f"{OP}.num_heads"),
    "attention_head_dim": Field(72, lambda spec: spec.width // spec.encoder.layers.steps["attention"].op.num_heads),
    "in_channels": Field(4, "embedding.image.channels"),
    "out_channels": Field(None, out_channels),
    "num_layers": Field(28, "encoder.depth"),
    "dropout": Field(0.0, "encoder.layers.attention.dropout"),
    "attention_bias": Field(True, lambda spec: spec.encoder.layers.steps["attention"].op.bias == "qkvo"),
    "sample_size": Field(32, lambda spec: spec.embedding.image.image_size[0]),
    "patch_size": Field(2, lambda spec: spec.embedding.image.patch_size[0]),
    "activation_fn": Field("gelu-approximate", activation),
    "num_embeds_ada_norm": Field(1000, "embedding.condition.num_labels"),
    "norm_elementwise_affine": Field(False, f"{FEEDFORWARD}.pre_norm.norm.affine"),
    "norm_eps": Field(1e-5, f"{FEEDFORWARD}.pre_norm.norm.eps"),
    "norm_type": Fixed("ada_norm_zero", "the published class has no other"),
    "norm_num_groups": Ignored(32, "of a norm that this class does not have"),
    "upcast_attention": Ignored(False, "how scores are rounded in half precision"),
    "use_linear_projection": Removed(False, OLD),
    "cross_attention_dim": Removed(None, OLD),
    "double_self_attention": Removed(False, OLD),
    "only_cross_attention": Removed(False, OLD),
    "num_vector_embeds": Removed(None, OLD),
    "attention_type": Removed("default", OLD),
    "_class_name": Ignored(None, "the class, where diffusers writes it"),
    "_diffusers_version": Ignored(None, "a record of where the file came from"),
    "per_layer": unusual("embedding.condition.per_layer", True),
    "beta_schedule": unusual("head.schedule.curve", "linear", SCHEDULES),
    "beta_start": unusual("head.schedule.start", 1e-4),
    "beta_end": unusual("head.schedule.end", 0.02),
    "num_train_timesteps": unusual("head.schedule.steps", 1000),
    "timestep_spacing": unusual("head.schedule.spacing", "trailing"),
    "steps_offset": unusual("head.schedule.offset", 0),
    "set_alpha_to_one": Fixed(True, "some noise is left at the end"),
    "clip_sample": Fixed(False, "numbers that are cut off on the way"),
    "prediction_type": Fixed("epsilon", "what is said is not the noise"),
    "thresholding": Fixed(False, "numbers that are cut off on the way"),
    "trained_betas": Fixed(None, "a table of its own"),
    "rescale_betas_zero_snr": Fixed(False, "nothing is left of the picture at the noisiest step"),
}


def feedforward(c: Any, width: int) -> Any:
    if (name := c.activation_fn) not in {**PLAIN, **GATED}:
        raise ValueError(f"activation_fn={quote(name)} is not valid; {nearest(str(name), {**PLAIN, **GATED})}")
    if c.activation_fn in PLAIN:
        return MLP(width=width, activation=PLAIN[c.activation_fn], dropout=c.dropout)
    return GatedMLP(width=width, activation=GATED[c.activation_fn], bias=True, dropout=c.dropout)


def describe(c: Any) -> Model:
    width, side = c.num_attention_heads * c.attention_head_dim, c.sample_size // max(c.patch_size, 1)
    if c.beta_schedule not in SCHEDULES:
        raise ValueError(f"beta_schedule={quote(c.beta_schedule)} is not valid; {nearest(c.beta_schedule, SCHEDULES)}")
    attention = Attention(num_heads=c.num_attention_heads, bias="qkvo" if c.attention_bias else "o")
    second = LayerNorm(eps=c.norm_eps, affine=c.norm_elementwise_affine)
    return EncoderModel(
        width=width,
        embedding=NoisyEmbedding(
            image=PatchEmbedding(
                image_size=(c.sample_size,) * 2,
                patch_size=(c.patch_size,) * 2,
                channels=c.in_channels,
                pad=False,
                position=Sinusoidal2D(rows=side, columns=side),
            ),
            condition=StepAndLabel(num_labels=c.num_embeds_ada_norm, per_layer=c.per_layer),
        ),
        encoder=Stack(
            layers=Block(
                attention=Sublayer(pre_norm=AdaptiveNorm(), op=attention, residual=Gated(), dropout=c.dropout),
                feedforward=Sublayer(
                    pre_norm=AdaptiveNorm(norm=second), op=feedforward(c, 4 * width), residual=Gated()
                ),
            ),
            depth=c.num_layers,
            norm=AdaptiveNorm(),
        ),
        head=NoiseHead(
            out_channels=c.out_channels or c.in_channels,
            patch_size=(c.patch_size,) * 2,
            schedule=NoiseSchedule(
                curve=SCHEDULES[c.beta_schedule],
                start=c.beta_start,
                end=c.beta_end,
                steps=c.num_train_timesteps,
                spacing=c.timestep_spacing,
                offset=c.steps_offset,
            ),
        ),
        init={"embedding.condition.*.weight": Normal(std=0.02), "head.out.weight": Value(value=0.0), "*": Xavier()},
    )


def describe_text(c: Any) -> Model:
    """Between attention and feed-forward each layer looks at the states of a text's encoder, `text_width` wide."""
    spec: Any = describe(c)
    op = Attention(num_heads=c.num_attention_heads, memory=True, memory_width=c.text_width)
    attention, forward = (spec.encoder.layers.steps[name] for name in ("attention", "feedforward"))
    look = Sublayer(pre_norm=LayerNorm(eps=EPS, affine=False), op=op)
    layers = Block(attention=attention, cross_attention=look, feedforward=forward)
    return spec.replace(encoder=spec.encoder.replace(layers=layers))


def rules(spec: Any) -> list[Rule]:
    layer, ours = "transformer_blocks.{i}", "encoder.layers.{i}"
    gated = isinstance(spec.encoder.layers.steps["feedforward"].op, GatedMLP)
    steps = ("attention.pre_norm", "attention.residual", "feedforward.pre_norm", "feedforward.residual")
    modules = {
        "pos_embed.proj": "embedding.image.patch",
        **{f"{layer}.attn1.to_{n}": f"{ours}.attention.op.{n[0]}" for n in ("q", "k", "v", "out.0")},
        f"{layer}.norm3": f"{ours}.feedforward.pre_norm.norm",
        f"{layer}.ff.net.2": f"{ours}.feedforward.op.down",
        "proj_out_1": "encoder.norm.modulate",
        "proj_out_2": "head.out",
    }
    first, inner = f"{layer}.ff.net.0.proj.{{p}}", f"{ours}.feedforward.op"
    condition = {
        "timestep_embedder.linear_1": "up",
        "timestep_embedder.linear_2": "down",
        "class_embedder.embedding_table": "label",
    }
    return [
        *[Rename(f"{theirs}.{{p}}", f"{own}.{{p}}") for theirs, own in modules.items()],
        Split(f"{layer}.norm1.linear.{{p}}", [f"{ours}.{step}.modulate.{{p}}" for step in steps]),
        Split(first, (f"{inner}.up.{{p}}", f"{inner}.gate.{{p}}")) if gated else Rename(first, f"{inner}.up.{{p}}"),
        *[embedder(spec)(f"norm1.emb.{theirs}.{{p}}", f"{own}.{{p}}") for theirs, own in condition.items()],
    ]


def embedder(spec: Any) -> Callable[[str, str], Rule]:
    """Published classes store what makes the condition in every layer, also where one is meant for all."""
    condition = "embedding.condition.embedders"
    if spec.embedding.condition.per_layer:
        return lambda theirs, own: Rename(f"transformer_blocks.{{i}}.{theirs}", f"{condition}.{{i}}.{own}")
    layers = range(spec.encoder.depth)
    return lambda theirs, own: Spread([f"transformer_blocks.{i}.{theirs}" for i in layers], f"{condition}.0.{own}")


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
FAMILIES = (
    Family(
        name="dit",
        about="says which noise is in a picture of some label: what pictures are drawn with",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=("DiTTransformer2DModel",),
        renamed={"Transformer2DModel": "DiTTransformer2DModel"},
        library="diffusers",
        sizes={
            f"dit-{name}-{patch}": Size(size(width, depth, heads, patch), count)
            for name, (width, depth, heads, *counts) in SIZES.items()
            for patch, count in zip((2, 4, 8), counts)
        },
    ),
    Family(
        name="dit_text",
        about="the same, of pictures that a text tells",
        fields={
            **FIELDS,
            "num_embeds_ada_norm": Field(None, "embedding.condition.num_labels"),
            "text_width": Field(768, "encoder.layers.cross_attention.op.memory_width"),
        },
        describe=describe_text,
        rules=rules,
        architectures=(),
        sizes={"dit-text-s-2": Size({**size(384, 12, 6, 2), "text_width": 512}, None)},
    ),
)
