"""The experiments by name, from packages that declare them (`specs/extensions.py`). Listing them imports neither the
experiments nor torch."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
from pathlib import Path
from typing import Any, NamedTuple

from anyformer.specs.extensions import MISSING, extensions
from anyformer.specs.messages import nearest


class StoredResult(NamedTuple):
    """The stored result that decides about an experiment, usually of its full form."""

    verdict: str  # holds, does not hold, not judged yet
    claim: str  # as it was judged
    figure: str  # the verdict and its figures, or why it is not judged yet
    run: str  # form, seeds and machine; empty if it is not judged yet
    plot: Path | None


def modules() -> dict[str, tuple[str, Path]]:
    """Return name -> (module, file) of every experiment."""
    found = {}
    for point in extensions("experiments"):
        package = importlib.util.find_spec(point.value)
        for folder in (package.submodule_search_locations or ()) if package else ():
            for module in pkgutil.iter_modules([folder]):
                path = Path(folder, f"{module.name}.py")
                found[module.name.replace("_", "-")] = f"{point.value}.{module.name}", path
    return dict(sorted(found.items()))


def experiments() -> dict[str, str]:
    """Return name -> first line of the docstring of every experiment, without importing any."""
    claims = {}
    for name, (_, path) in modules().items():
        opening = re.match(r'"""(.*?)(?:"""|\n)', path.read_text("utf-8"))
        claims[name] = opening[1] if opening else ""
    return claims


def experiment(name: str) -> Any:
    known = modules()
    if not known:
        raise ValueError(f"no experiments: {MISSING}")
    if name not in known:
        raise ValueError(f"no experiment {name!r}; {nearest(name, known)}")
    return importlib.import_module(known[name][0])


def stored_result(name: str) -> StoredResult | None:
    """Return the stored result of an experiment, or None."""
    results = (point.load()(name) for point in extensions("results"))
    return next((result for result in results if result is not None), None)
