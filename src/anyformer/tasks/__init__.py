"""Tasks for trained models: one function per task, in the file of the same name in `each/`.

>>> import anyformer as af
>>> af.tasks.fill_mask("a/model/folder", "Paris is the [MASK] of France.")  # doctest: +SKIP
>>> reader = af.tasks.open_model("a/model/folder", device="cuda", batch=32)  # opened once  # doctest: +SKIP
>>> af.tasks.classify(reader, ["A fine film.", {"text": "It rains.", "pair": "The street is wet."}])  # doctest: +SKIP

One input gives one result; a list of inputs gives a list. `anyformer run TASK MODEL INPUT` does the same on a command
line; its help is built from `table.py` and `options.py`, without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyformer.specs.lazy import lazy_names
from anyformer.tasks.table import TASKS, TaskInfo

if TYPE_CHECKING:
    from anyformer.tasks.each.answer import answer
    from anyformer.tasks.each.ask_audio import ask_audio
    from anyformer.tasks.each.ask_image import ask_image
    from anyformer.tasks.each.caption import caption
    from anyformer.tasks.each.classify import classify
    from anyformer.tasks.each.classify_image import classify_image
    from anyformer.tasks.each.detect_language import detect_language
    from anyformer.tasks.each.detect_replaced import detect_replaced
    from anyformer.tasks.each.draw import draw
    from anyformer.tasks.each.embed import embed
    from anyformer.tasks.each.embed_image import embed_image
    from anyformer.tasks.each.few_shot import few_shot
    from anyformer.tasks.each.fill_mask import fill_mask
    from anyformer.tasks.each.index import index
    from anyformer.tasks.each.next_sentence import next_sentence
    from anyformer.tasks.each.play import play
    from anyformer.tasks.each.search import search
    from anyformer.tasks.each.search_images import search_images
    from anyformer.tasks.each.summarize import summarize
    from anyformer.tasks.each.tag import tag
    from anyformer.tasks.each.transcribe import transcribe
    from anyformer.tasks.each.translate import translate
    from anyformer.tasks.each.write import write
    from anyformer.tasks.each.zero_shot_image import zero_shot_image
    from anyformer.tasks.task import open_model

__all__ = [
    "TASKS", "TaskInfo", "answer", "ask_audio", "ask_image", "caption", "classify", "classify_image",
    "detect_language", "detect_replaced", "draw", "embed", "embed_image", "few_shot", "fill_mask", "index",
    "next_sentence", "open_model", "play", "search", "search_images", "summarize", "tag", "transcribe", "translate",
    "write", "zero_shot_image",
]  # fmt: skip

_PUBLIC = {task.function: f"{__name__}.each.{task.function}" for task in TASKS.values()}
_PUBLIC |= {name: f"{__name__}.each.{name}" for name in ("play", "index", "search")}  # not commands of `run`
_PUBLIC["open_model"] = f"{__name__}.task"


if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _PUBLIC)
