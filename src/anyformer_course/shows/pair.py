"""BERT's input for one text or two: tokens, ids, segments, positions and padding."""

from __future__ import annotations

from typing import Any

from anyformer.look.figures import new, plain
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._pieces import encode, tokenizer

DRAWN = 24  # tokens in the picture


def example(text: str = "i like dogs", second: str = "she likes birds", *, length: int | None = None) -> Shown:
    """Encode `text` and `second` ("" for one text), padded or truncated to `length` tokens."""
    pieces = tokenizer(text, *([second] if second else []))
    if length is not None and length < 5:
        raise ValueError(f"length is {length}; two texts with [CLS] and two [SEP] need at least 5")
    ids, segments, mask = (values[0].tolist() for values in encode(pieces, text, second, length).values())
    tokens = [pieces.token(i) for i in ids]
    rows = [list(row) for row in zip(range(len(ids)), tokens, ids, segments, mask, strict=True)]

    def draw() -> Any:
        drawn = tokens[:DRAWN]
        figure, axes = new(1, 1, 1.5 + 0.75 * len(drawn), 2.4)
        axis = axes[0, 0]
        lines = (("token", drawn), ("segment", segments), ("position", range(len(drawn))))
        for y, (label, cells) in enumerate(lines):
            axis.text(-0.7, -y, label, ha="right", va="center", fontsize=9)
            for x, cell in zip(range(len(drawn)), cells, strict=False):
                shade = "0.85" if not mask[x] else ("#cfe3f5", "#fbe0c4")[segments[x]]
                box = {"facecolor": shade, "edgecolor": "0.5", "boxstyle": "round"}
                axis.text(x, -y, plain(str(cell)), ha="center", va="center", fontsize=8, bbox=box)
        axis.set_xlim(-1.6, len(drawn) - 0.3)
        axis.set_ylim(-2.6, 0.6)
        axis.set_axis_off()
        return figure

    special = sum(token in ("[CLS]", "[SEP]") for token in tokens)
    pads = mask.count(0)
    return Shown(
        f"{len(ids) - special - pads} pieces and {special} special tokens"
        + (f" and {pads} of padding" if pads else "")
        + f": segment 0 has {sum(m and not s for m, s in zip(mask, segments, strict=True))} tokens,"
        f" segment 1 has {sum(segments)}",
        [Table("BERT's input", ("position", "token", "id", "segment", "attention mask"), rows)],
        draw,
    )
