"""Runs that work as they are: each file has `run(data)`, a description that any field of can be set.

`anyformer train NAME` looks here; the first line of a file says what it is for. A file may have several: RECIPES says
their names and what each is for, and the file has `run(data, name)`.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING

from anyformer.specs.part import nearest

if TYPE_CHECKING:
    from anyformer.train.run import Run


def recipes() -> dict[str, str]:
    """name -> what it is for. Nothing is imported."""
    return {name: about for name, (_, about) in _found().items()}


def _found() -> dict[str, tuple[str, str]]:
    """name -> (module, what it is for)"""
    found: dict[str, tuple[str, str]] = {}
    for module in (m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")):
        tree = ast.parse((Path(__path__[0]) / f"{module}.py").read_text("utf-8"))
        about = ast.get_docstring(tree) or ""
        own = {module.replace("_", "-"): about.splitlines()[0] if about else ""}
        for line in tree.body:
            if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "RECIPES":
                own = ast.literal_eval(line.value)
        found |= {name: (module, about) for name, about in own.items()}
    return dict(sorted(found.items()))


def recipe(name: str, data: str = "data") -> Run:
    """The run of a recipe; `data` is the folder that holds its data sets, where it reads some."""
    known = _found()
    if name not in known:
        raise ValueError(f"no recipe {name!r}; {nearest(name, known)}")
    module = importlib.import_module(f"{__name__}.{known[name][0]}")
    return module.run(data, name) if hasattr(module, "RECIPES") else module.run(data)
