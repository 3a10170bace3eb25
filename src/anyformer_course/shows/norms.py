"""LayerNorm, RMSNorm and DeepNorm of your numbers, by formula and by the library.

LayerNorm divides by the standard deviation, that is, the square root of the variance. With the root of the standard
deviation, as on a slide, the result does not have variance 1.
"""

from __future__ import annotations

from typing import Any

import torch

import anyformer as af
from anyformer.look.figures import new
from anyformer.specs.field_types import Count
from anyformer.specs.messages import quote
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._small import module
from anyformer_course.table import tiny
from anyformer_course.words import read_number


def example(numbers: str = "1 2 3 6", *, branch: float = 0.5, layers: Count = 24) -> Shown:
    """Normalize `numbers`. DeepNorm normalizes alpha x + f(x); here f(x) is `branch` times x, moved by one place."""
    try:
        x = torch.tensor([read_number(each) for each in numbers.split()])
    except ValueError:
        raise ValueError(f"numbers is {quote(numbers)}; give numbers with spaces between them") from None
    if not 2 <= len(x) <= 12 or x.std() == 0:
        raise ValueError("give 2 to 12 numbers that are not all equal")
    mean, deviation = x.mean(), x.std(correction=0)
    rms = x.square().mean().sqrt()
    f, alpha = branch * x.roll(1), (2 * layers) ** 0.25  # alpha of an encoder with `layers` layers
    deep = alpha * x + f
    results = {
        "x": x,
        "LayerNorm: (x - mean) / deviation": (x - mean) / deviation,
        "with sqrt(deviation), as on the slide": (x - mean) / deviation.sqrt(),
        "RMSNorm: x / rms": x / rms,
        f"DeepNorm: LayerNorm({alpha:.2f} x + f(x))": (deep - deep.mean()) / deep.std(correction=0),
    }
    with torch.no_grad():
        library = [
            module(part, len(x))(x[None])[0] for part in (af.parts.LayerNorm(eps=0.0), af.parts.RMSNorm(eps=0.0))
        ]
    names = list(results)
    errors = [float((results[names[i]] - each).abs().max()) for i, each in zip((1, 3), library, strict=True)]
    rows = [
        [
            name,
            *each.tolist(),
            round(float(each.mean()), 6),
            float(each.var(correction=0)),
            float(each.square().mean().sqrt()),
        ]
        for name, each in results.items()
    ]

    def draw() -> Any:
        figure, axes = new(1, 1, 9, 3.2)
        for i, (name, each) in enumerate(results.items()):
            places = [n + 0.16 * i for n in range(len(x))]
            axes[0, 0].bar(places, each.tolist(), 0.15, label=name)
        axes[0, 0].axhline(0, color="black", lw=0.6)
        axes[0, 0].set_xticks([n + 0.32 for n in range(len(x))], [f"{value:g}" for value in x.tolist()])
        axes[0, 0].legend(frameon=False, fontsize=8)
        return figure

    return Shown(
        f"LayerNorm gives variance {rows[1][-2]:.2f}, the slide's formula {rows[2][-2]:.2f}; RMSNorm gives a root "
        f"mean square of {rows[3][-1]:.2f} and leaves a mean of {rows[3][-3]:.2f}. The library differs by at most "
        f"{tiny(max(errors))}.",
        [Table("numbers", ("norm", *map(str, range(len(x))), "mean", "variance", "root mean square"), rows)],
        draw,
    )
