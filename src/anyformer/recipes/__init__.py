"""Recipes: the function `run(data)` of each file returns a complete run; `--set` overrides any of its fields.

`anyformer train NAME` runs a recipe of this package; `--list` shows the first line of each file. If a file defines
several recipes, RECIPES maps their names to descriptions, and the function is `run(data, name)`.
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
    """Return name -> description, without importing the recipes."""
    return {name: about for name, (_, about) in _modules().items()}


GROUPS = {  # group -> its files
    "Texts to write": ("quickstart", "shakespeare", "gpt2_124m", "gpt3", "regression"),
    "Encoders": ("bert_pretraining", "distilbert"),
    "Labels, tags and answers": ("glue", "wnut17", "squad", "ewt_graphormer"),
    "From text to text": ("multi30k_en_de", "tico19", "dates", "scitldr", "t5_tasks", "dialogue"),
    "Images": ("fashion_mnist", "fashion_dalle", "fashion_vae", "fashion_dit", "fashion_latent_dit", "fashion_kl",
               "emoji", "emoji_dit", "shapes"),
    "Speech": ("digits", "digits_wav2vec"),
    "Decisions": ("cartpole",),
}  # fmt: skip


def groups() -> dict[str, dict[str, str]]:
    """Return group -> name -> description."""
    known = _modules().items()
    return {
        group: {name: about for file in files for name, (module, about) in known if module == file}
        for group, files in GROUPS.items()
    }


@functools.cache
def _modules() -> dict[str, tuple[str, str]]:
    """name -> (module, description)"""
    modules: dict[str, tuple[str, str]] = {}
    for module in (m.name for m in pkgutil.iter_modules(__path__) if not m.ispkg):
        tree = ast.parse((Path(__path__[0]) / f"{module}.py").read_text("utf-8"))
        about = ast.get_docstring(tree) or ""
        descriptions = {module.replace("_", "-"): about.partition("\n")[0]}
        for statement in tree.body:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "RECIPES":
                descriptions = ast.literal_eval(statement.value)
        modules |= {name: (module, about) for name, about in descriptions.items()}
    return dict(sorted(modules.items()))


def recipe(name: str, data: str = "data") -> Run:
    """Return the run of a recipe; `data` is the folder that contains its data sets."""
    known = _modules()
    if name not in known:
        raise ValueError(f"no recipe {name!r}; {nearest(name, known)}")
    module = importlib.import_module(f"{__name__}.{known[name][0]}")
    return module.run(data, name) if "RECIPES" in vars(module) else module.run(data)
