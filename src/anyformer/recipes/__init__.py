"""Runs that work as they are: each file has `run(data)`, a description that any field of can be set.

`anyformer train NAME` looks here; the first line of a file says what it is for.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING

from anyformer.part import nearest

if TYPE_CHECKING:
    from anyformer.train.run import Run


def recipes() -> dict[str, str]:
    """name -> what it is for. Nothing is imported."""
    found = {}
    for module in (m for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")):
        text = (Path(__path__[0]) / f"{module.name}.py").read_text("utf-8")
        about = ast.get_docstring(ast.parse(text)) or ""
        found[module.name.replace("_", "-")] = about.splitlines()[0] if about else ""
    return dict(sorted(found.items()))


def recipe(name: str, data: str = "data") -> Run:
    """The run of a recipe; `data` is the folder that holds its data sets, where it reads some."""
    known = recipes()
    if name not in known:
        raise ValueError(f"no recipe {name!r}; {nearest(name, known)}")
    return importlib.import_module(f"{__name__}.{name.replace('-', '_')}").run(data)
