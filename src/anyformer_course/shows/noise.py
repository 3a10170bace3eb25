"""BART's noise: five ways to damage your text, which the decoder writes again."""

from __future__ import annotations

from typing import Any

import numpy as np

from anyformer.look.figures import new, plain
from anyformer.specs.messages import amount, shorten
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._pieces import tokenizer

TEXT = "the dog found an old bone . he ran to the river . a bird sang in the tree ."


def example(text: str = TEXT, *, rate: float = 0.3, seed: int = 0) -> Shown:
    """Apply each noise to the text; `rate` is the share of masked or deleted tokens."""
    from anyformer.objectives.denoise import (
        DocumentRotation,
        SentencePermutation,
        TextInfilling,
        TokenDeletion,
        TokenMasking,
    )  # fmt: skip
    from anyformer.objectives.vocabulary_info import VocabularyInfo

    pieces = tokenizer(text)
    known = VocabularyInfo.from_tokenizer(pieces)
    ids = np.array(pieces.encode(text, add_special_tokens=False))
    ways: dict[str, list[Any]] = {
        "token masking": [TokenMasking(rate=rate)],
        "token deletion": [TokenDeletion(rate=rate)],
        "text infilling": [TextInfilling(rate=rate)],
        "sentence permutation": [SentencePermutation()],
        "document rotation": [DocumentRotation()],
        "BART: permutation, then infilling": [SentencePermutation(), TextInfilling(rate=rate)],
    }
    mask = pieces.id("[MASK]")
    rows: list[list[Any]] = [["the text", len(ids), 0, words(pieces, ids)]]
    for way, noises in ways.items():
        damaged, rng = ids, np.random.default_rng(seed)
        for each in noises:
            damaged = each.damage(damaged, rng, known)
        rows.append([way, len(damaged), int((damaged == mask).sum()), words(pieces, damaged)])

    def draw() -> Any:
        figure, axes = new(1, 1, 9.5, 0.3 + 0.36 * len(rows))
        for y, (way, _, _, line) in enumerate(rows):
            axes[0, 0].text(0, -y, way, ha="right", va="center", fontsize=9)
            axes[0, 0].text(0.1, -y, plain(shorten(line.replace("[MASK]", "\u2587"), 90)), va="center", fontsize=9)
        axes[0, 0].set_xlim(-2.2, 5.2)
        axes[0, 0].set_ylim(0.6 - len(rows), 0.6)
        axes[0, 0].set_axis_off()
        return figure

    _, kept, masks, _ = rows[3]
    return Shown(
        f"infilling replaces {amount(len(ids) - kept + masks, 'token')} with {amount(masks, 'mask')}, so the "
        f"encoder reads {kept} instead of {amount(len(ids), 'token')}; the decoder must find out how many are missing",
        [Table("what the encoder reads", ("noise", "tokens", "masks", "text"), rows)],
        draw,
    )


def words(pieces: Any, ids: Any) -> str:
    return " ".join(pieces.token(int(i)) for i in ids).replace(" ##", "")
