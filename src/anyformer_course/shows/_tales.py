"""A small GPT that knows a few fairy tales and the reader's own text."""

from __future__ import annotations

from anyformer_course.shows._trained import SmallModel, spell, train
from anyformer_course.words import split

TALES = "\n".join(
    (
        "once upon a time in a world where magic flowed as freely as the rivers",
        "once upon a time in a world where magic was rare there lived a king",
        "once upon a time there lived a king and a queen",
        "once upon a time there lived a poor wizard",
        "the king lived in a tower by the rivers",
        "the wizard knew a word of magic",
        "the queen knew a time where magic was rare",
        "magic flowed through the tower as freely as a word",
    )
)


def train_on_tales(text: str, limit: int = 20) -> tuple[SmallModel, list[str]]:
    """Train on the tales and on `text`, so that the model knows all its words; return the model and the words."""
    known = {word for line in TALES.splitlines() for word in line.split()}
    words = split(" ".join(spell(text, known)), limit)
    return train("gpt", TALES if {*words} <= known else f"{TALES}\n{' '.join(words)}"), words
