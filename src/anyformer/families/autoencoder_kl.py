"""The autoencoder of latent diffusion [Rombach et al. 2022]: it encodes an image as a small grid of latents and decodes
it again. Published DiTs and Stable Diffusion generate in its latent space."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import ConfigField, Entry, Fixed, Ignored
from anyformer.families.base.template import Config
from anyformer.parts import AutoencoderModel, GaussianLatent, KLDecoder, KLEmbedding, Kaiming, Model
from anyformer.parts.activation import Activation
from anyformer.specs.messages import nearest, quote
from anyformer.weights.rules import Rename, Reshape, Rule

DOWN, UP = "DownEncoderBlock2D", "UpDecoderBlock2D"
ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "swish": "silu", "mish": "mish", "gelu": "gelu", "relu": "relu"}


def side(spec: AutoencoderModel) -> Any:
    rows, columns = spec.embedding.image_size
    return rows if rows == columns else [rows, columns]


FIELDS: dict[str, ConfigField] = {
    "in_channels": Entry(3, "embedding.channels"),
    "out_channels": Entry(3, "painter.channels"),
    "down_block_types": Entry([DOWN], lambda spec: [DOWN] * len(spec.embedding.widths)),
    "up_block_types": Entry([UP], lambda spec: [UP] * len(spec.painter.widths)),
    "block_out_channels": Entry([64], "embedding.widths"),
    "layers_per_block": Entry(1, "embedding.blocks"),
    "act_fn": Entry("silu", "embedding.activation"),
    "latent_channels": Entry(4, "latent.width"),
    "norm_num_groups": Entry(32, "embedding.groups"),
    "sample_size": Entry(32, side),
    "scaling_factor": Entry(0.18215, "latent.scale"),
    "shift_factor": Entry(None, lambda spec: spec.latent.shift or None),
    "use_quant_conv": Entry(True, "latent.project"),
    "use_post_quant_conv": Entry(True, "painter.mix"),
    "mid_block_add_attention": Entry(True, "embedding.attention"),
    "latents_mean": Fixed(None, "latents are scaled by one factor, not per channel"),
    "latents_std": Fixed(None, "latents are scaled by one factor, not per channel"),
    "force_upcast": Ignored(True, "the precision that a pipeline uses"),
    "_class_name": Ignored(None, "the class, as diffusers writes it"),
    "_diffusers_version": Ignored(None, "where the file came from"),
}


def describe(c: Config) -> Model:
    widths, stages = tuple(c.block_out_channels), len(c.block_out_channels)
    for name, kind in (("down_block_types", DOWN), ("up_block_types", UP)):
        if list(getattr(c, name)) != [kind] * stages:
            value = quote(getattr(c, name))
            raise ValueError(f"{name}={value} is not supported; valid: {stages} times {kind!r}")
    if c.act_fn not in ACTIVATIONS:
        raise ValueError(f"act_fn={quote(c.act_fn)} is not valid; {nearest(str(c.act_fn), ACTIVATIONS)}")
    sides = (c.sample_size,) * 2 if isinstance(c.sample_size, int) else tuple(c.sample_size)
    factor = 2 ** (stages - 1)
    shared: dict[str, Any] = {
        "groups": c.norm_num_groups,
        "activation": ACTIVATIONS[c.act_fn],
        "attention": c.mid_block_add_attention,
    }
    return AutoencoderModel(
        width=2 * c.latent_channels,
        embedding=KLEmbedding(
            image_size=tuple(max(each // factor, 1) * factor for each in sides),
            channels=c.in_channels,
            widths=widths,
            blocks=c.layers_per_block,
            **shared,
        ),
        latent=GaussianLatent(
            width=c.latent_channels, scale=c.scaling_factor, shift=c.shift_factor or 0.0, project=c.use_quant_conv
        ),
        painter=KLDecoder(
            channels=c.out_channels,
            widths=widths[::-1],
            blocks=c.layers_per_block + 1,
            mix=c.use_post_quant_conv,
            **shared,
        ),
        reads="sample",
        says="sample",
        init={"*": Kaiming(gain=1.0)},
    )


def rules(spec: AutoencoderModel) -> list[Rule]:
    blocks: list[Rule] = []
    step = {"norm1": "first_norm", "conv1": "first", "norm2": "second_norm", "conv2": "second", "conv_shortcut": "skip"}
    for theirs, ours, stages, then in (
        ("encoder", "embedding", "down_blocks", "downsamplers"),
        ("decoder", "painter", "up_blocks", "upsamplers"),
    ):
        middle = f"{theirs}.mid_block"
        modules = {
            f"{theirs}.conv_in": f"{ours}.first",
            f"{theirs}.{stages}.{{i}}.{then}.0.conv": f"{ours}.stages.{{i}}.then.taps",
            f"{middle}.attentions.0.group_norm": f"{ours}.middle.attention.norm",
            **{f"{middle}.attentions.0.to_{n}": f"{ours}.middle.attention.{n[0]}" for n in ("q", "k", "v", "out.0")},
            f"{theirs}.conv_norm_out": f"{ours}.norm",
            f"{theirs}.conv_out": f"{ours}.out",
        }
        for name, own in step.items():
            modules[f"{theirs}.{stages}.{{i}}.resnets.{{j}}.{name}"] = f"{ours}.stages.{{i}}.layers.{{j}}.{own}"
            modules[f"{middle}.resnets.0.{name}"] = f"{ours}.middle.first.{own}"
            modules[f"{middle}.resnets.1.{name}"] = f"{ours}.middle.last.{own}"
        blocks += [Rename(f"{each}.{{p}}", f"{own}.{{p}}") for each, own in modules.items()]
    numbers = 2 * spec.latent.width
    return [
        *blocks,
        Reshape("quant_conv.weight", "latent.say.weight", (numbers, numbers, 1, 1)),
        Rename("quant_conv.bias", "latent.say.bias"),
        Rename("post_quant_conv.{p}", "painter.mix.{p}"),
    ]


# names in the middle attention before 2023
OLD = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}

FAMILIES = (
    Family(
        name="autoencoder_kl",
        about="autoencoder for images; latent diffusion generates in its latent space",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=("AutoencoderKL",),
        legacy={
            f"attentions.0.{old}.{kind}": f"attentions.0.{new}.{kind}"
            for old, new in OLD.items()
            for kind in ("weight", "bias")
        },
        library="diffusers",
        sizes={
            "sd-vae": Size(
                {
                    "down_block_types": [DOWN] * 4,
                    "up_block_types": [UP] * 4,
                    "layers_per_block": 2,
                    "block_out_channels": [128, 256, 512, 512],
                    "sample_size": 256,
                },
                83.65e6,
                "used by Stable Diffusion 1 and DiT: 8 x 8 pixels become 4 latents",
            ),
        },
    ),
)
