"""Language-specific layers: each language has its own feed-forward weights in one layer, the rest is shared.

A token uses only the weights of its language, so the model grows with the number of languages and the cost per token
does not [Fan et al. 2020].
"""

from __future__ import annotations

from typing import Any

import anyformer as af
from anyformer.look.figures import new
from anyformer.parts import LanguageSpecific
from anyformer_course.shown import Shown, Table


def example(*languages: int, model: str = "m2m100-418m", layer: int = -1) -> Shown:
    """Count `model` with its own feed-forward weights per language (default: 1, 10 and 100) in a decoder layer."""
    numbers = languages or (1, 10, 100)
    if not all(1 <= number <= 1000 for number in numbers):
        raise ValueError("give numbers of languages from 1 to 1000")
    spec: Any = af.spec(model)
    if not spec.pair:
        raise ValueError(f"{model} is not an encoder-decoder")
    address = f"decoder.layers.{layer % spec.decoder.depth}.feedforward.op"
    op = spec.decoder.layers.steps["feedforward"].op
    rows: list[list[Any]] = []
    for number in numbers:
        changed = spec if number == 1 else af.override(
            spec, {address: LanguageSpecific(op=op, tokens=tuple(range(100, 100 + number)))})  # fmt: skip
        counted = af.count(changed)
        rows.append([number, counted.parameters, counted.active, counted.parameters / rows[0][1] if rows else 1.0])

    def draw() -> Any:
        figure, axes = new(1, 1, 7, 3.6)
        for i, (title, column) in enumerate((("all parameters", 1), ("used by a token", 2))):
            axes[0, 0].bar([x + 0.4 * i for x in range(len(rows))], [row[column] for row in rows], 0.4, label=title)
        axes[0, 0].set_xticks([x + 0.2 for x in range(len(rows))], [f"{row[0]} languages" for row in rows])
        axes[0, 0].set_title(f"{model}: parameters")
        axes[0, 0].legend()
        return figure

    return Shown(
        f"with {rows[-1][0]} languages {model} has {rows[-1][1]:,} parameters, of which a token uses {rows[-1][2]:,}.",
        [Table(f"{model}, one layer with separate weights per language ({address})",
               ("languages", "parameters", "used by a token", "over the first row"), rows)],
        draw,
    )  # fmt: skip
