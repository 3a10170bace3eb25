"""ViT and ResNet by pretraining data: published accuracy on ImageNet after 1.3, 14 and 303 million pictures.

Accuracies are published [Dosovitskiy et al. 2020, table 5; Kolesnikov et al. 2019 for the ResNet-152x4 of BiT]; the
parameters of the ViTs are counted.
"""

from __future__ import annotations

from typing import Any

import anyformer as af
from anyformer.look.figures import new
from anyformer.specs.messages import nearest, quote
from anyformer_course.shown import Shown, Table

PICTURES = {"ImageNet": 1.28e6, "ImageNet-21k": 14.2e6, "JFT-300M": 303e6}
ACCURACY = {
    "vit-b32": (73.38, 81.28, 80.73), "vit-b16": (77.91, 83.97, 84.15), "vit-l32": (71.16, 80.99, 84.37),
    "vit-l16": (76.53, 85.15, 87.12), "vit-h14": (None, 85.13, 88.04), "resnet-152x4": (81.30, 85.39, 87.54),
}  # fmt: skip
RESNET = "resnet-152x4"


def example(names: str = "vit-b16 vit-l16 vit-h14") -> Shown:
    """Compare the named ViTs with BiT's largest ResNet."""
    if unknown := next((name for name in names.split() if name not in ACCURACY), None):
        raise ValueError(f"no published accuracy of {quote(unknown)}; {nearest(unknown, ACCURACY)}")
    if not names.split():
        raise ValueError(f"name at least one of {', '.join(name for name in ACCURACY if name != RESNET)}")
    chosen = list(dict.fromkeys([*names.split(), RESNET]))
    rows = []
    for name in chosen:
        counted = None if name == RESNET else af.count(af.spec(name)).parameters
        rows.append([name, counted or 937e6, "published" if counted is None else "counted", *ACCURACY[name]])
    lead = [max((ACCURACY[name][i] or 0) - ACCURACY[RESNET][i] for name in names.split()) for i in range(3)]

    def draw() -> Any:
        figure, axes = new(1, 1, 7, 3.8)
        for name in chosen:
            points = [(n, a) for n, a in zip(PICTURES.values(), ACCURACY[name], strict=True) if a]
            axes[0, 0].plot(*zip(*points), "k--s" if name == RESNET else "o-", label=name)
        axes[0, 0].set(xscale="log", xlabel="pictures in pretraining", ylabel="accuracy on ImageNet, %")
        axes[0, 0].legend(frameon=False, fontsize=9)
        return figure

    return Shown(
        "The best of these ViTs is "
        + ", ".join(
            f"{abs(d):.2f} points {'ahead' if d > 0 else 'behind'} after {name}" for d, name in zip(lead, PICTURES)
        )
        + ".",
        [
            Table("accuracy on ImageNet in %, published", ("model", "parameters", "parameters are", *PICTURES), rows),
            Table("pictures", ("data", "pictures"), list(PICTURES.items())),
        ],
        draw,
    )
