"""Two pictures side by side, with differences marked."""

from __future__ import annotations

from anyformer.drawing.compose import draw_outline
from anyformer.drawing.figure import Figure, FigureText, place_in_row
from anyformer.drawing.outline import Card, ModelOutline, mark_differences, step_positions


def side_by_side(left: ModelOutline, right: ModelOutline) -> Figure:
    """Both pictures, each marked where it differs from the other at the same place."""
    steps = {**step_positions(left), **step_positions(right)}
    single = not (left.pair or right.pair)

    def place(card: Card) -> str:
        """The address without the layer index; encoders and decoders are compared with each other."""
        root, _, rest = card.address.partition(".")
        stack = "stack" if single and root in ("encoder", "decoder") else root
        return f"{stack}.{steps.get(card.address, rest)}"

    figures = [draw_outline(mark_differences(left, right, place)), draw_outline(mark_differences(right, left, place))]
    tall = max(figure.height for figure in figures)
    return legend(
        place_in_row([figure.pad(bottom=tall - figure.height) for figure in figures], 90)
    )  # titles in one line


def legend(figure: Figure) -> Figure:
    words = FigureText(0, figure.height + 34, (("marked: differs from the other model", "differs"),))
    return figure.pad(bottom=44).add_marks(words)
