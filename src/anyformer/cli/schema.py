"""Print the JSON schema of a run.json: every kind, field, type and default, with a description.

anyformer schema --out run.schema.json, and {"$schema": "./run.schema.json", ...} at the top of a run.json, let an
editor complete it and mark errors."""

from __future__ import annotations

import argparse
from pathlib import Path

from anyformer.cli.texts import as_json


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="FILE", help="write the schema to this file")


def run(options: argparse.Namespace) -> None:
    from anyformer.train.run_schema import schema

    text = as_json(schema(), indent=1)
    if options.out is None:
        print(text)
    else:
        Path(options.out).expanduser().write_text(f"{text}\n", encoding="utf-8")
