"""Estimate the width of text without a font: upper bounds for the usual sans-serif fonts."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

# width in ems -> letters; rounded up from DejaVu Sans, the widest font in svg.FONTS
CLASSES = {
    0.3: "'IJijl", 0.35: " \xa0,./:;\\|·", 0.4: "()-[]ft", 0.45: "!r", 0.5: '"*_`–', 0.55: "?csz", 0.6: "FLkvxy",
    0.65: "$0123456789EPSTYabdeghnopqu{}", 0.7: "ABCKRVXZ", 0.75: "NU", 0.8: "&DGHOQ", 0.85: "#+<=>^w~×→", 0.9: "M",
}  # fmt: skip
WIDTHS = {letter: width for width, letters in CLASSES.items() for letter in letters}
BOLD = 1.2  # width of a bold letter relative to a plain one


def width(text: str, size: float, bold: bool = False) -> float:
    """Return an upper bound of the width in pixels."""
    return sum(map(_ems, text)) * size * (BOLD if bold else 1)


def _ems(letter: str) -> float:
    known = WIDTHS.get(letter)
    return known if known is not None else 1.1 if unicodedata.east_asian_width(letter) in "WF" else 1.0


def wrap(phrases: Sequence[str], room: float, size: float, between: str = " · ") -> list[list[str]]:
    """Wrap phrases into lines. A phrase that is too long is broken at spaces, and a word that is too long anywhere."""
    lines: list[list[str]] = []
    for piece in (piece for phrase in phrases for piece in break_phrase(phrase, room, size)):
        if lines and width(between.join([*lines[-1], piece]), size) <= room:
            lines[-1].append(piece)
        else:
            lines.append([piece])
    return lines


def break_phrase(phrase: str, room: float, size: float) -> list[str]:
    """Break a phrase into pieces of at most `room` pixels."""
    pieces: list[str] = []
    room += 1e-6
    for word in phrase.split(" "):
        while len(word) > 1 and width(word, size) > room:
            end = next(end for end in range(len(word) - 1, 0, -1) if end == 1 or width(word[:end], size) <= room)
            pieces.append(word[:end])
            word = word[end:]
        if pieces and width(f"{pieces[-1]} {word}", size) <= room:
            pieces[-1] += f" {word}"
        else:
            pieces.append(word)
    return pieces
