"""Two pictures side by side, with what differs marked."""

from __future__ import annotations

from anyformer.drawing.compose import of_outline
from anyformer.drawing.figure import Figure, Words, beside
from anyformer.drawing.outline import Card, Outline, marked


def side_by_side(left: Outline, right: Outline) -> Figure:
    """Each marked where the other one has something else in the same place."""
    figures = [of_outline(marked(left, right, place)), of_outline(marked(right, left, place))]
    tall = max(figure.height for figure in figures)
    titles = [figure.padded(bottom=tall - figure.height) for figure in figures]  # titles in one line
    return legend(beside(titles, 90))


def legend(figure: Figure) -> Figure:
    words = Words(0, figure.height + 34, (("in this colour: what the other one does not have there", "differs"),))
    return figure.padded(bottom=44).having(words)


def place(card: Card) -> str:
    """Where a card stands, whatever the number of its layer and whether encoders or decoders are compared."""
    names = [name for name in card.address.split(".") if not name.isdecimal()]
    if names[0] in ("encoder", "decoder"):
        names[0] = "stack"
    return ".".join(names)
