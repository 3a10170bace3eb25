"""Activation functions: ReLU, GELU (two forms), Swish, and the gated forms SwiGLU and GEGLU, on your numbers.

SwiGLU multiplies Swish of one projection by a second projection: Swish(x W) * (x V). x * sigmoid(x W + b), as on a
slide, has one projection and is a gate only [Shazeer 2020; Dauphin et al. 2016].
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

import anyformer as af
from anyformer.look.figures import new
from anyformer.specs.messages import quote
from anyformer_course.shown import Shown, Table
from anyformer_course.table import tiny
from anyformer_course.words import read_number

FUNCTIONS = {
    "ReLU": lambda x: x.clamp(min=0),
    "GELU": lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
    "GELU, tanh": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "Swish": lambda x: x / (1 + torch.exp(-x)),
}


def example(numbers: str = "-3 -1 -0.5 0 0.5 1 3", *, width: int = 768, seed: int = 0) -> Shown:
    """Apply the functions to `numbers`, and count feed-forward layers of a model of `width` with and without a gate."""
    try:
        x = torch.tensor([read_number(each) for each in numbers.split()])
    except ValueError:
        raise ValueError(f"numbers is {quote(numbers)}; give numbers with spaces between them") from None
    if not 1 <= len(x) <= 16 or width < 3:
        raise ValueError("give 1 to 16 numbers, and a width of at least 3")
    values = {name: function(x) for name, function in FUNCTIONS.items()}
    library = {"ReLU": F.relu(x), "GELU": F.gelu(x), "GELU, tanh": F.gelu(x, approximate="tanh"), "Swish": F.silu(x)}
    error = max(float((values[name] - library[name]).abs().max()) for name in values)
    W, V = torch.randn(2, len(x), len(x), generator=torch.Generator().manual_seed(seed)) / math.sqrt(len(x))
    gated = {
        "SwiGLU: Swish(x W) * (x V)": F.silu(x @ W) * (x @ V),
        "GEGLU: GELU(x W) * (x V)": F.gelu(x @ W) * (x @ V),
        "as on the slide: x * sigmoid(x W)": x * torch.sigmoid(x @ W),
    }
    sizes = [["ReLU, 4 d", 4 * width, weights(af.parts.MLP(width=4 * width, bias=False), width)]]
    for label, inner in (("SwiGLU, 4 d", 4 * width), ("SwiGLU, 8/3 d", 8 * width // 3)):
        sizes.append([label, inner, weights(af.parts.GatedMLP(width=inner, bias=False), width)])

    def draw() -> Any:
        figure, axes = new(1, 1, 6.5, 3.6)
        line = torch.linspace(-4, 3, 141)
        for i, (name, function) in enumerate(FUNCTIONS.items()):
            style = "--" if "tanh" in name else "-"
            axes[0, 0].plot(line.tolist(), function(line).tolist(), style, label=name, color=f"C{i}")
            axes[0, 0].plot(x.tolist(), values[name].tolist(), ".", color=f"C{i}")
        axes[0, 0].axhline(0, color="black", lw=0.5)
        axes[0, 0].legend(frameon=False, fontsize=9)
        return figure

    columns = ("x", *(f"{each:g}" for each in x.tolist()))
    gap = float((values["GELU"] - values["GELU, tanh"]).abs().max())
    return Shown(
        f"The formulas differ from torch by at most {tiny(error)}, the two forms of GELU by {gap:.1e}. A SwiGLU "
        "layer of "
        f"inner width {sizes[2][1]:,} has as many weights as a ReLU layer of {sizes[0][1]:,}: {sizes[2][2]:,}.",
        [
            Table("functions", columns, [[name, *each.tolist()] for name, each in values.items()]),
            Table("gated, with random W and V", columns, [[name, *each.tolist()] for name, each in gated.items()]),
            Table(f"feed-forward layers, d = {width}", ("layer", "inner width", "weights"), sizes),
        ],
        draw,
    )  # fmt: skip


def weights(part: Any, width: int) -> int:
    from anyformer.specs.part import Site

    with torch.device("meta"):
        return sum(parameter.numel() for parameter in part.build(Site(width=width, address="part")).parameters())
