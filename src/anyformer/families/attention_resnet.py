"""ResNets with attention instead of the 3 x 3 convolution in each bottleneck: LR-Net [Hu et al. 2019], stand-alone
self-attention [Ramachandran et al. 2019] and HaloNet [Vaswani et al. 2021]. transformers has no such class, so models
are saved only in our own format. Any other op fits the slot: set `encoder.stages.0.layers.convolutions.op.layers.1.op`
to `{"kind": "NonLocal"}`, for example."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.template import Class, Config, Entry
from anyformer.families.resnet import depths, image_size, widths
from anyformer.families.shared.vision import pair
from anyformer.parts import (
    Activated, Block, ClassifyHead, Convolution, ConvolutionEmbedding, Convolutions, Down, EncoderModel, GridLayer,
    HaloAttention, Kaiming, LayersDown, LocalRelation, MeanTokens, Model, OpLayer, Pool, ResidualDown, Stack, Stages,
    Sublayer,
)  # fmt: skip
from anyformer.specs.addresses import value_at
from anyformer.specs.messages import quote
from anyformer.specs.part import Part
from anyformer.weights.rules import Rule

KINDS = {"local_relation": LocalRelation, "halo": HaloAttention}


def bottlenecks(spec: Model) -> list[Any]:
    encoder = value_at(spec, "encoder")
    return [
        encoder.down[i - encoder.first].layers if i >= encoder.first else stage.layers.steps["convolutions"].op.layers
        for i, stage in enumerate(encoder.stages)
    ]


def mixers(spec: Model) -> list[Any]:
    return [layers[1].op for layers in bottlenecks(spec) if len(layers) == 3]


def kind(spec: Model) -> str:
    return next(name for name, each in KINDS.items() if isinstance(mixers(spec)[0], each))


def mixer_field(kind: type[Part], name: str, default: int) -> Entry:
    """A field of one kind of mixer; models with the other kind have the default."""
    return Entry(default, lambda spec: getattr(op, name) if isinstance(op := mixers(spec)[0], kind) else default)


CONFIG: dict[str, Any] = {
    "num_channels": Entry(3, "embedding.channels"),
    "embedding_size": Entry(64, "width"),
    "hidden_sizes": Entry((256, 512, 1024, 2048), lambda spec: widths(spec)[-len(mixers(spec)) :]),
    "bottleneck_sizes": Entry((64, 128, 256, 512), lambda spec: tuple(
        layers[0].width for layers in bottlenecks(spec) if len(layers) == 3)),
    "depths": Entry((3, 4, 6, 3), lambda spec: depths(spec)[-len(mixers(spec)) :]),
    "mixer": Entry("halo", kind),
    "num_heads": Entry((8, 8, 8, 8), lambda spec: tuple(op.num_heads for op in mixers(spec))),
    "neighbourhood": mixer_field(LocalRelation, "size", 7),  # window side
    "block": mixer_field(HaloAttention, "block", 1),  # block side
    "halo": mixer_field(HaloAttention, "halo", 3),
    "image_size": Entry(224, image_size),
}  # fmt: skip


def describe(c: Config) -> Model:
    stages = len(c.hidden_sizes)
    if not stages or {stages} != {len(each) for each in (c.bottleneck_sizes, c.depths, c.num_heads)}:
        raise ValueError("hidden_sizes, bottleneck_sizes, depths and num_heads need one number per stage")
    if c.mixer not in KINDS:
        raise ValueError(f"mixer={quote(c.mixer)} is not valid; valid: {', '.join(KINDS)}")

    def mixer(heads: int, stride: int) -> OpLayer:
        if c.mixer == "local_relation":
            return OpLayer(op=LocalRelation(num_heads=heads, size=c.neighbourhood, step=stride))
        inside = stride if c.block % stride == 0 else 1  # stride the queries of a block, or average after the op
        op = HaloAttention(num_heads=heads, block=c.block, halo=c.halo, step=inside)
        return OpLayer(op=op, pool=stride // inside)

    def layers(narrow: int, heads: int, stride: int = 1) -> tuple[GridLayer, ...]:
        last = Convolution(kernel=1, activation="identity")
        return Convolution(kernel=1, width=narrow), mixer(heads, stride), last

    built: list[Stack] = []
    down: list[Down] = []
    before = c.embedding_size
    stem = Convolution(kernel=7, stride=2)
    if c.mixer == "local_relation":  # its stem is attention too, with groups of 8 channels
        stem, groups = Convolution(kernel=1), max(before // 8, 1)
        down.append(LayersDown(width=before, layers=(mixer(groups, 2),), pool=3))
        built.append(Stack(layers=Block(convolutions=bottleneck(layers(before, groups))), depth=0))
    sizes = zip(c.hidden_sizes, c.bottleneck_sizes, c.depths, c.num_heads, strict=True)
    for i, (width, narrow, depth, heads) in enumerate(sizes):
        stride = 2 if i else 1
        if changes := stride > 1 or width != before or bool(down):  # then layer 0 is the transition between stages
            skip = Convolution(kernel=1, stride=stride, activation="identity")
            if depth < 1:
                raise ValueError(f"depths is {c.depths}: every stage needs at least 1 layer")
            down.append(ResidualDown(width=width, layers=layers(narrow, heads, stride), skip=skip))
        built.append(Stack(layers=Block(convolutions=bottleneck(layers(narrow, heads))), depth=depth - changes))
        before = width
    return EncoderModel(
        width=c.embedding_size,
        embedding=ConvolutionEmbedding(
            layers=(stem,),
            channels=c.num_channels,
            image_size=pair(c.image_size),
            pool=None if c.mixer == "local_relation" else 3,
        ),
        encoder=Stages(stages=tuple(built), down=tuple(down), shows="images"),
        head=ClassifyHead(num_labels=c.num_labels, pool=Pool(take=MeanTokens()), problem=c.problem_type),
        init={"*": Kaiming(gain=3**-0.5, normal=False)},
    )


def bottleneck(layers: tuple[GridLayer, ...]) -> Sublayer:
    return Sublayer(op=Convolutions(layers=layers), residual=Activated(activation="relu"))


def rules(spec: Model) -> list[Rule]:
    raise ValueError("no attention_resnet checkpoints are published; load a folder saved by anyformer (with spec.json)")


def lr_net(published: float, *depths: int) -> Size:
    config = {"mixer": "local_relation", "bottleneck_sizes": (100, 200, 400, 800), "num_heads": (10, 25, 50, 100)}
    note = "7 x 7 neighbours, heads of 8 channels (of 10 in the first stage)"
    return Size({**config, "depths": depths, "num_labels": 1000}, published, note)


def sasa(published: float, *depths: int) -> Size:
    return Size({"depths": depths, "num_labels": 1000}, published, "7 x 7 neighbours, convolutional stem")


def halonet(published: float, expansion: float, third: int) -> Size:
    narrow = (64, 128, 256, 512)
    config = {
        "hidden_sizes": tuple(int(width * expansion) for width in narrow),
        "bottleneck_sizes": narrow,
        "depths": (3, 3, third, 3),
        "num_heads": (4, 8, 8, 8),
        "block": 8,
        "num_labels": 1000,
    }
    return Size({**config, "image_size": 256}, published, "blocks of 8 x 8 with a halo of 3")


ATTENTION_RESNET = Family(
    name="attention_resnet",
    about="ResNets with local attention instead of convolutions (LR-Net, SASA, HaloNet)",
    template=describe,
    config=CONFIG,
    weights=rules,
    classes={"": Class()},
    pictures="ConvNext",
    sizes={
        "lr-net-26": lr_net(14.7e6, 2, 2, 2, 2),
        "lr-net-50": lr_net(23.3e6, 3, 4, 6, 3),
        "sasa-resnet-26": sasa(10.3e6, 1, 2, 4, 1),
        "sasa-resnet-38": sasa(14.1e6, 2, 3, 5, 2),
        "sasa-resnet-50": sasa(18.0e6, 3, 4, 6, 3),
        "halonet-h0": halonet(5.5e6, 0.5, 7),
        "halonet-h1": halonet(8.1e6, 1.0, 10),
        "halonet-h2": halonet(9.4e6, 1.25, 11),
    },
)
