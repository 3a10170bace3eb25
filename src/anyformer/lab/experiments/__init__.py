"""One experiment a file, found by its name; lab/experiment.py says what is in it."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING, cast

from anyformer.specs.part import nearest

if TYPE_CHECKING:
    from anyformer.lab.experiment import Experiment


def experiments() -> dict[str, str]:
    """name -> what it shows. Nothing is imported."""
    found = {}
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("_"):
            about = ast.get_docstring(ast.parse((Path(__path__[0]) / f"{module.name}.py").read_text("utf-8"))) or ""
            found[module.name.replace("_", "-")] = about.partition("\n")[0]
    return dict(sorted(found.items()))


def experiment(name: str) -> Experiment:
    if name not in (known := experiments()):
        raise ValueError(f"no experiment {name!r}; {nearest(name, known)}")
    return cast("Experiment", importlib.import_module(f"{__name__}.{name.replace('-', '_')}"))
