"""Prints the JSON schema of a run.json: every kind, field, type and default, with what it is.

anyformer schema > run.schema.json, and {"$schema": "./run.schema.json", ...} at the top of a run.json makes an editor
complete it and mark what is wrong."""

from __future__ import annotations

import argparse

from anyformer.cli.texts import as_json


def arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(options: argparse.Namespace) -> None:
    from anyformer.train.schema import schema

    print(as_json(schema(), indent=1))
