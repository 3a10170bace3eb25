"""Position vectors of a text: integers, binary digits, sinusoids, learned, rotary, and the five properties of each.

Properties: (1) every position has its own vector, (2) a shift of all positions is one linear map of the vectors,
(3) longer texts have vectors, and these are not larger, (4) nothing is learned, (5) cells of a grid have their own
vectors if one half encodes the row and one half the column.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyformer.look.figures import new
from anyformer_course.shown import Shown, Table
from anyformer_course.words import split

SCHEMES = ("integer", "binary", "sinusoidal", "learned", "rotary")
PROPERTIES = ("own vector", "linear shift", "longer texts", "nothing learned", "two dimensions")


def example(
    text: str = "The dog chased another dog", *, scheme: str = "sinusoidal", width: int = 8, length: int = 64
) -> Shown:
    """Compute the vectors that a `scheme` gives to the words, and the properties of every scheme up to `length`."""
    words = split(text)
    if scheme not in SCHEMES:
        raise ValueError(f"no scheme is called {scheme!r}; use one of {', '.join(SCHEMES)}")
    if not 64 <= length <= 512:
        raise ValueError(f"length is {length}; the properties need 64 to 512 positions")
    p, all_positions = position_vectors(scheme, len(words), width), position_vectors(scheme, length, 32)
    figures = {name: measure(name, length) for name in SCHEMES}
    answers = {name: judge(figures[name]) for name in SCHEMES}
    missing = [name for name, good in zip(PROPERTIES, answers[scheme]) if not good]

    def draw() -> Any:
        figure, axes = new(3, 1, 13, 3.8)
        most = float(all_positions.abs().max())  # 0 is white
        axes[0, 0].imshow(all_positions, aspect="auto", cmap="RdBu", interpolation="nearest", vmin=-most, vmax=most)
        axes[0, 0].set(title=f"{scheme}: one vector per row", xlabel="channel", ylabel="position")
        alike = axes[0, 1].imshow(all_positions @ all_positions.T, interpolation="nearest")
        axes[0, 1].set(title="products of two positions", xlabel="position")
        figure.colorbar(alike, ax=axes[0, 1])
        axes[0, 2].imshow([answers[name] for name in SCHEMES], cmap="Blues", vmin=0, vmax=1.5, aspect="auto")
        axes[0, 2].set_xticks(range(5), PROPERTIES, rotation=30, fontsize=10, ha="right", rotation_mode="anchor")
        axes[0, 2].set_yticks(range(len(SCHEMES)), SCHEMES, fontsize=10)
        for i, name in enumerate(SCHEMES):
            for j, good in enumerate(answers[name]):
                axes[0, 2].text(j, i, "yes" if good else "no", ha="center", va="center", fontsize=10)
        return figure

    return Shown(
        f"{scheme} positions " + (f"lack: {', '.join(missing)}." if missing else "have all five properties."),
        [
            Table(f"{scheme}: vectors", ("word", "position", *map(str, range(width))),
                  [[word, i, *row] for i, (word, row) in enumerate(zip(words, p.tolist(), strict=True))]),
            Table(f"measured over {length} positions, width 32: distance of vectors, error of the linear shift, values",
                  ("scheme", "least distance", "shift error", f"largest up to {length}", f"up to {4 * length}",
                   "learned", "on a grid"),
                  [[name, *figures[name]] for name in SCHEMES]),
            Table("five properties", ("scheme", *PROPERTIES), [[name, *answers[name]] for name in SCHEMES]),
        ],
        draw,
    )  # fmt: skip


def position_vectors(scheme: str, number: int, width: int, trained: int | None = None) -> Tensor:
    """(number, width) vectors of a scheme for texts of up to `trained` positions (default: `number`)."""
    return build(scheme, width, trained or number)(torch.arange(number)[None])[0].detach()


def build(scheme: str, width: int, length: int) -> Any:
    from anyformer.parts.position.absolute import Binary, Integer, Learned, Sinusoidal
    from anyformer.parts.position.rotary import Rope, RopeModule
    from anyformer.runtime.context import Context
    from anyformer.specs.part import Site

    if scheme == "rotary":  # the pairs (1, 0), rotated to each position
        rope = RopeModule(Rope(interleaved=True), width)
        ones = torch.tensor([1.0, 0.0]).repeat(width // 2)
        return lambda index: rope.rotate(ones.expand(1, 1, index.shape[1], -1), ones.expand(1, 1, index.shape[1], -1),
                                         Context(index=index[0], positions=index))[0][0]  # fmt: skip
    parts = {
        "integer": Integer(),
        "binary": Binary(bits=min(width, 16)),
        "sinusoidal": Sinusoidal(length=length, interleaved=True),
        "learned": Learned(length=length),
    }
    module = parts[scheme].build(Site(width=width, address="position"))
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5, generator=torch.Generator().manual_seed(0))
    return module


@torch.no_grad()
def measure(scheme: str, length: int, width: int = 32) -> list[float | None]:
    p = position_vectors(scheme, length, width).double()
    try:
        longest = float(position_vectors(scheme, 4 * length, width, trained=length).abs().max())
    except ValueError:  # there is no vector
        longest = None
    before, after = p[:-3], p[3:]  # the map from every second vector must also map the others
    shift = torch.linalg.lstsq(before[::2], after[::2], driver="gelsd", rcond=1e-6).solution
    error = float((before[1::2] @ shift - after[1::2]).norm() / (after[1::2] - after.mean(0)).norm())
    side = position_vectors(scheme, 8, width // 2).double()
    cells = torch.cat((side.repeat_interleave(8, 0), side.repeat(8, 1)), 1)
    learned = length * width if scheme == "learned" else 0
    return [smallest_distance(p), error, float(p.abs().max()), longest, learned, smallest_distance(cells)]


def smallest_distance(p: Tensor) -> float:
    """Return the smallest distance between two different rows."""
    return float(torch.pdist(p).min())


def judge(figures: list[float | None]) -> list[bool]:
    distance, error, largest, longest, learned, cells = figures
    return [distance > 1e-6, error < 1e-3, longest is not None and longest <= 2 * largest, not learned, cells > 1e-6]
