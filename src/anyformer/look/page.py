"""The HTML page of `anyformer look`: one self-contained file, or a page that asks a server for data."""

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

MAX_WEIGHTS = 3_000_000  # attention weights in a file; above this, only the largest of every row
LENS_POSITIONS = 96  # positions with a logit lens in a file
SHARE_POSITIONS = 48  # positions with contributions in a file
MAX_TABLE_COST = 1e12  # multiply-adds to compute a table of changes for a file


def resource(name: str) -> str:
    return files("anyformer.look").joinpath("page", name).read_text(encoding="utf-8")


def render_page(data: Data, served: bool = False) -> str:
    """Return the page with its script, style and data. The browser accepts only this script and style, by hash."""
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
    # inside a script element only "<" can end the data
    text = json.dumps({**data, "served": served}, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    parts = {
        "title": html.escape(f"{data['name']}: inside"),
        "csp": html.escape("; ".join(allowed)),
        "style": style,
        "script": script,
        "data": text,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], resource("page.html"))


def digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def all_views(inside: Inside) -> Data:
    """Return all views of a run, for a file. If a view is too large for a file, a note lists what is missing."""
    data, notes = inside.opening(), []
    data["held"], note = held_maps(inside)
    notes += note
    length = inside.length
    data["lens"] = attempt(lambda: inside.lens(range(max(length - LENS_POSITIONS, 0), length)))
    data["contributions"] = attempt(lambda: inside.contributions(range(max(length - SHARE_POSITIONS, 0), length)))
    data["neurons"] = attempt(lambda: inside.neurons(data["contributions"].get("positions", ())))
    for name, most in (("lens", LENS_POSITIONS), ("contributions", SHARE_POSITIONS), ("neurons", SHARE_POSITIONS)):
        if length > most and "why" not in data[name] and not data["whole"]:
            notes.append(f"{name}: only for the last {most} positions")
    data["heads"] = attempt(inside.head_kinds)
    data["tables"], note = tables(inside)
    return {**data, "notes": notes + note}


def held_maps(inside: Inside) -> tuple[list[list[Any]], list[str]]:
    """Return the bytes of each map and head (or only the largest weights of each row), and notes."""
    shapes = inside.shapes.values()
    total = sum(rows * heads * queries * keys for rows, heads, queries, keys in shapes)
    lines = sum(rows * heads * queries for rows, heads, queries, _ in shapes)
    number = None if total <= MAX_WEIGHTS else max(MAX_WEIGHTS // max(lines, 1), 4)
    packed: dict[At, list[Any]] = {}

    def visit(at: At, maps: Tensor) -> None:
        if number is None:
            packed[at] = [pack(head) for head in maps]
        else:
            packed[at] = [[pack(indices), pack(values)] for indices, values in strongest(maps, number)]

    inside.every_map(visit)
    note = f"attention: only the {number} largest weights of each row; --serve shows all"
    return [packed[at] for at in inside.small], [] if number is None else [note]


def tables(inside: Inside) -> tuple[list[Data], list[str]]:
    """Return the tables of changes of the last prediction: by each head, sublayer and position of the other text."""
    views, notes = [], []
    size = sum(p.numel() for p in inside.model.parameters())
    cells = {"head": sum(heads for _, heads, _, _ in inside.shapes.values()), "sublayer": len(inside.sublayers())}
    if inside.other is not None:
        cells["position"] = inside.length * (inside.depth()["number"] + 1)
    for by, number in cells.items():
        if number * inside.length * size > MAX_TABLE_COST:
            notes.append(f"the table of changes by {by} is left out: it takes {number:,} runs; --serve computes it")
        else:
            views.append({"by": by, **attempt(lambda by=by: inside.table(by))})  # type: ignore[misc]
    return views, notes
