"""The experiments by name. Listing them imports neither the experiments nor torch."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from pathlib import Path
from typing import Any

from anyformer.specs.messages import nearest

EXPERIMENTS = Path(__file__).with_name("experiments")


def experiments() -> dict[str, str]:
    """Return name -> first line of the docstring of every experiment, without importing any."""
    claims = {}
    for module in pkgutil.iter_modules([str(EXPERIMENTS)]):
        about = ast.get_docstring(ast.parse((EXPERIMENTS / f"{module.name}.py").read_text("utf-8"))) or ""
        claims[module.name.replace("_", "-")] = about.partition("\n")[0]
    return dict(sorted(claims.items()))


def experiment(name: str) -> Any:
    known = [module.name.replace("_", "-") for module in pkgutil.iter_modules([str(EXPERIMENTS)])]
    if name not in known:
        raise ValueError(f"no experiment {name!r}; {nearest(name, known)}")
    return importlib.import_module(f"anyformer.lab.experiments.{name.replace('-', '_')}")
