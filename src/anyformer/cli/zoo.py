"""List every named description: its family, parameters (as built, and as printed in its paper) and purpose.

With NAME, only the families and descriptions of this name or for this purpose: deepseek, bert, translation."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from anyformer.cli.find_mentions import is_in
from anyformer.specs.messages import nearest, plain


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("name", metavar="NAME", nargs="?", help="list only this name or purpose")
    add("--family", metavar="NAME", help="list only this family")
    add("--json", action="store_true", help="print a JSON list")


def run(options: argparse.Namespace) -> None:
    from anyformer.cli.listing import read_rows
    from anyformer.cli.terminal import short_number, table

    rows: list[dict[str, Any]] = read_rows()
    if options.family is not None:
        known = {row["family"] for row in rows}
        rows = [row for row in rows if plain(row["family"]) == plain(options.family)]
        if not rows:
            raise ValueError(f"no family {options.family!r}; {nearest(options.family, known)}")
    if options.name is not None:
        known = {row["family"] for row in rows} | {row["name"] for row in rows}
        rows = find(options.name, rows)
        if not rows:
            raise ValueError(f"no family or description {options.name!r}; {nearest(options.name, known)}")
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:  # empty if no paper gives the number
        row |= {key: short_number(row[key]) if row[key] else "" for key in ("parameters", "published")}
    shown = [[str(row[key]) for key in ("name", "family", "parameters", "published", "about")] for row in rows]
    table(("name", "family", "parameters", "published", "for"), shown, right=(2, 3))


def find(name: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of families with this name, otherwise rows with it in their name, otherwise in their purpose."""
    wanted = plain(name)
    tests: tuple[Callable[[dict[str, Any]], bool], ...] = (
        lambda row: plain(row["family"]) == wanted or plain(row["name"]) == wanted,
        lambda row: plain(row["family"]).startswith(wanted),
        lambda row: wanted in plain(row["name"]),
        lambda row: is_in(name, f"{row['about']} {row['note']}"),
    )
    return next(filter(None, ([row for row in rows if test(row)] for test in tests)), [])
