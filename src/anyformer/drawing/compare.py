"""Two pictures side by side, with differences marked."""

from __future__ import annotations

from anyformer.drawing.compose import draw_outline
from anyformer.drawing.figure import Figure, FigureText, place_in_row
from anyformer.drawing.outline import Card, ModelOutline, mark_differences, step_positions


def side_by_side(left: ModelOutline, right: ModelOutline) -> Figure:
    """Draw both outlines. Each card is compared with the card at the same address of the other outline."""
    steps = {**step_positions(left), **step_positions(right)}
    single = not (left.pair or right.pair)

    def key(card: Card) -> str:
        """Return the address without the layer index. An encoder matches a decoder unless a model has both."""
        root, _, rest = card.address.partition(".")
        stack = "stack" if single and root in ("encoder", "decoder") else root
        return f"{stack}.{steps.get(card.address, rest)}"

    figures = [draw_outline(mark_differences(left, right, key)), draw_outline(mark_differences(right, left, key))]
    tall = max(figure.height for figure in figures)
    return legend(
        place_in_row([figure.pad(bottom=tall - figure.height) for figure in figures], 90)
    )  # equal heights put the titles on one line


def legend(figure: Figure) -> Figure:
    words = FigureText(0, figure.height + 34, (("marked: differs from the other model", "differs"),))
    return figure.pad(bottom=44).add_marks(words)
