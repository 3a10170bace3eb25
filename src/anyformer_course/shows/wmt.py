"""Translation in 2017: published BLEU and training cost of the Transformer and its rivals, and the cost recomputed.

The published cost is the training time multiplied by the speed of the devices: 8 P100 at 9.5e12 FLOPs per second. Our
count of the same training shows which share of that speed was used.
"""

from __future__ import annotations

from typing import Any

from anyformer.look.figures import new
from anyformer_course.pictures.points import name_points
from anyformer_course.shown import Shown, Table

# published [Vaswani et al. 2017, table 2]: BLEU en-de, BLEU en-fr, FLOPs en-de, FLOPs en-fr
PUBLISHED = {
    "ByteNet": (23.75, None, None, None),
    "Deep-Att + PosUnk": (None, 39.2, None, 1.0e20),
    "GNMT + RL": (24.6, 39.92, 2.3e19, 1.4e20),
    "ConvS2S": (25.16, 40.46, 9.6e18, 1.5e20),
    "MoE": (26.03, 40.56, 2.0e19, 1.2e20),
    "Deep-Att + PosUnk, ensemble": (None, 40.4, None, 8.0e20),
    "GNMT + RL, ensemble": (26.30, 41.16, 1.8e20, 1.1e21),
    "ConvS2S, ensemble": (26.36, 41.29, 7.7e19, 1.2e21),
    "Transformer base": (27.3, 38.1, 3.3e18, 3.3e18),
    "Transformer big": (28.4, 41.8, 2.3e19, 2.3e19),
}
DEVICES, SPEED = 8, 9.5e12  # P100, single precision, as the paper assumes
TRAINING = {"transformer-base": (100_000, 12), "transformer-big": (300_000, 84)}  # steps, hours
TOKENS = 25_000  # source tokens and target tokens per step


def example(*, length: int = 30) -> Shown:
    """Recompute the cost for sentences of `length` tokens."""
    import anyformer as af

    if not 1 <= length <= 512:
        raise ValueError(f"length is {length}; it must be from 1 to 512")
    rows = []
    for name, (steps, hours) in TRAINING.items():
        counted = af.count(af.spec(name))
        flops = counted.training_flops(length, source_length=length) / length * steps * TOKENS
        available = DEVICES * SPEED * hours * 3600
        rows.append([name, counted.parameters, steps * TOKENS, available, flops, flops / available])

    scores = {name: row for name, row in PUBLISHED.items() if row[0] is not None}
    big = scores["Transformer big"]
    rival = max((row for name, row in scores.items() if not name.startswith("Transformer")), key=lambda row: row[0])

    def draw() -> Any:
        figure, axes = new(2, 1, 12, 4.5, sharey=False)
        for axis, (title, score, cost) in zip(axes[0], (("English to German", 0, 2), ("English to French", 1, 3))):
            points = [(name, row[cost], row[score]) for name, row in PUBLISHED.items() if row[score] and row[cost]]
            for name, x, y in points:
                axis.scatter(x, y, color="C3" if name.startswith("Transf") else "C0")
            axis.set(xscale="log", title=title, xlabel="training FLOPs, published", ylabel="BLEU")
            axis.margins(x=0.25)
            axis.grid(alpha=0.3)
            name_points(axis, points)
        return figure

    return Shown(
        f"English to German, the big Transformer has {big[0]} BLEU, the best rival {rival[0]} with "
        f"{rival[2] / big[2]:.1f} times its FLOPs. Of the published FLOPs of the base model, "
        f"{PUBLISHED['Transformer base'][2]:.2g}, our count of the training needs {rows[0][-1]:.0%}.",
        [
            Table("published", ("model", "BLEU en-de", "BLEU en-fr", "FLOPs en-de", "FLOPs en-fr"),
                  [[name, *row] for name, row in PUBLISHED.items()]),
            Table("recomputed", ("model", "parameters", "target tokens", "8 P100 x hours, FLOPs", "training, our count",
                                 "share used"), rows),
        ],
        draw,
    )  # fmt: skip
