"""The autoencoder of latent diffusion [Rombach et al. 2022]: it encodes an image as a small grid of latents and decodes
it again. Published DiTs and Stable Diffusion generate in its latent space."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Fixed, Ignored
from anyformer.families.base.template import Class, Config, Entry, Weights, entry, parameter
from anyformer.families.shared.vision import pair, unpair
from anyformer.parts import AutoencoderModel, GaussianLatent, KLDecoder, KLEmbedding, Kaiming
from anyformer.parts.activation import Activation
from anyformer.specs.messages import nearest, quote

DOWN, UP = "DownEncoderBlock2D", "UpDecoderBlock2D"
ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "swish": "silu", "mish": "mish", "gelu": "gelu", "relu": "relu"}

TEMPLATE = AutoencoderModel(
    width=8,
    embedding=KLEmbedding(image_size=(32, 32), channels=3, widths=(64,), blocks=1),
    latent=GaussianLatent(width=4, scale=0.18215),
    image_decoder=KLDecoder(channels=3, widths=(64,), blocks=2),
    input_name="sample",
    output_name="sample",
    init={"*": Kaiming(gain=1.0)},
)


def read_activation(name: str, c: Config) -> Activation:
    if name not in ACTIVATIONS:
        raise ValueError(f"is not valid; {nearest(str(name), ACTIVATIONS)}")
    return ACTIVATIONS[name]


CONFIG: dict[str, Any] = {
    "in_channels": "embedding.channels",
    "out_channels": "image_decoder.channels",
    "down_block_types": Entry([DOWN], lambda spec: [DOWN] * len(spec.embedding.widths)),
    "up_block_types": Entry([UP], lambda spec: [UP] * len(spec.image_decoder.widths)),
    "block_out_channels": "embedding.widths",
    "layers_per_block": "embedding.blocks",
    "act_fn": entry("*.activation", read=read_activation),
    "latent_channels": "latent.width",
    "norm_num_groups": "*.groups",
    "sample_size": Entry(32, lambda spec: unpair(spec.embedding.image_size)),
    "scaling_factor": "latent.scale",
    "shift_factor": entry(
        "latent.shift", default=None, read=lambda shift, c: shift or 0.0, write=lambda shift: shift or None
    ),
    "use_quant_conv": "latent.project",
    "use_post_quant_conv": "image_decoder.mix",
    "mid_block_add_attention": "*.attention",
    "latents_mean": Fixed(None, "latents are scaled by one factor, not per channel"),
    "latents_std": Fixed(None, "latents are scaled by one factor, not per channel"),
    "force_upcast": Ignored(True, "the precision that a pipeline uses"),
    "_class_name": Ignored(None, "the class, as diffusers writes it"),
    "_diffusers_version": Ignored(None, "where the file came from"),
    "problem_type": None,
}


def image_size(c: Config) -> tuple[int, ...]:
    """Return the size, rounded down to whole cells of the latent grid."""
    factor = 2 ** (len(c.block_out_channels) - 1)
    return tuple(max(side // factor, 1) * factor for side in pair(c.sample_size))


def check(c: Config) -> None:
    stages = len(c.block_out_channels)
    for name, kind in (("down_block_types", DOWN), ("up_block_types", UP)):
        if list(getattr(c, name)) != [kind] * stages:
            value = quote(getattr(c, name))
            raise ValueError(f"{name}={value} is not supported; valid: {stages} times {kind!r}")


def weights(spec: AutoencoderModel) -> Weights:
    name, own = "{norm1,conv1,norm2,conv2,conv_shortcut}", "{first_norm,first,second_norm,second,skip}"
    modules: dict[Any, Any] = {}
    for theirs, ours, stages, then in (
        ("encoder", "embedding", "down_blocks", "downsamplers"),
        ("decoder", "image_decoder", "up_blocks", "upsamplers"),
    ):
        middle = f"{theirs}.mid_block"
        modules |= {
            f"{theirs}.{{conv_in,conv_norm_out,conv_out}}": f"{ours}.{{first,norm,out}}",
            f"{theirs}.{stages}.{{i}}.{then}.0.conv": f"{ours}.stages.{{i}}.then.taps",
            f"{middle}.attentions.0.group_norm": f"{ours}.middle.attention.norm",
            f"{middle}.attentions.0.to_{{q,k,v,out.0}}": f"{ours}.middle.attention.{{q,k,v,o}}",
            f"{theirs}.{stages}.{{i}}.resnets.{{j}}.{name}": f"{ours}.stages.{{i}}.layers.{{j}}.{own}",
            f"{middle}.resnets.0.{name}": f"{ours}.middle.first.{own}",
            f"{middle}.resnets.1.{name}": f"{ours}.middle.last.{own}",
        }
    numbers = 2 * spec.latent.width
    return {
        **modules,
        "quant_conv.weight": parameter("latent.say.weight", (numbers, numbers, 1, 1)),
        "quant_conv.bias": parameter("latent.say.bias"),
        "post_quant_conv": "image_decoder.mix",
    }


# names in the middle attention before 2023
OLD = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}

AUTOENCODER_KL = Family(
    name="autoencoder_kl",
    about="autoencoder for images; latent diffusion generates in its latent space",
    template=TEMPLATE,
    classes={"AutoencoderKL": Class()},
    config=CONFIG,
    computed={
        "width": lambda c: 2 * c.latent_channels,
        "embedding.image_size": image_size,
        "image_decoder.widths": lambda c: tuple(c.block_out_channels)[::-1],
        "image_decoder.blocks": lambda c: c.layers_per_block + 1,
    },
    checks=(check,),
    weights=weights,
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
)
