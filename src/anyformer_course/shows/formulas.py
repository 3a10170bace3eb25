"""Textbook formulas for parameters and FLOPs of a description, compared with the exact counts.

d is the width, V the size of the vocabulary, n the number of tokens.
"""

from __future__ import annotations

from typing import Any

import anyformer as af
from anyformer.look.figures import new
from anyformer_course.formulas import Formula, parameter_formulas, token_formulas
from anyformer_course.shown import Shown, Table


def example(name: str = "gpt2", *, length: int = 1024, causal: bool = False) -> Shown:
    """Compare the formulas with the counts of a description of `anyformer zoo` that reads text."""
    counted = af.count(af.spec(name))
    assert counted.spec is not None
    if "input_ids" not in dict(counted.spec.items())["embedding"].inputs:
        raise ValueError(f"{name} does not read text; the formulas are about models of text")
    parameters, tokens = parameter_formulas(counted), token_formulas(counted, length, causal)

    def draw() -> Any:
        figure, axes = new(2, 1, 11, 4)
        for axis, formulas, title in zip(axes[0], (parameters, tokens), ("parameters", "FLOPs per token"), strict=True):
            for i, kind in enumerate(("formula", "exact")):
                values = [row.lecture if kind == "formula" else row.exact for row in formulas]
                axis.barh([y + 0.4 * i for y in range(len(values))], values, 0.4, label=kind)
            axis.set_yticks([y + 0.2 for y in range(len(formulas))], [row.about for row in formulas], fontsize=8)
            axis.set_title(f"{name}: {title}", fontsize=9)
            axis.invert_yaxis()
            axis.legend(fontsize=8)
        return figure

    total = parameters[-1]
    return Shown(
        f"{name} has {total.exact:,} parameters; the formulas give {total.lecture:,}.",
        [
            table("parameters; formulas of a layer, times the number of layers", parameters),
            table(f"FLOPs per token in a text of {length:,} tokens, in all layers", tokens),
        ],
        draw,
    )


def table(title: str, formulas: list[Formula]) -> Table:
    rows = [(row.about, row.formula, row.lecture, row.exact, row.ratio if row.lecture else None) for row in formulas]
    return Table(title, ("of", "formula", "gives", "exact", "exact / formula"), rows)
