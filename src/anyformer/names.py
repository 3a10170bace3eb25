"""Names to descriptions: the catalogue, or a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anyformer import families
from anyformer.spec import from_json
from anyformer.weights.io import read_json


def spec(name: str | Path) -> Any:
    """The description called `name` in the catalogue, in a spec.json, or of a model folder."""
    path = Path(name)
    if path.is_dir():
        from anyformer.checkpoint import read_spec

        return read_spec(path)
    if path.suffix == ".json":
        return from_json(read_json(path))
    return families.named(str(name))
