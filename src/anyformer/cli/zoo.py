"""List every named description: its family, parameters (as built, and as printed in its paper) and purpose."""

from __future__ import annotations

import argparse
import json
from typing import Any

from anyformer.specs.messages import nearest


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--family", metavar="NAME", help="list only this family")
    parser.add_argument("--json", action="store_true", help="print a JSON list")


def run(options: argparse.Namespace) -> None:
    from anyformer.cli.listing import read_rows
    from anyformer.cli.terminal import short_number, table

    rows: list[dict[str, Any]] = read_rows()
    if options.family is not None:
        known = {row["family"] for row in rows}
        rows = [row for row in rows if row["family"] == options.family]
        if not rows:
            raise ValueError(f"no family {options.family!r}; {nearest(options.family, known)}")
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:  # a figure that no paper prints stays empty
        row |= {key: short_number(row[key]) if row[key] else "" for key in ("parameters", "published")}
    shown = [[str(row[key]) for key in ("name", "family", "parameters", "published", "about")] for row in rows]
    table(("name", "family", "parameters", "published", "for"), shown, right=(2, 3))
