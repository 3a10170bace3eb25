"""Convolutional networks from LeNet-5 to ResNet-50: layers, parameters and multiply-adds, counted layer by layer.

LeNet-5 reads gray pictures of 32 x 32 pixels, the others color pictures of `size` x `size` pixels. ResNet-50 is counted
from its description. Published errors are top-5 errors of the ImageNet competitions (groups of models).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anyformer.look.figures import new
from anyformer.specs.messages import nearest, quote
from anyformer_course.shown import Shown, Table


class Net:
    """Counts parameters and multiply-adds while layers are added to a picture of `channels` x `side` x `side`."""

    def __init__(self, channels: int, side: int) -> None:
        self.channels, self.side = channels, side
        self.layers = self.convolutions = self.dense = self.multiply_adds = 0

    def conv(self, width: int, kernel: int, stride: int = 1, pad: int = 0, groups: int = 1) -> Net:
        self.side = (self.side + 2 * pad - kernel) // stride + 1
        weights = kernel * kernel * self.channels // groups * width
        self.convolutions += weights + width
        self.multiply_adds += weights * self.side**2
        self.channels, self.layers = width, self.layers + 1
        return self

    def pool(self, kernel: int, stride: int, ceil: bool = False) -> Net:
        self.side = -((kernel - self.side) // stride) + 1 if ceil else (self.side - kernel) // stride + 1
        return self

    def linear(self, *widths: int) -> Net:
        for width in widths:
            weights = self.channels * self.side**2 * width
            self.dense, self.multiply_adds = self.dense + weights + width, self.multiply_adds + weights
            self.channels, self.side, self.layers = width, 1, self.layers + 1
        return self

    def inception(self, one: int, few: int, three: int, less: int, five: int, pooled: int) -> Net:
        """Four branches side by side: 1x1, 1x1 then 3x3, 1x1 then 5x5, pooling then 1x1."""
        channels, layers = self.channels, self.layers
        for steps in (((one, 1, 0),), ((few, 1, 0), (three, 3, 1)), ((less, 1, 0), (five, 5, 2)), ((pooled, 1, 0),)):
            self.channels = channels
            for width, kernel, pad in steps:
                self.conv(width, kernel, pad=pad)
        self.channels, self.layers = one + three + five + pooled, layers + 2
        return self


def lenet(size: int) -> Net:
    return Net(1, 32).conv(6, 5).pool(2, 2).conv(16, 5).pool(2, 2).conv(120, 5).linear(84, 10)


def alexnet(size: int) -> Net:  # two groups: the halves of two GPUs
    net = Net(3, size).conv(96, 11, 4, 2).pool(3, 2).conv(256, 5, pad=2, groups=2).pool(3, 2).conv(384, 3, pad=1)
    return net.conv(384, 3, pad=1, groups=2).conv(256, 3, pad=1, groups=2).pool(3, 2).linear(4096, 4096, 1000)


def vgg(size: int) -> Net:
    net = Net(3, size)
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            net.conv(width, 3, pad=1)
        net.pool(2, 2)
    return net.linear(4096, 4096, 1000)


def googlenet(size: int) -> Net:
    net = Net(3, size).conv(64, 7, 2, 3).pool(3, 2, True).conv(64, 1).conv(192, 3, pad=1).pool(3, 2, True)
    net.inception(64, 96, 128, 16, 32, 32).inception(128, 128, 192, 32, 96, 64).pool(3, 2, True)
    net.inception(192, 96, 208, 16, 48, 64).inception(160, 112, 224, 24, 64, 64).inception(128, 128, 256, 24, 64, 64)
    net.inception(112, 144, 288, 32, 64, 64).inception(256, 160, 320, 32, 128, 128).pool(3, 2, True)
    net.inception(256, 160, 320, 32, 128, 128).inception(384, 192, 384, 48, 128, 128)
    net.side = 1  # mean of every channel
    return net.linear(1000)


# name: (year, function, published parameters, published top-5 error in %)
NETS: dict[str, tuple[int, Callable[[int], Net] | None, float, float | None]] = {
    "lenet-5": (1998, lenet, 60e3, None), "alexnet": (2012, alexnet, 60e6, 16.4), "vgg-16": (2014, vgg, 138e6, 7.3),
    "googlenet": (2014, googlenet, 6.8e6, 6.67), "resnet-50": (2015, None, 25.6e6, 3.57),
}  # fmt: skip


def example(names: str = "lenet-5 alexnet vgg-16 googlenet resnet-50", *, size: int = 224) -> Shown:
    """Count the named networks on pictures of `size` x `size` pixels."""
    if not 96 <= size <= 1024:
        raise ValueError(f"size is {size}; it must be from 96 to 1024 pixels")
    rows = []
    for name in names.split():
        if name not in NETS:
            raise ValueError(f"no network is called {quote(name)}; {nearest(name, NETS)}")
        year, build, published, error = NETS[name]
        layers, total, dense, work = count(build(size)) if build else resnet(size)
        rows.append([name, year, layers, total, published, 100 * dense / total, work, error])
    if not rows:
        raise ValueError(f"give one or more names of {', '.join(NETS)}")

    def draw() -> Any:
        figure, axes = new(2, 1, 9, 3.4)
        for axis, column, title in ((axes[0, 0], 3, "parameters"), (axes[0, 1], 6, "multiply-adds of one picture")):
            axis.bar([f"{row[0]}\n{row[1]}" for row in rows], [row[column] for row in rows], color="C0")
            axis.set_yscale("log")
            axis.set_title(title, fontsize=10)
            axis.tick_params(labelsize=8)
        return figure

    most, least = max(rows, key=lambda row: row[3]), min(rows[1:] or rows, key=lambda row: row[3])
    return Shown(
        f"{most[0]} has {most[3]:,} parameters, {most[5]:.0f} % of them in dense layers; {least[0]} has {least[3]:,}.",
        [Table(f"pictures of {size} x {size} pixels (LeNet-5: 32 x 32); errors of groups of networks",
         ("network", "year", "layers", "parameters", "published", "% dense", "multiply-adds", "top-5 error, %"),
         rows)],
        draw,
    )  # fmt: skip


def count(net: Net) -> tuple[int, int, int, int]:
    return net.layers, net.convolutions + net.dense, net.dense, net.multiply_adds


def resnet(size: int) -> tuple[int, int, int, int]:
    import anyformer as af
    from anyformer.specs.codec import override

    counted = af.count(override(af.spec("resnet-50"), {"embedding.image_size": (size, size)}))
    dense = sum(number for part, number in counted.parts.items() if part.startswith("head"))
    return 50, counted.parameters, dense, counted.flops(1) // 2
