"""One page from what is inside a model: a file that needs nothing else, or what a server answers with."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from importlib.resources import files
from typing import Any

from torch import Tensor

from anyformer.look.views import At, Data, Inside, attempt, pack, strongest

SCRIPTS = ("base.js", "draw.js", "views.js", "stream.js", "start.js")

HELD = 3_000_000  # attention weights that a file holds; of longer texts the strongest of every row
LENS = 96  # places whose lens a file holds
SHARES = 48  # places whose contributions a file holds
TRIED = 1e12  # multiply-adds that a file's table of changes may take


def resource(name: str) -> str:
    return files("anyformer.look").joinpath("page", name).read_text(encoding="utf-8")


def render_page(data: Data, served: bool = False) -> str:
    """The page with its script, its style and its data in it; the browser runs these two by their hashes alone."""
    script, style = "\n".join(resource(name) for name in SCRIPTS), resource("page.css")
    allowed = [
        "default-src 'none'",
        f"script-src '{digest(script)}'",
        f"style-src '{digest(style)}'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        *(["connect-src 'self'"] if served else []),
    ]
    # in a script element only "<" can end the data
    told = json.dumps({**data, "served": served}, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    parts = {
        "title": html.escape(f"{data['name']}: inside"),
        "csp": html.escape("; ".join(allowed)),
        "style": style,
        "script": script,
        "data": told,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], resource("page.html"))


def digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def all_views(inside: Inside) -> Data:
    """All views of a run, for a file; where something is too much for one, a note says so."""
    data, notes = inside.opening(), []
    data["held"], note = held_maps(inside)
    notes += note
    length = inside.length
    data["lens"] = attempt(lambda: inside.lens(range(max(length - LENS, 0), length)))
    data["contributions"] = attempt(lambda: inside.contributions(range(max(length - SHARES, 0), length)))
    data["neurons"] = attempt(lambda: inside.neurons(data["contributions"].get("positions", ())))
    for name, most in (("lens", LENS), ("contributions", SHARES), ("neurons", SHARES)):
        if length > most and "why" not in data[name] and not data["whole"]:
            notes.append(f"{name}: of the last {most} places")
    data["heads"] = attempt(inside.head_kinds)
    data["tables"], note = tables(inside)
    return {**data, "notes": notes + note}


def held_maps(inside: Inside) -> tuple[list[list[Any]], list[str]]:
    """For each map and head its bytes, or the strongest of every row where all would be too many."""
    shapes = inside.shapes.values()
    total = sum(rows * heads * queries * keys for rows, heads, queries, keys in shapes)
    lines = sum(rows * heads * queries for rows, heads, queries, _ in shapes)
    number = None if total <= HELD else max(HELD // max(lines, 1), 4)
    found: dict[At, list[Any]] = {}

    def visit(at: At, maps: Tensor) -> None:
        if number is None:
            found[at] = [pack(head) for head in maps]
        else:
            found[at] = [[pack(places), pack(values)] for places, values in strongest(maps, number)]

    inside.every_map(visit)
    note = f"of each row of attention the {number} largest weights are kept; --serve shows all"
    return [found[at] for at in inside.small], [] if number is None else [note]


def tables(inside: Inside) -> tuple[list[Data], list[str]]:
    """What becomes of the last prediction when each head, or each place of another text, is changed alone."""
    found, notes = [], []
    size = sum(p.numel() for p in inside.model.parameters())
    cells = {"head": sum(heads for _, heads, _, _ in inside.shapes.values()), "sublayer": len(inside.sublayers())}
    if inside.other is not None:
        cells["position"] = inside.length * (inside.depth()["number"] + 1)
    for by, number in cells.items():
        if number * inside.length * size > TRIED:
            notes.append(f"the table of changes by {by} is left out: {number:,} runs; --serve makes it when asked")
        else:
            found.append({"by": by, **attempt(lambda by=by: inside.table(by))})  # type: ignore[misc]
    return found, notes
