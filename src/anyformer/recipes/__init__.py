"""Runs that work as they are: each file has `run(data)`, a description whose fields can all be set.

`anyformer train NAME` looks here; the first line of a file is its description. A file may hold several recipes: then
RECIPES has their names and descriptions, and the file has `run(data, name)`.
"""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING

from anyformer.specs.messages import nearest

if TYPE_CHECKING:
    from anyformer.train.run import Run


def recipes() -> dict[str, str]:
    """name -> description. Nothing is imported."""
    return {name: about for name, (_, about) in _modules().items()}


@functools.cache
def _modules() -> dict[str, tuple[str, str]]:
    """name -> (module, description)"""
    modules: dict[str, tuple[str, str]] = {}
    for module in (m.name for m in pkgutil.iter_modules(__path__) if not m.ispkg):
        tree = ast.parse((Path(__path__[0]) / f"{module}.py").read_text("utf-8"))
        about = ast.get_docstring(tree) or ""
        own = {module.replace("_", "-"): about.partition("\n")[0]}
        for line in tree.body:
            if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "RECIPES":
                own = ast.literal_eval(line.value)
        modules |= {name: (module, about) for name, about in own.items()}
    return dict(sorted(modules.items()))


def recipe(name: str, data: str = "data") -> Run:
    """The run of a recipe; `data` is the folder of its data sets, if it reads any."""
    known = _modules()
    if name not in known:
        raise ValueError(f"no recipe {name!r}; {nearest(name, known)}")
    module = importlib.import_module(f"{__name__}.{known[name][0]}")
    return module.run(data, name) if "RECIPES" in vars(module) else module.run(data)
