"""Train a model of the course and write it: `python -m anyformer_course.models docs`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import anyformer as af
from anyformer.cli.train import train
from anyformer_course import extension
from anyformer_course.models import folder

if TYPE_CHECKING:
    from anyformer.train.run import Run


def recipe_of(name: str, data: Path) -> Run:
    """Return the run that trains a model; `dates` first generates its data."""
    from anyformer.data import PythonDocs
    from anyformer.recipes import recipe
    from anyformer.recipes.quickstart import language_run
    from anyformer.recipes.shared.sources import fetch

    if name == "dates":
        fetch("dates", data)
        return recipe("dates", str(data))
    texts = PythonDocs(library=False)
    run = language_run(texts, 20, vocabulary=1024, width=160, depth=4, heads=4, length=128, batch=8, lr=6e-3)
    return af.override(run, {"steps": 800, "evaluate.every": 200, "keep.every": 200})


def main(name: str, runs: str | None = None) -> None:
    """Train a model and write it in half precision. `runs` keeps the run."""
    path = folder(name)
    extension.register()
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(runs or scratch)
        trainer = train(recipe_of(name, home / "data"), home / name, resume=False)
        model = af.load(home / name)
    print(f"{name}: {af.count(model.spec).parameters:,} parameters, {trainer.step} steps")
    af.save(model.to(torch.float16), path)


if __name__ == "__main__":
    main(*sys.argv[1:])
