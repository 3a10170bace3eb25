"""Static and dynamic masking: how many tokens of your text are predicted at least once after some epochs."""

from __future__ import annotations

from typing import Any

import numpy as np

from anyformer.look.figures import new
from anyformer.specs.field_types import Count
from anyformer.specs.messages import amount
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._pieces import tokenizer

TEXT = "the dog barked at the cat and the bird sang in the old tree by the river while the sun was warm"


def example(text: str = TEXT, *, rate: float = 0.15, epochs: Count = 40, seed: int = 0) -> Shown:
    """Mask the text once per epoch: one fixed masking, BERT's 10 fixed maskings, or a new masking each time."""
    from anyformer.objectives.masked import Masked

    pieces = tokenizer(text)
    ways = {"static, 1 copy": 1, "static, 10 copies (BERT)": 10, "dynamic (RoBERTa)": None}
    ids = np.array(pieces.encode(text))
    words = len(ids) - 2  # without [CLS] and [SEP]
    curves: dict[str, list[float]] = {}
    maskings: dict[str, int] = {}
    for way, copies in ways.items():
        objective = Masked(rate=rate, length=max(3, len(ids)), copies=copies).ready(pieces)
        rng = np.random.default_rng(seed)
        predicted: set[int] = set()
        kinds: set[tuple[int, ...]] = set()
        curves[way] = []
        for _ in range(epochs):
            places = objective.vary({"input_ids": ids}, rng)["places"].tolist()
            predicted.update(places)
            kinds.add(tuple(places))
            curves[way].append(len(predicted) / words)
        maskings[way] = len(kinds)
    steps = [step for step in (1, 5, 10, 20, 40, 80) if step <= epochs] or [epochs]
    rows = [[way, *(curve[step - 1] for step in steps), maskings[way]] for way, curve in curves.items()]

    def draw() -> Any:
        figure, axes = new(1, 1, 6, 3.5)
        for way, curve in curves.items():
            axes[0, 0].plot(range(1, epochs + 1), curve, label=way)
        axes[0, 0].set_xlabel("epoch")
        axes[0, 0].set_ylabel("tokens predicted at least once")
        axes[0, 0].set_ylim(0, 1.05)
        axes[0, 0].legend(fontsize=8)
        return figure

    shares = ", ".join(f"{way}: {curve[-1]:.0%}" for way, curve in curves.items())
    return Shown(
        f"tokens predicted at least once in {amount(epochs, 'epoch')}: {shares}",
        [Table("share of tokens predicted", ("masking", *(f"epoch {s}" for s in steps), "maskings"), rows)],
        draw,
    )
