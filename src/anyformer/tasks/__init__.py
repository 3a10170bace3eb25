"""What a person does with a model: one function a task, each in the file of its name in `each/`.

>>> import anyformer as af
>>> af.tasks.fill_mask("a/model/folder", "Paris is the [MASK] of France.")  # doctest: +SKIP
>>> reader = af.tasks.open_model("a/model/folder", device="cuda", batch=32)  # opened once  # doctest: +SKIP
>>> af.tasks.classify(reader, ["A fine film.", {"text": "It rains.", "pair": "The street is wet."}])  # doctest: +SKIP

One input gives one result, a list of them a list. `anyformer run TASK MODEL INPUT` does the same on a command line, and
reads its help from `table.py`, without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from anyformer.tasks.table import TASKS, About, Flag

if TYPE_CHECKING:
    from anyformer.tasks.task import open_model

__all__ = ["TASKS", "About", "Flag", "open_model"]

_PUBLIC = {task.replace("-", "_"): f"{__name__}.each.{task.replace('-', '_')}" for task in TASKS}
_PUBLIC |= {"open_model": f"{__name__}.task", "play": f"{__name__}.each.play"}  # no text that a command could give


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, getattr(importlib.import_module(_PUBLIC[name]), name))


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
