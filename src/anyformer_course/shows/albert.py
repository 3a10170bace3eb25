"""ALBERT's two savings, counted: embeddings V x E + E x H instead of V x H, and one layer used 12 times."""

from __future__ import annotations

from typing import Any

import anyformer as af
from anyformer.look.figures import new
from anyformer.specs.messages import quote
from anyformer_course.shown import Shown, Table


def example(name: str = "albert-base", *, widths: str = "64 128 256 768") -> Shown:
    """Count the description with and without each saving, and the embedding for each E in `widths`."""
    spec: Any = af.spec(name)
    if spec.family != "albert":
        raise ValueError(f"{name} is not an ALBERT; take albert-base, albert-large, albert-xlarge or albert-xxlarge")
    depth = len(spec.encoder.order)
    plain = {"embedding.tokens.width": None, "head.lm.transform.width": None}
    layers = {"encoder.order": None, "encoder.depth": depth}
    variants: dict[str, dict[str, Any]] = {
        "as published": {}, "without the factorised embedding": plain, "without sharing": layers,
        "without both": {**plain, **layers},
    }  # fmt: skip
    rows = []
    for variant, changes in variants.items():
        count = af.count(af.override(spec, changes))
        table = count.table(1)
        rows.append([variant, count.parameters, table["embedding"], table["encoder"], count.flops(128)])
    V, H = spec.embedding.tokens.vocab_size, spec.width
    if not all(each.isdecimal() and int(each) for each in widths.split()):
        raise ValueError(f"widths is {quote(widths)}; give whole numbers from 1, such as '64 128'")
    sizes = [[E, V * H, V * E + E * H, V * H / (V * E + E * H)] for E in map(int, widths.split())]

    def draw() -> Any:
        figure, axes = new(1, 1, 7, 3)
        names, bottom = [row[0] for row in rows], [0.0] * len(rows)
        for column, label in ((2, "embedding"), (3, "layers")):
            values = [row[column] / 1e6 for row in rows]
            axes[0, 0].barh(names[::-1], values[::-1], left=bottom[::-1], label=label)
            bottom = [b + v for b, v in zip(bottom, values, strict=True)]
        axes[0, 0].set_xlabel("million parameters")
        axes[0, 0].legend(fontsize=8)
        return figure

    return Shown(
        f"{name}: {rows[0][1]:,} parameters; without both savings {rows[-1][1]:,}, "
        f"with {'the same' if rows[0][4] == rows[2][4] else 'different'} FLOPs if only sharing is removed",
        [
            Table("parameters", ("variant", "all", "embedding", "layers", "FLOPs of 128 tokens"), rows),
            Table(f"embedding, V = {V:,}, H = {H:,}", ("E", "V H", "V E + E H", "times smaller"), sizes),
        ],
        draw,
    )
