"""Why attention over pixels is slow: operator calls and memory traffic of networks that differ in one layer.

The same ResNet with 3 x 3 convolutions, with local relations (LR-Net) or with stand-alone self-attention. Calls of
PyTorch operators and the bytes that they write are counted while the networks read one picture.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import anyformer as af
from anyformer.look.figures import new
from anyformer.specs.messages import nearest, quote
from anyformer_course.shown import Shown, Table

NAMES = ("resnet-26", "lr-net-26", "sasa-resnet-26", "resnet-50", "lr-net-50", "sasa-resnet-50", "halonet-h0")


class Traffic(TorchDispatchMode):
    """Counts the operator calls of a pass and the bytes that they write; views write nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.bytes = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.calls += 1
            self.bytes += sum(4 * each.numel() for each in tree_leaves(result) if isinstance(each, torch.Tensor))
        return result


def example(names: str = "resnet-26 lr-net-26 sasa-resnet-26", *, side: int = 64) -> Shown:
    """Compare networks of `names` on a picture of `side` x `side` pixels, relative to the first."""
    if unknown := [name for name in names.split() if name not in NAMES]:
        raise ValueError(f"no network {quote(unknown[0])}; {nearest(unknown[0], NAMES)}")
    if side not in (32, 64, 96, 128):
        raise ValueError(f"side is {side}; use 32, 64, 96 or 128")
    if not names.split():
        raise ValueError(f"give names of networks: {', '.join(NAMES)}")
    rows: list[list[Any]] = []
    for name in names.split():
        spec: Any = af.override(af.spec(name), {"embedding.image_size": (side, side)})
        model = af.build(spec, seed=0).eval()
        pixels = torch.zeros(1, 3, side, side)
        with torch.no_grad(), Traffic() as traffic:
            model(pixel_values=pixels)
        counted = af.count(spec)
        rows.append([name, counted.parameters, counted.flops(1), traffic.calls, traffic.bytes / 2**20])
    ratios = [[row[0], *(value / first for value, first in zip(row[1:], rows[0][1:], strict=True))] for row in rows]

    def draw() -> Any:
        figure, axes = new(1, 1, 9, 3.8)
        titles = ("parameters", "FLOPs", "operator calls", "bytes written")
        for i, (name, *values) in enumerate(ratios):
            axes[0, 0].bar([x + 0.8 / len(ratios) * i for x in range(4)], values, 0.8 / len(ratios), label=name)
        axes[0, 0].set_xticks([x + 0.3 for x in range(4)], titles)
        axes[0, 0].set_title(f"relative to {rows[0][0]}", fontsize=9)
        axes[0, 0].legend(fontsize=8)
        return figure

    return Shown(
        "; ".join(
            f"{row[0]} needs {row[1]:.2f} times the parameters and {row[2]:.2f} times the FLOPs of {rows[0][0]}, but "
            f"writes {row[4]:.1f} times as many bytes" for row in ratios[1:]
        ) + "." if len(rows) > 1 else f"{rows[0][0]} writes {rows[0][4]:.0f} MiB per picture.",
        [
            Table(f"one picture of {side} x {side}",
                  ("network", "parameters", "FLOPs", "operator calls", "MiB written"), rows),
            Table(f"relative to {rows[0][0]}", ("network", "parameters", "FLOPs", "operator calls", "bytes written"),
                  ratios),
        ],
        draw,
    )  # fmt: skip
