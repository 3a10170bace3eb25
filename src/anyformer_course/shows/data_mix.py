"""GPT-3's training data: how often each part is read, computed from its size and its weight in the mix."""

from __future__ import annotations

from typing import Any

from anyformer.look.figures import new
from anyformer_course.shown import Shown, Table

# as printed [Brown et al. 2020, table 2.2]: tokens, weight in the mix, epochs at 300 billion tokens
PUBLISHED = {
    "Common Crawl (filtered)": (410e9, 0.60, 0.44),
    "WebText2": (19e9, 0.22, 2.9),
    "Books1": (12e9, 0.08, 1.9),
    "Books2": (55e9, 0.08, 0.43),
    "Wikipedia": (3e9, 0.03, 3.4),
}


def example(tokens: float = 300e9) -> Shown:
    """Compute epochs = weight x `tokens` / size for each part."""
    if tokens <= 0:
        raise ValueError(f"tokens is {tokens:g}; it must be positive")
    size, weight = sum(each[0] for each in PUBLISHED.values()), sum(each[1] for each in PUBLISHED.values())
    rows: list[list[Any]] = [
        [name, own / 1e9, share, own / size, share * tokens / 1e9, share * tokens / own, epochs * tokens / 300e9]
        for name, (own, share, epochs) in PUBLISHED.items()
    ]
    most = max(rows, key=lambda row: abs(row[5] / row[6] - 1))

    def draw() -> Any:
        figure, axes = new(2, 1, 11, 3.6)
        for axis, first, second, names in (
            (axes[0, 0], 2, 3, ("weight in the mix", "share of all data")),
            (axes[0, 1], 5, 6, ("epochs, computed", "epochs, published")),
        ):
            for i, (column, label) in enumerate(zip((first, second), names, strict=True)):
                axis.barh([y + 0.4 * i for y in range(len(rows))], [row[column] for row in rows], 0.4, label=label)
            axis.set_yticks([y + 0.2 for y in range(len(rows))], [row[0] for row in rows], fontsize=8)
            axis.invert_yaxis()
            axis.legend(fontsize=8)
        return figure

    return Shown(
        f"of {size / 1e9:.0f} billion tokens, Common Crawl is {100 * rows[0][3]:.0f} % of the data "
        f"but {100 * rows[0][2]:.0f} % of what is read; the printed weights add up to {100 * weight:.0f} %, and "
        f"for {most[0]} {most[5]:.2f} epochs follow from them, not {most[6]:.2f}.",
        [Table(f"published figures, and what follows from them for {tokens / 1e9:g} billion tokens",
               ("part", "10^9 tokens", "weight", "share", "10^9 read",
                "epochs", "published epochs"), rows)],
        draw,
    )  # fmt: skip
