"""Tasks for trained models: one function per task, in the file of the same name in `each/`.

>>> import anyformer as af
>>> af.tasks.fill_mask("a/model/folder", "Paris is the [MASK] of France.")  # doctest: +SKIP
>>> reader = af.tasks.open_model("a/model/folder", device="cuda", batch=32)  # opened once  # doctest: +SKIP
>>> af.tasks.classify(reader, ["A fine film.", {"text": "It rains.", "pair": "The street is wet."}])  # doctest: +SKIP

One input gives one result; a list of inputs gives a list. `anyformer run TASK MODEL INPUT` does the same on a command
line; its help is built from `table.py` and `options.py`, without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from anyformer.tasks.table import TASKS, TaskInfo

if TYPE_CHECKING:
    from anyformer.tasks.task import open_model

__all__ = ["TASKS", "TaskInfo", "open_model"]

_PUBLIC = {task.function: f"{__name__}.each.{task.function}" for task in TASKS.values()}
_PUBLIC |= {name: f"{__name__}.each.{name}" for name in ("play", "index", "search")}  # not commands of `run`
_PUBLIC["open_model"] = f"{__name__}.task"


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, getattr(importlib.import_module(_PUBLIC[name]), name))


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
