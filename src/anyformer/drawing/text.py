"""How wide text is, without a font at hand: widths that no usual sans-serif font exceeds."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

# in ems, rounded up from DejaVu Sans, the widest of the fonts that a browser is asked for
CLASSES = {
    0.3: "'IJijl", 0.35: " \xa0,./:;\\|·", 0.4: "()-[]ft", 0.45: "!r", 0.5: '"*_`–', 0.55: "?csz", 0.6: "FLkvxy",
    0.65: "$0123456789EPSTYabdeghnopqu{}", 0.7: "ABCKRVXZ", 0.75: "NU", 0.8: "&DGHOQ", 0.85: "#+<=>^w~×→", 0.9: "M",
}  # fmt: skip
WIDTHS = {letter: width for width, letters in CLASSES.items() for letter in letters}
BOLD = 1.2  # of a bold letter to a plain one


def width(text: str, size: float, bold: bool = False) -> float:
    """At most so many pixels."""
    return sum(map(_ems, text)) * size * (BOLD if bold else 1)


def _ems(letter: str) -> float:
    known = WIDTHS.get(letter)
    return known if known is not None else 1.1 if unicodedata.east_asian_width(letter) in "WF" else 1.0


def wrapped(phrases: Sequence[str], room: float, size: float, between: str = " · ") -> list[list[str]]:
    """Lines of phrases, as many in each as there is room for; one that is too long by itself is broken at its spaces,
    and where it has none, anywhere."""
    lines: list[list[str]] = []
    for piece in (piece for phrase in phrases for piece in broken(phrase, room, size)):
        if lines and width(between.join([*lines[-1], piece]), size) <= room:
            lines[-1].append(piece)
        else:
            lines.append([piece])
    return lines


def broken(phrase: str, room: float, size: float) -> list[str]:
    """A phrase in pieces that fit."""
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
