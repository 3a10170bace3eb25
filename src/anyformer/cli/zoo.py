"""Lists every named description: its family, parameters (as built, and as its paper prints them) and what it is for."""

from __future__ import annotations

import argparse
import json
from typing import Any


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--family", metavar="NAME", help="this family alone")
    parser.add_argument("--json", action="store_true", help="a JSON list on stdout")


def run(options: argparse.Namespace) -> None:
    from anyformer.cli.terminal import rounded, table, working

    with working("counting"):
        from anyformer import families
        from anyformer.count import count

        wanted = families.catalogue().values() if options.family is None else [families.find(options.family)]
        rows: list[dict[str, Any]] = [
            {
                "name": name,
                "family": family.name,
                "parameters": count(family.named(name)).parameters,
                "published": size.published,
                "about": family.about,
                "note": size.note,
            }
            for family in wanted
            for name, size in family.sizes.items()
        ]
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:  # a figure that no paper prints stays empty
        row |= {key: rounded(row[key]) if row[key] else "" for key in ("parameters", "published")}
    shown = [[str(row[key]) for key in ("name", "family", "parameters", "published", "about")] for row in rows]
    table(("name", "family", "parameters", "published", "for"), shown, right=(2, 3))
