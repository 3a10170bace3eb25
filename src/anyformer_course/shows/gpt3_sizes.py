"""GPT-3's eight sizes: the published table, our counts, and whether heads times head width is the width."""

from __future__ import annotations

from typing import Any

from anyformer.look.figures import new
from anyformer_course.shown import Shown, Table

# as printed [Brown et al. 2020, table 2.1]: parameters, layers, width, heads, head width
PUBLISHED = {
    "small": (125e6, 12, 768, 12, 64),
    "medium": (350e6, 24, 1024, 16, 64),
    "large": (760e6, 24, 1536, 16, 96),
    "xl": (1.3e9, 24, 2048, 24, 128),
    "2.7b": (2.7e9, 32, 2560, 32, 80),
    "6.7b": (6.7e9, 32, 4096, 32, 128),
    "13b": (13.0e9, 40, 5140, 40, 128),
    "175b": (175.0e9, 96, 12288, 96, 128),
}

# as printed, in the same table: tokens of a batch, learning rate
TRAINING = {"small": (0.5e6, 6e-4), "medium": (0.5e6, 3e-4), "large": (0.5e6, 2.5e-4), "xl": (1e6, 2e-4),
            "2.7b": (1e6, 1.6e-4), "6.7b": (2e6, 1.2e-4), "13b": (2e6, 1e-4), "175b": (3.2e6, 0.6e-4)}  # fmt: skip
TOKENS = 300e9  # that each model reads


def example(*sizes: str) -> Shown:
    """Compare these `sizes` (default: all eight) with our descriptions."""
    import anyformer as af

    for size in sizes:
        if size not in PUBLISHED:
            raise ValueError(f"GPT-3 has no size {size!r}; use one of {', '.join(PUBLISHED)}")
    rows, ours = [], []
    for size in sizes or PUBLISHED:
        printed, layers, width, heads, head_width = PUBLISHED[size]
        spec: Any = af.spec(f"gpt3-{size}")
        op = spec.decoder.layers.steps["attention"].op
        counted = af.count(spec).parameters
        rows.append([size, printed, layers, width, heads, head_width, heads * head_width, heads * head_width == width])
        ours.append([size, counted, counted / printed, spec.decoder.depth, spec.width, op.num_heads,
                     op.head_width or spec.width // op.num_heads, 12 * layers * width**2])  # fmt: skip
    wrong = [row[0] for row in rows if not row[-1]]

    def draw() -> Any:
        figure, axes = new(1, 1, 7, 4)
        for name, values, style in (
            ("published", [row[1] for row in rows], "o"),
            ("our count", [row[1] for row in ours], "x"),
            ("12 layers width^2", [row[-1] for row in ours], "--"),
        ):
            axes[0, 0].semilogy([row[0] for row in rows], values, style, label=name)
        axes[0, 0].set(title="parameters of GPT-3's sizes")
        axes[0, 0].legend()
        axes[0, 0].grid(alpha=0.3)
        return figure

    return Shown(
        f"Heads times head width is the width in {len(rows) - len(wrong)} of {len(rows)} printed rows"
        + (f"; not for {' and '.join(wrong)}." if wrong else "."),
        [
            Table("as printed", ("size", "parameters", "layers", "width", "heads", "head width", "heads x head width",
                                 "equals the width"), rows),
            Table("our descriptions", ("size", "parameters", "over printed", "layers", "width", "heads", "head width",
                                       "12 layers width^2"), ours),
            Table("training, as printed; batches: 300 billion tokens divided by the tokens of a batch",
                  ("size", "tokens of a batch", "learning rate", "batches"),
                  [[row[0], *TRAINING[row[0]], round(TOKENS / TRAINING[row[0]][0])] for row in rows]),
        ],
        draw,
    )  # fmt: skip
