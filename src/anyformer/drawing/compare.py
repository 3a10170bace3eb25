"""Two pictures side by side, with what differs marked."""

from __future__ import annotations

from anyformer.drawing.compose import of_outline
from anyformer.drawing.figure import Figure, Words, beside
from anyformer.drawing.outline import Card, Outline, in_steps, marked


def side_by_side(left: Outline, right: Outline) -> Figure:
    """Each marked where the other one has something else in the same place."""
    steps = {**in_steps(left), **in_steps(right)}
    alone = not (left.pair or right.pair)

    def place(card: Card) -> str:
        """Whatever the number of the layer, and whether encoders or decoders are compared."""
        root, _, rest = card.address.partition(".")
        stack = "stack" if alone and root in ("encoder", "decoder") else root
        return f"{stack}.{steps.get(card.address, rest)}"

    figures = [of_outline(marked(left, right, place)), of_outline(marked(right, left, place))]
    tall = max(figure.height for figure in figures)
    return legend(beside([figure.padded(bottom=tall - figure.height) for figure in figures], 90))  # titles in one line


def legend(figure: Figure) -> Figure:
    words = Words(0, figure.height + 34, (("in this colour: what the other one does not have there", "differs"),))
    return figure.padded(bottom=44).having(words)
