"""ResNet [He et al. 2016]: stages of convolutions with residual connections, each stage on a grid half as fine."""

from __future__ import annotations

import math
from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Absent
from anyformer.families.base.template import Class, Config, Entry, activation
from anyformer.families.shared.vision import BACKBONE, pair, unpair
from anyformer.parts import (
    Activated, Block, ClassifyHead, Convolution, ConvolutionEmbedding, Convolutions, EncoderModel, ImageOutput, Kaiming,
    MeanTokens, Model, Pool, ResidualDown, Stack, Stages, Sublayer, Uniform,
)  # fmt: skip
from anyformer.parts.activation import activation_named
from anyformer.specs.addresses import value_at
from anyformer.specs.messages import quote
from anyformer.weights.rules import ChannelsLast, Rename, Rule

REDUCTION = 4  # width of a block / width of its bottleneck


def widths(spec: Model) -> tuple[int, ...]:
    encoder = value_at(spec, "encoder")
    return (spec.width,) * encoder.first + tuple(down.width for down in encoder.down)


def depths(spec: Model) -> tuple[int, ...]:
    """Return the layers per stage. In published configs the downsampling step counts as the stage's first layer."""
    encoder = value_at(spec, "encoder")
    return tuple(stage.depth + (i >= encoder.first) for i, stage in enumerate(encoder.stages))


def layer_type(spec: Model) -> str:
    return (
        "basic"
        if len(value_at(spec, "encoder").stages[0].layers.steps["convolutions"].op.layers) == 2
        else "bottleneck"
    )


def downsamples_first_stage(spec: Model) -> bool:
    encoder = value_at(spec, "encoder")
    return encoder.first == 0 and encoder.down[0].stride > 1


def strides_first(spec: Model) -> bool:
    """Whether the stride is in the first of the three convolutions."""
    strided = [down for down in value_at(spec, "encoder.down") if down.stride > 1]
    if not strided or layer_type(spec) == "basic":
        raise Absent
    return strided[0].layers[0].stride > 1


def image_size(spec: Model) -> int | tuple[int, int]:
    """Written only if it is not 224: published configs have no such field."""
    if (size := value_at(spec, "embedding.image_size")) == (224, 224):
        raise Absent
    return unpair(size)


CONFIG: dict[str, Any] = {
    "num_channels": Entry(3, "embedding.channels"),
    "embedding_size": Entry(64, "width"),
    "hidden_sizes": Entry((256, 512, 1024, 2048), widths),
    "depths": Entry((3, 4, 6, 3), depths),
    "layer_type": Entry("bottleneck", layer_type),
    "hidden_act": activation("embedding.layers.0.activation", default="relu"),
    "downsample_in_first_stage": Entry(False, downsamples_first_stage),
    "downsample_in_bottleneck": Entry(False, strides_first),
    "image_size": Entry(224, image_size),
    **BACKBONE,
}


def describe(c: Config) -> Model:
    if not 0 < len(c.hidden_sizes) <= len(c.depths):
        raise ValueError(f"hidden_sizes {c.hidden_sizes} and depths {c.depths} need one number per stage")
    if c.layer_type not in ("basic", "bottleneck"):
        raise ValueError(f"layer_type={quote(c.layer_type)} is not valid; valid: basic, bottleneck")
    act = activation_named(c.hidden_act)

    def layers(width: int, stride: int = 1) -> tuple[Convolution, ...]:
        last = Convolution(activation="identity")
        if c.layer_type == "basic":
            return Convolution(width=width, stride=stride), last
        narrow, strides = width // REDUCTION, (stride, 1) if c.downsample_in_bottleneck else (1, stride)
        if narrow < 1:
            raise ValueError(f"hidden_sizes: {width} is below {REDUCTION}, the minimum of a bottleneck")
        first, second = (Convolution(kernel=k, width=narrow, stride=s) for k, s in zip((1, 3), strides, strict=True))
        return first, second, last.replace(kernel=1)

    stages, down, before = [], [], c.embedding_size
    # published: depths without a width are not read, and a stage has at least one layer
    for i, (width, depth) in enumerate(zip(c.hidden_sizes, (max(depth, 1) for depth in c.depths), strict=False)):
        stride = 2 if i or c.downsample_in_first_stage else 1
        if changes := stride > 1 or width != before:  # then the first layer is the transition between stages
            skip = Convolution(kernel=1, stride=stride, activation="identity")
            down.append(ResidualDown(width=width, layers=layers(width, stride), skip=skip, activation=act))
        step = Sublayer(op=Convolutions(layers=layers(width)), residual=Activated(activation=act))
        stages.append(Stack(layers=Block(convolutions=step), depth=depth - changes))
        before = width
    bound = 1 / math.sqrt(before)
    classifies = c.architecture == "ResNetForImageClassification"
    pool = Pool(take=MeanTokens())
    return EncoderModel(
        width=c.embedding_size,
        embedding=ConvolutionEmbedding(
            layers=(Convolution(kernel=7, stride=2, activation=act),),
            channels=c.num_channels,
            image_size=pair(c.image_size),
        ),
        encoder=Stages(stages=tuple(stages), down=tuple(down), shows="images"),
        head=ClassifyHead(num_labels=c.num_labels, pool=pool, problem=c.problem_type) if classifies else ImageOutput(),
        init={"head.out.bias": Uniform(low=-bound, high=bound), "*": Kaiming(gain=1 / math.sqrt(3), normal=False)},
    )


def rules(spec: Model) -> list[Rule]:
    def convolution(theirs: str, ours: str) -> list[Rule]:
        kernel = ChannelsLast(f"{theirs}.convolution.weight", f"{ours}.taps.weight")
        return [kernel, Rename(f"{theirs}.normalization.{{p}}", f"{ours}.norm.{{p}}")]

    rules = convolution("~embedder.embedder", "embedding.layers.0")
    encoder: Stages = value_at(spec, "encoder")
    for s, stage in enumerate(encoder.stages):
        first, layers = int(s >= encoder.first), f"~encoder.stages.{s}.layers"
        if first:
            down = f"encoder.down.{s - encoder.first}"
            rules += convolution(f"{layers}.0.shortcut", f"{down}.skip")
            rules += convolution(f"{layers}.0.layer.{{j}}", f"{down}.layers.{{j}}")
        for i in range(stage.depth):
            ours = f"encoder.stages.{s}.layers.{i}.convolutions.op.layers.{{j}}"
            rules += convolution(f"{layers}.{i + first}.layer.{{j}}", ours)
    return [*rules, Rename("classifier.1.{p}", "head.out.{p}")]


BASIC = {"layer_type": "basic", "hidden_sizes": (64, 128, 256, 512)}


def size(published: float, *depths: int, **more: Any) -> Size:
    return Size({"depths": depths, "num_labels": 1000, **more}, published)


RESNET = Family(
    name="resnet",
    about="convolutional image classifiers, the baseline before vision Transformers",
    template=describe,
    config=CONFIG,
    weights=rules,
    classes={"ResNetForImageClassification": Class(), "ResNetModel": Class(prefix="")},
    prefix="resnet.",
    pictures="ConvNext",
    sizes={
        "resnet-18": size(11.7e6, 2, 2, 2, 2, **BASIC),
        "resnet-26": size(16.0e6, 2, 2, 2, 2),
        "resnet-34": size(21.8e6, 3, 4, 6, 3, **BASIC),
        "resnet-50": size(25.6e6, 3, 4, 6, 3),
        "resnet-101": size(44.5e6, 3, 4, 23, 3),
        "resnet-152": size(60.2e6, 3, 8, 36, 3),
    },
)
