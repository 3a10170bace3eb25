"""Drawn pictures with captions: coloured shapes, and emoji (faces, clocks, moons, arrows, shapes, flags).

A picture is (SIDE, SIDE, 3) bytes. A figure is a mask of FINER times the resolution; averaging makes its edges smooth.
Coordinates are -1 to 1; x points right, y down.
"""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

SIDE, FINER = 32, 4
COLOURS = {
    "red": (221, 46, 68), "orange": (244, 144, 12), "yellow": (253, 203, 88), "green": (120, 177, 89),
    "blue": (85, 172, 238), "purple": (170, 142, 214), "brown": (193, 105, 79), "black": (40, 40, 45),
    "white": (240, 240, 240),
}  # fmt: skip
BACK, DARK = (255, 255, 255), (60, 50, 40)
_line = (np.arange(SIDE * FINER) + 0.5) / (SIDE * FINER) * 2 - 1
Y, X = np.meshgrid(_line, _line, indexing="ij")
Mask = np.ndarray  # (SIDE * FINER, SIDE * FINER) of bool
Progress = Callable[[int, int], object]


class Canvas:
    """A picture of figures drawn on top of each other."""

    def __init__(self, back: tuple[int, int, int] = BACK) -> None:
        self.pixels = np.broadcast_to(np.asarray(back, np.float32), (*X.shape, 3)).copy()

    def fill(self, mask: Mask, colour: tuple[int, int, int]) -> Canvas:
        self.pixels[mask] = colour
        return self

    def picture(self) -> np.ndarray:
        blocks = self.pixels.reshape(SIDE, FINER, SIDE, FINER, 3).mean((1, 3))
        return np.rint(blocks).astype(np.uint8)


# -- figures: (x, y, size) -> mask -------------------------------------------------------------------------------------


def disc(x: float = 0, y: float = 0, size: float = 0.8, tall: float = 1.0) -> Mask:
    return (X - x) ** 2 + ((Y - y) / tall) ** 2 <= size**2


def box(x: float, y: float, wide: float, tall: float) -> Mask:
    return (np.abs(X - x) <= wide) & (np.abs(Y - y) <= tall)


def stroke(x0: float, y0: float, x1: float, y1: float, wide: float) -> Mask:
    """Return the points within `wide` of the line from (x0, y0) to (x1, y1)."""
    dx, dy = x1 - x0, y1 - y0
    along = np.clip(((X - x0) * dx + (Y - y0) * dy) / (dx * dx + dy * dy), 0, 1)
    return (X - x0 - along * dx) ** 2 + (Y - y0 - along * dy) ** 2 <= wide**2


def polar(x: float, y: float, size: float, turn: float, radius: Callable[[np.ndarray], np.ndarray]) -> Mask:
    """Return the points whose distance from (x, y) is at most size * radius(angle), with angle 0 at `turn` from up."""
    angle = np.arctan2(X - x, y - Y) - turn
    return np.hypot(X - x, Y - y) <= size * radius(angle)


def regular(corners: int) -> Callable[[float, float, float, float], Mask]:
    """Return a figure: a regular polygon with one corner up."""
    part = 2 * np.pi / corners

    def mask(x: float, y: float, size: float, turn: float) -> Mask:
        return polar(x, y, size, turn, lambda a: np.cos(part / 2) / np.cos(a % part - part / 2))

    return mask


def star(x: float, y: float, size: float, turn: float) -> Mask:
    half, inner = np.pi / 5, 0.42  # angle from a tip to the inner corner, and the radius of that corner

    def radius(angle: np.ndarray) -> np.ndarray:
        away = np.abs((angle + half) % (2 * half) - half)
        return inner * np.sin(half) / (inner * np.sin(half - away) + np.sin(away))

    return polar(x, y, size, turn, radius)


def heart(x: float, y: float, size: float, turn: float = 0.0) -> Mask:
    u, v = (X - x) / size * 1.2, (y - Y) / size * 1.2 + 0.1
    return (u * u + v * v - 0.7) ** 3 - u * u * v**3 <= 0


def cross(x: float, y: float, size: float, turn: float) -> Mask:
    u, v = np.cos(turn) * (X - x) + np.sin(turn) * (Y - y), np.cos(turn) * (Y - y) - np.sin(turn) * (X - x)
    thin, long = np.minimum(np.abs(u), np.abs(v)), np.maximum(np.abs(u), np.abs(v))
    return (thin <= 0.3 * size) & (long <= 0.9 * size)


SHAPES: dict[str, Callable[[float, float, float, float], Mask]] = {
    "circle": lambda x, y, size, turn: disc(x, y, 0.85 * size),
    "square": lambda x, y, size, turn: regular(4)(x, y, size, turn + np.pi / 4),
    "triangle": regular(3),
    "hexagon": regular(6),
    "star": star,
    "heart": heart,
    "cross": cross,
    "ring": lambda x, y, size, turn: disc(x, y, 0.9 * size) & ~disc(x, y, 0.5 * size),
}
SIZES = {"small": 0.3, "large": 0.6}
PLACES = {"left": (-0.35, 0.0), "right": (0.35, 0.0), "top": (0.0, -0.35), "bottom": (0.0, 0.35), "centre": (0.0, 0.0)}
PALETTE = tuple(name for name in COLOURS if name != "white")


def draw_shapes(
    count: int, seed: int = 0, progress: Progress = lambda done, total: None
) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Return pictures of one shape each, (count, SIDE, SIDE, 3), and their rows {"shape", "colour", ...}.
    One in eight pairs of shape and colour has "unseen" 1, to be held out; other pairs contain the same shapes and
    colours."""
    random, pictures, rows = np.random.default_rng(seed), [], []
    for number in range(count):
        shape, colour = int(random.integers(len(SHAPES))), int(random.integers(len(PALETTE)))
        size, place = str(random.choice(list(SIZES))), str(random.choice(list(PLACES)))
        x, y = np.asarray(PLACES[place]) + random.uniform(-0.06, 0.06, 2)
        shade = np.clip(np.asarray(COLOURS[PALETTE[colour]]) + random.uniform(-12, 12, 3), 0, 255)
        name = list(SHAPES)[shape]
        mask = SHAPES[name](x, y, SIZES[size] * random.uniform(0.9, 1.1), random.uniform(-0.2, 0.2))
        back = np.clip(245 + random.uniform(-10, 10, 3), 0, 255)
        pictures.append(Canvas(tuple(back)).fill(mask, tuple(shade)).picture())
        unseen = int((shape + colour) % len(SHAPES) == 0)
        rows.append({"shape": name, "colour": PALETTE[colour], "size": size, "place": place, "unseen": unseen})
        progress(number + 1, count)
    return np.stack(pictures), rows


# -- emoji -------------------------------------------------------------------------------------------------------------

SKIN = {"": "yellow", "cold ": "blue", "angry ": "red", "sick ": "green"}
EYES: dict[str, Callable[[float], Mask]] = {
    "": lambda x: disc(x, -0.2, 0.1, 1.4),
    "wide-eyed ": lambda x: disc(x, -0.2, 0.19) & ~disc(x, -0.2, 0.1),
    "sleeping ": lambda x: box(x, -0.15, 0.17, 0.04),
    "beaming ": lambda x: disc(x, -0.12, 0.18) & ~disc(x, -0.05, 0.16),
    "squinting ": lambda x: (
        stroke(x - 0.14 * np.sign(x), -0.2, x + 0.12 * np.sign(x), -0.3, 0.04)
        | stroke(x - 0.14 * np.sign(x), -0.2, x + 0.12 * np.sign(x), -0.1, 0.04)
    ),
    "winking ": lambda x: box(x, -0.18, 0.17, 0.04) if x > 0 else disc(x, -0.2, 0.1, 1.4),
    "love-struck ": lambda x: heart(x, -0.2, 0.24),
    "star-struck ": lambda x: star(x, -0.2, 0.26, 0.0),
    "dizzy ": lambda x: cross(x, -0.2, 0.2, np.pi / 4),
}
MOUTHS: dict[str, Callable[[], Mask]] = {
    "smiling face": lambda: disc(0, 0.15, 0.42) & ~disc(0, 0.02, 0.46),
    "frowning face": lambda: disc(0, 0.65, 0.42) & ~disc(0, 0.78, 0.46),
    "neutral face": lambda: box(0, 0.35, 0.3, 0.05),
    "surprised face": lambda: disc(0, 0.38, 0.16, 1.3),
    "grinning face": lambda: disc(0, 0.15, 0.45) & (Y > 0.15),
    "crying face": lambda: disc(0, 0.6, 0.4) & (Y < 0.55),
    "confused face": lambda: stroke(-0.25, 0.45, 0.25, 0.28, 0.05),
    "kissing face": lambda: disc(0.05, 0.28, 0.09) | disc(0.05, 0.44, 0.09),
}
EXTRAS: dict[str, Callable[[Canvas], object]] = {
    "": lambda canvas: None,
    " with hat": lambda canvas: canvas.fill(box(0, -0.7, 0.85, 0.07) | box(0, -0.86, 0.5, 0.2), COLOURS["black"]),
    " with glasses": lambda canvas: canvas.fill(
        (disc(-0.32, -0.2, 0.3) & ~disc(-0.32, -0.2, 0.23)) | (disc(0.32, -0.2, 0.3) & ~disc(0.32, -0.2, 0.23)), DARK
    ),
    " with tear": lambda canvas: canvas.fill(disc(-0.42, 0.2, 0.12, 1.5), (60, 120, 220)),
    " with halo": lambda canvas: canvas.fill(disc(0, -0.85, 0.5, 0.25) & ~disc(0, -0.85, 0.38, 0.2), (70, 190, 240)),
    " with bow": lambda canvas: canvas.fill(regular(3)(-0.2, -0.78, 0.25, np.pi / 2), COLOURS["purple"])
    .fill(regular(3)(0.2, -0.78, 0.25, -np.pi / 2), COLOURS["purple"]),
    " with blush": lambda canvas: canvas.fill(disc(-0.55, 0.15, 0.14) | disc(0.55, 0.15, 0.14), (245, 130, 130)),
}  # fmt: skip
HOURS = ("twelve", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven")
PHASES = ("new moon", "waxing crescent moon", "first quarter moon", "waxing gibbous moon", "full moon",
          "waning gibbous moon", "last quarter moon", "waning crescent moon")  # fmt: skip
ARROWS = ("up", "up-right", "right", "down-right", "down", "down-left", "left", "up-left")
FLAGS = {  # stripes: | upright, - level
    "France": "|blue white red", "Italy": "|green white red", "Ireland": "|green white orange",
    "Belgium": "|black yellow red", "Romania": "|blue yellow red", "Mali": "|green yellow red",
    "Guinea": "|red yellow green", "Nigeria": "|green white green", "Peru": "|red white red",
    "Ivory Coast": "|orange white green", "Germany": "-black red yellow",
    "Austria": "-red white red", "Netherlands": "-red white blue", "Russia": "-white blue red",
    "Hungary": "-red white green", "Bulgaria": "-white green red", "Estonia": "-blue black white",
    "Lithuania": "-yellow green red", "Armenia": "-red blue orange", "Yemen": "-red white black",
    "Sierra Leone": "-green white blue", "Gabon": "-green yellow blue", "Poland": "-white red",
    "Ukraine": "-blue yellow", "Indonesia": "-red white", "Colombia": "-yellow yellow blue red",
    "Thailand": "-red white blue blue white red", "Mauritius": "-red blue yellow green",
}  # fmt: skip


Emoji = tuple[Canvas, str, str, list[str]]  # picture, name, subcategory, keywords


def faces() -> Iterator[Emoji]:
    eyes = {name: figure(-0.32) | figure(0.32) for name, figure in EYES.items()}
    mouths = {name: figure() for name, figure in MOUTHS.items()}
    head = disc(size=0.9)
    for mood, look, mouth, extra in itertools.product(SKIN, eyes, mouths, EXTRAS):
        canvas = Canvas().fill(head, COLOURS[SKIN[mood]]).fill(mouths[mouth], DARK)
        EXTRAS[extra](canvas.fill(eyes[look], (150, 10, 40) if look == "love-struck " else DARK))
        name = f"{mood}{look}{mouth}{extra}"
        yield canvas, name, "face", [*name.replace(" with ", " ").split(), SKIN[mood], "emotion"]


def symbols() -> Iterator[Emoji]:
    for hour, half in itertools.product(range(12), (0, 30)):
        name = f"{HOURS[hour]}{'-thirty' if half else ' o’clock'}"
        canvas = Canvas().fill(disc(size=0.9), COLOURS["black"]).fill(disc(size=0.78), COLOURS["white"])
        for long, turn in ((0.62, half / 30 * np.pi), (0.4, (hour + half / 60) / 6 * np.pi)):
            canvas.fill(stroke(0, 0, long * np.sin(turn), -long * np.cos(turn), 0.07), DARK)
        yield canvas, name, "time", ["clock", "time", HOURS[hour], "half" if half else "hour"]
    for phase, name in enumerate(PHASES):
        canvas = Canvas((30, 40, 70)).fill(disc(size=0.85), (110, 110, 120))
        edge = np.cos(phase / 4 * np.pi) * np.sqrt(np.maximum(0.85**2 - Y**2, 0))  # border of light and shadow
        bright = (X - edge >= 0) if phase <= 4 else (X + edge <= 0)
        if phase:
            canvas.fill(disc(size=0.85) & bright, COLOURS["yellow"])
        yield canvas, name, "sky & weather", ["moon", "night", "sky", *name.split()]
    for i, name in enumerate(ARROWS):
        turn = i * np.pi / 4
        x, y = np.sin(turn), -np.cos(turn)
        canvas = Canvas(COLOURS["blue"]).fill(stroke(-0.6 * x, -0.6 * y, 0.3 * x, 0.3 * y, 0.13), BACK)
        yield canvas.fill(regular(3)(0.35 * x, 0.35 * y, 0.45, turn), BACK), f"{name} arrow", "arrow", ["arrow", name]
    for (shape, mask), colour in itertools.product(SHAPES.items(), COLOURS):
        canvas = Canvas((200, 215, 225) if colour == "white" else BACK).fill(mask(0, 0, 0.9, 0.0), COLOURS[colour])
        yield canvas, f"{colour} {shape}", "geometric", [colour, shape, "shape"]
    for country, (way, *stripes) in ((name, (f[0], *f[1:].split())) for name, f in FLAGS.items()):
        canvas, stripe = Canvas(), ((X if way == "|" else Y * 1.4) + 1) / 2 * len(stripes)
        for i, colour in enumerate(stripes):
            canvas.fill((stripe >= i) & (stripe < i + 1) & (np.abs(Y) <= 0.71), COLOURS[colour])
        yield canvas, f"flag: {country}", "flag", ["flag", country, *dict.fromkeys(stripes)]


def write_pictures(folder: Path, name: str, pictures: np.ndarray, rows: list[dict[str, Any]]) -> None:
    np.savez_compressed(folder / name, images=pictures)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / "captions.jsonl.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def write_shapes(folder: Path, seed: int, progress: Progress, count: int = 6000) -> None:
    write_pictures(folder, "shapes32.npz", *draw_shapes(count, seed, progress))


def write_emoji(folder: Path, seed: int, progress: Progress, most: int | None = None) -> None:
    """Write emoji in a random order, so that every tenth emoji is a fair sample."""
    total = len(SKIN) * len(EYES) * len(MOUTHS) * len(EXTRAS) + 2 * len(HOURS) + len(PHASES) + len(ARROWS)
    total += len(SHAPES) * len(COLOURS) + len(FLAGS)
    pictures, rows = [], []
    for canvas, name, kind, words in itertools.islice(itertools.chain(faces(), symbols()), most):
        pictures.append(canvas.picture())
        rows.append({"name": name, "subcategory": kind, "keywords": words})
        progress(len(rows), total)
    order = np.random.default_rng(seed).permutation(len(rows))
    write_pictures(folder, "emoji32.npz", np.stack(pictures)[order], [rows[i] for i in order])
