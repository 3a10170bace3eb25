"""Spoken digits: 3,000 recordings of 6 speakers, joined into strings of digits by one speaker.

They are the Free Spoken Digit Dataset if {data}/speech_fsdd exists, otherwise synthesised (`anyformer fetch digits`).
"""

from __future__ import annotations

from anyformer.data import Held, JoinedRecordings, Recordings, Source, Where, Words
from anyformer.recipes.shared.folders import first_of

RATE = 8000
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SIZE = 12  # tokens: padding (also the blank), the unknown word, and the digits
HELD = 7  # of 50 recordings per digit and speaker, the first five are the official test set, the next two validation


def words() -> Words:
    return Words()


def recordings(data: str, least: int | None = None, most: int | None = None) -> Source:
    """Return the recordings with an index (per digit and speaker) from `least` to `most`."""
    every = Recordings(
        path=first_of(f"{data}/speech_fsdd/fsdd.npz", f"{data}/spoken_digits/digits.npz"),
        fields=("speaker", "index"),
        texts=DIGITS,
    )
    return Where(source=every, column="index", least=least, most=most)


def strings(source: Source, count: int, seed: int = 0) -> JoinedRecordings:
    return JoinedRecordings(source=source, count=count, least=3, most=8, alike="speaker", seed=seed)


def training_strings(data: str, count: int = 8000, one_in: int | None = None) -> Source:
    """Return `count` strings of the training recordings, or of one in `one_in` of them."""
    known = recordings(data, least=HELD)
    return strings(known if one_in is None else Held(source=known, one_in=one_in, out=True, stratify="label"), count)


def validation_strings(data: str) -> Source:
    """Return strings of the validation recordings."""
    return strings(recordings(data, least=5, most=HELD - 1), 200, seed=1)


def test_strings(data: str) -> Source:
    """Return strings of the official test recordings."""
    return strings(recordings(data, most=4), 1000, seed=2)
