"""Windows and pixels: the cost of larger images for a ViT, whose patches all attend to each other, and for a Swin.

Both have four layers of width 96 on patches of 4 x 4 pixels; the Swin has windows of 7 x 7 and halves the grid after
two layers (the first half of Swin-T). Operations and the peak memory in bytes are counted on the meta device
(`lab/forward_cost.py`), so they do not depend on other work of the machine or on a seed. Attention is counted as
one kernel; its memory is also counted with the scores stored. An exponent is the slope of the logarithms over patches
between the two largest images: 1 is linear, 2 quadratic. Processor time is measured on smaller images, but not judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from anyformer import families
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.trials import Place, Row, TrialGrid, Values
from anyformer.look import figures
from anyformer.models import Model
from anyformer.models.construct import build
from anyformer_course.experiments.efficient_attention import exponent
from anyformer_course.lab.forward_cost import forward_cost
from anyformer_course.lab.runs import processor_seconds

CLAIM = (
    "with the number of patches the operations of a ViT grow with an exponent of at least 1.9, of a Swin with at most "
    "1.05, and so does memory if scores are stored; if they are not, the memory of both is linear (at most 1.05); at "
    "every size the Swin takes fewer operations"
)
FORMS = {
    "tiny": Form(0.1, 0.1, {"sides": [56, 112], "timed": 56}),
    "small": Form(1, 0.5, {"sides": [112 * 2**n for n in range(5)], "timed": 448}),
    "full": Form(8, 1, {"sides": [112 * 2**n for n in range(6)], "timed": 896}),
}
PATCH, WIDTH, HEADS, WINDOW = 4, 96, 3, 7


def vit(side: int) -> Model:
    shape = {"hidden_size": WIDTH, "num_hidden_layers": 4, "num_attention_heads": HEADS, "intermediate_size": 4 * WIDTH}
    config = {"architectures": ["ViTModel"], "image_size": side, "patch_size": PATCH, **shape}
    return families.find("vit").read(config)


def swin(side: int) -> Model:
    shape = {"embed_dim": WIDTH, "depths": [2, 2], "num_heads": [HEADS, 2 * HEADS], "window_size": WINDOW}
    config = {"architectures": ["SwinModel"], "image_size": side, "patch_size": PATCH, **shape}
    return families.find("swin").read(config)


MODELS: dict[str, Callable[[int], Model]] = {"vit": vit, "swin": swin}
COSTS = {"flops": "operations", "bytes": "memory", "bytes with scores": "memory with scores stored"}
trials = TrialGrid(
    "{model}-{side}",
    model=MODELS,
    side="sides",
    derive=lambda each: {"tokens": (each["side"] // PATCH) ** 2, "timed": each["side"] <= each["timed"]},
)


def work(values: Values, place: Place) -> list[Row]:
    side = values["side"]
    spec = MODELS[values["model"]](side)
    cost, scores = (forward_cost(spec, values["tokens"], fused=fused) for fused in (True, False))
    row: Row = {"flops": cost.flops, "bytes": cost.bytes, "bytes with scores": scores.bytes}
    if values["timed"]:
        model = build(spec, seed=0).to(place.device).eval()
        image = torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(0)).to(place.device)
        with torch.no_grad():
            row["seconds"] = processor_seconds(lambda: model(image), place.device, times=1)
    return [row]


# -- results ----------------------------------------------------------------------------------------------------------


def claim(rows: Sequence[Row]) -> Verdict:
    exponents = {(name, field): exponent(rows, name, field) for name in MODELS for field in (*COSTS, "seconds")}
    square = min(exponents["vit", "flops"], exponents["vit", "bytes with scores"])
    linear = max(*(exponents["swin", field] for field in COSTS), exponents["vit", "bytes"])
    operations = {(row["model"], row["side"]): row["flops"] for row in rows}
    ratios = {side: operations["vit", side] / flops for (name, side), flops in operations.items() if name == "swin"}
    names = {**COSTS, "seconds": "time"}
    return Verdict(
        square >= 1.9 and linear <= 1.05 and min(ratios.values()) > 1,
        {
            **{f"exponent of {names[field]}, {name}": e for (name, field), e in exponents.items() if not math.isnan(e)},
            **{f"operations of the ViT / of the Swin, {side} x {side}": ratio for side, ratio in ratios.items()},
        },
    )


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(3, 1, 15, 4.5)
    drawn = (("flops",), ("bytes", "bytes with scores"), ("seconds",))
    titles = ("operations of a pass", "peak memory of a pass, bytes", "processor time (s)")
    for axis, fields, title in zip(axes[0], drawn, titles, strict=True):
        for number, name in enumerate(MODELS):
            for field, line in zip(fields, ("-", "--")):
                points = [(row["tokens"], row[field]) for row in rows if row["model"] == name and row.get(field)]
                label = f"{name}, scores stored" if field == "bytes with scores" else name
                axis.loglog(*zip(*points), line, marker="o", markersize=3, color=f"C{number}", label=label)
        axis.set(xlabel="patches", title=title)
        axis.legend(frameon=False, fontsize=8)
        axis.grid(alpha=0.3)
    return figure
