"""M2M-100's language matrix: which pairs of 100 languages have training data, English-centric, with bridges, or all.

English-centric data pairs every language with English. Bridge mining pairs all languages of a family, and one or
a few bridge languages per family with the bridges of the other families [Fan et al. 2020]. The bridges are our choice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyformer.look.figures import new
from anyformer_course.shown import Shown, Table

# The families of the paper's table of 100 languages, small families joined; the bridges come first.
FAMILIES = {
    "Germanic": "en de nl sv da no af is lb fy yi", "Romance": "es fr pt it ro ca gl ast oc",
    "Slavic": "ru pl cs uk bg sr hr bs sk sl mk be", "Uralic and Baltic": "fi hu et lt lv",
    "Albanian to Greek": "el hy ka sq", "Celtic": "cy ga gd br", "Turkic": "tr uz kk az ba",
    "East Asian": "zh ja ko vi", "Indo-Aryan": "hi bn mr gu ne or pa sd si ur", "Dravidian": "ta ml kn",
    "Malayo-Polynesian": "id ms jv su tl ceb ilo mg", "South-East Asian": "th my km lo mn",
    "Semitic and Iranian": "ar he fa ps am", "African and Creole": "sw ha ig ln lg nso so ss tn wo xh yo zu ff ht",
}  # fmt: skip
MINING = ("english", "bridge", "all")


def example(languages: str = "all", *, mining: str = "bridge", bridges: int = 1) -> Shown:
    """Draw the matrix of `languages` (codes such as "en fr hi zu", or "all"), with `bridges` bridges per family."""
    if mining not in MINING:
        raise ValueError(f"mining is {mining!r}; use one of {', '.join(MINING)}")
    family = {code: name for name, codes in FAMILIES.items() for code in codes.split()}
    codes = list(family) if languages == "all" else languages.split()
    if unknown := [code for code in codes if code not in family]:
        raise ValueError(f"M2M-100 has no language {unknown[0]!r}; use codes such as {' '.join(list(family)[:6])}")
    if len(codes) < 2:
        raise ValueError("give at least two languages")
    if bridges < 1:
        raise ValueError(f"bridges is {bridges}; a family needs at least 1")
    data = {way: matrix(codes, family, way, bridges) for way in MINING}
    every = len(codes) * (len(codes) - 1)
    rows: list[list[Any]] = [
        [way, int(pairs.sum()) // 2, int(pairs.sum()), float(pairs.sum()) / every, hops(pairs)]
        for way, pairs in data.items()
    ]
    groups = {name: [code for code in codes if family[code] == name] for name in FAMILIES}
    inside = [[name, len(own), " ".join(own[:bridges]), len(own) * (len(own) - 1) // 2, " ".join(own)]
              for name, own in groups.items() if own]  # fmt: skip

    def draw() -> Any:
        figure, axes = new(3, 1, 12, 4.4)
        for axis, way in zip(axes[0], MINING, strict=True):
            axis.imshow(data[way].numpy(), cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
            axis.set_title(f"{way}: {int(data[way].sum()):,} directions", fontsize=9)
            if len(codes) <= 24:
                axis.set_xticks(range(len(codes)), codes, fontsize=7, rotation=90)
                axis.set_yticks(range(len(codes)), codes, fontsize=7)
        return figure

    chosen = next(row for row in rows if row[0] == mining)
    return Shown(
        f"{len(codes)} languages have {every:,} directions; {mining} mining has data for "
        f"{chosen[2]:,} of them, {100 * chosen[3]:.0f} %.",
        [
            Table("data by way of mining", ("mining", "pairs", "directions", "share of all directions",
                                            "steps of the longest way"), rows),
            Table("families", ("family", "languages", "bridges", "pairs inside", "codes"), inside),
            Table(f"partners with data, {mining} mining", ("language", "partners"),
                  [[code, int(row.sum())] for code, row in zip(codes[:12], data[mining])]),
        ],
        draw,
    )  # fmt: skip


def matrix(codes: list[str], family: dict[str, str], mining: str, number: int) -> Tensor:
    """Return 1 for each pair with data. Mined sentences are used in both directions, so the matrix is symmetric."""
    own = {name: [code for code in codes if family[code] == name] for name in FAMILIES}
    bridges = {code for members in own.values() for code in members[:number]}

    def has_data(a: str, b: str) -> bool:
        if mining == "all" or "en" in (a, b):
            return True
        return mining == "bridge" and (family[a] == family[b] or {a, b} <= bridges)

    return torch.tensor([[float(a != b and has_data(a, b)) for b in codes] for a in codes])


def hops(pairs: Tensor) -> int | None:
    """Return the largest number of pairs on the shortest way from one language to another."""
    reached, steps = torch.eye(len(pairs)), 0
    while not bool(reached.all()) and steps < len(pairs):
        reached, steps = ((reached + reached @ pairs) > 0).float(), steps + 1
    return steps if bool(reached.all()) else None
