"""Names to descriptions: the catalogue, or a file."""

from __future__ import annotations

import os
from pathlib import Path

from anyformer import families
from anyformer.model import Model
from anyformer.weights import hub


def spec(name: str | Path) -> Model:
    """The description called `name` in the catalogue, in a spec.json, or of the folder of a model or run."""
    if not isinstance(name, (str, Path)):
        raise ValueError(f"a description is found by its name or its path, got {type(name).__name__}")
    path, is_folder = Path(name), os.path.isdir(name)  # which, unlike Path's, knows names that are too long
    if is_folder or path.suffix == ".json":
        from anyformer.checkpoint import read_spec, read_spec_file

        return read_spec(hub.resolve(path)) if is_folder else read_spec_file(path)
    if "/" in str(name):
        raise FileNotFoundError(hub.no_such_folder(str(name)))
    return families.named(str(name))
