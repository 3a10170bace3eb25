"""torchaudio.models.Conformer: the layers of a Conformer [Gulati et al. 2020] over vectors, without stem and head. It
writes no config.json: our fields are its arguments."""

from __future__ import annotations

from anyformer.families.base.family import Family
from anyformer.families.base.template import Class, Config, Entry, choice, divides
from anyformer.families.conformer import INIT, check_odd, macaron, step
from anyformer.families.shared.speech import pointwise
from anyformer.parts import (
    Attention, BatchNorm, Block, ConvolutionModule, EncoderModel, MLP, Model, RowNorm, Scaled, Stack, Vectors, Xavier,
)  # fmt: skip
from anyformer.specs.addresses import edit, value_at
from anyformer.weights.rules import Rule, Split

TEMPLATE = EncoderModel(
    width=80,
    embedding=Vectors(),
    encoder=Stack(
        depth=4,
        layers=macaron(
            half=step(MLP(width=128, activation="silu"), 0.0, residual=Scaled(branch=0.5)),
            attention=step(Attention(num_heads=4), 0.0),
            convolution=step(ConvolutionModule(kernel=31, norm=BatchNorm(), bias=True), 0.0),
        ),
    ),
    init={"*.op.[qkv].weight": Xavier(gain=2**-0.5), **INIT},
)


def swap_order(spec: EncoderModel, convolution_first: bool, c: Config) -> EncoderModel:
    steps = value_at(spec, "encoder.layers").steps
    names = ("half_before", "convolution", "attention", "feedforward")
    return edit(spec, {"encoder.layers": Block(**{n: steps[n] for n in names})}) if convolution_first else spec


def in_projection(theirs: str, spec: Model) -> list[Rule]:
    ours = [f"encoder.layers.{{i}}.attention.op.{name}" for name in "qkv"]
    return [Split(f"{theirs}_{p}", [f"{each}.{p}" for each in ours]) for p in ("weight", "bias")]


THEIRS, OURS = "conformer_layers.{i}", "encoder.layers.{i}"
MODULE = f"{THEIRS}.conv_module"

TORCHAUDIO = Family(
    name="torchaudio-conformer",
    about="the layers of a Conformer, without stem and head",
    template=TEMPLATE,
    classes={"Conformer": Class()},
    config={
        "input_dim": "width",
        "num_heads": "encoder.layers.attention.op.num_heads",
        "ffn_dim": "encoder.layers.*.op[MLP].width",
        "num_layers": "encoder.depth",
        "depthwise_conv_kernel_size": "encoder.layers.convolution.op.kernel",
        "dropout": ("encoder.layers.*.dropout", "encoder.layers.*.op[MLP].dropout", "**.op[Attention].dropout"),
        "use_group_norm": choice("encoder.layers.convolution.op.norm", {False: BatchNorm(), True: RowNorm()}),
        "convolution_first": Entry(
            False, lambda spec: list(spec.encoder.layers.steps)[1] == "convolution", build=swap_order
        ),
    },
    checks=(
        divides("num_heads", "input_dim"),
        lambda c: check_odd("depthwise_conv_kernel_size", c.depthwise_conv_kernel_size),
    ),
    weights={
        f"{THEIRS}.self_attn.in_proj": in_projection,
        f"{MODULE}.sequential.0": pointwise(f"{OURS}.convolution.op.gate"),
        f"{MODULE}.sequential.5": pointwise(f"{OURS}.convolution.op.out"),
        f"{MODULE}.sequential.{{2,3}}": f"{OURS}.convolution.op.{{taps,norm}}",
        f"{THEIRS}.{{self_attn_layer_norm,conv_module.layer_norm}}": f"{OURS}.{{attention,convolution}}.pre_norm",
        f"{THEIRS}.self_attn.out_proj": f"{OURS}.attention.op.o",
        # modules 2 and 3 are an activation and a dropout
        f"{THEIRS}.ffn1.sequential.{{0,1,4}}": f"{OURS}.half_before.{{pre_norm,op.up,op.down}}",
        f"{THEIRS}.ffn2.sequential.{{0,1,4}}": f"{OURS}.feedforward.{{pre_norm,op.up,op.down}}",
        f"{THEIRS}.final_layer_norm": f"{OURS}.feedforward.out_norm",
    },
    library="torchaudio",
)
