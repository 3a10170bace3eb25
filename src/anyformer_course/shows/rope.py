"""RoPE: words as arrows that rotate with their position; scores depend on the distance only.

The same words are read at the start of a text and again after other words. Each pair of channels rotates by an angle
that is proportional to the position, so all arrows turn by the same extra angle and their products do not change.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from anyformer.look.figures import new
from anyformer.specs.field_types import Positive
from anyformer.specs.messages import amount
from anyformer_course.shown import Shown, Table
from anyformer_course.table import tiny
from anyformer_course.words import label_rows, split, vectors


def example(
    text: str = "we know that", *, before: str = "of course", width: int = 2, base: Positive = 10000.0, seed: int = 0
) -> Shown:
    """Rotate the words of `text` to their positions, alone and after the words `before`. `width`: channels, even."""
    from anyformer.parts.position.rotary import Rope, RopeModule, frequencies
    from anyformer.runtime.context import Context

    if width < 2 or width % 2:
        raise ValueError(f"width is {width}; it must be even, because channels rotate in pairs")
    words, x = vectors(text, width, seed)  # (T, K)
    skipped = len(split(before)) if before else 0
    rope = RopeModule(Rope(base=base, interleaved=True), width)

    def rotate_from(first: int) -> torch.Tensor:
        index = torch.arange(first, first + len(words))
        return rope.rotate(x[None, None], x[None, None], Context(index=index, positions=index[None]))[0][0, 0]

    alone, later = rotate_from(0), rotate_from(skipped)
    scores, moved = alone @ alone.T, later @ later.T
    change = float((scores - moved).abs().max())
    turns = frequencies(width, base)  # radians per position, one per pair

    def draw() -> Any:
        figure, axes = new(3 + (width > 2), 1, 13 if width == 2 else 16, 4)
        longest = float(x[:, :2].norm(dim=1).max()) * 1.1
        texts = (
            ("without positions", x, None),
            ("at the start", alone, 0),
            (f"after {amount(skipped, 'word')}", later, skipped),
        )
        for axis, (title, arrows, first) in zip(axes[0], texts):
            for i, word in enumerate(words):
                a, b = arrows[i, :2].tolist()
                axis.annotate("", (a, b), (0, 0), arrowprops={"arrowstyle": "->", "color": f"C{i}", "lw": 2})
                axis.text(a, b, word if first is None else f"{word} ({first + i})", color=f"C{i}")
            axis.set(xlim=(-longest, longest), ylim=(-longest, longest), aspect="equal", title=title)
            axis.grid(alpha=0.3)
        if width > 2:
            shown = sorted({round(i * (len(turns) - 1) / 3) for i in range(4)})  # at most four pairs
            for i in shown:
                axes[0, 3].plot(torch.cos(torch.arange(33) * turns[i]), label=f"pair {i}")
            axes[0, 3].set(xlabel="position", title="cosine of the angle of each pair")
            axes[0, 3].legend(loc="lower left", fontsize=8)
        figure.suptitle(
            "the first pair of channels; the angles between words are equal at the start and after more words",
            fontsize=10,
        )
        return figure

    names = [str(i) for i in range(width)]
    return Shown(
        f"{amount(skipped, 'word')} before the text rotate every word by "
        f"{math.degrees(skipped * float(turns[0])) % 360:.1f} "
        f"degrees (first pair); the scores change by at most {tiny(change)}.",
        [
            Table("vectors", ("word", *names), [[w, *row] for w, row in zip(words, x.tolist(), strict=True)]),
            Table("rotated", ("word", "position", *names), [
                [word, first + i, *arrows[i].tolist()]
                for first, arrows in ((0, alone), (skipped, later)) for i, word in enumerate(words)]),
            Table("scores: at the start", ("word", *words), label_rows(words, scores)),
            Table(f"scores: after {amount(skipped, 'word')}", ("word", *words), label_rows(words, moved)),
            Table("pairs of channels", ("pair", "degrees per position", "positions per full turn"), [
                [i, math.degrees(turn), 2 * math.pi / turn] for i, turn in enumerate(turns.tolist())]),
        ],
        draw,
    )  # fmt: skip
