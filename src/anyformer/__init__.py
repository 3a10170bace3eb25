"""anyformer is one Transformer: every architecture is a short description built from one set of Parts.

>>> import anyformer as af
>>> small = {"decoder.depth": 2, "embedding.tokens.vocab_size": 100, "head.vocab_size": 100}
>>> spec = af.override(af.spec("gpt2"), small)
>>> model = af.build(spec, seed=0)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyformer._version import __version__
from anyformer.specs.lazy import lazy_names
from anyformer.specs.services import register_service

if TYPE_CHECKING:
    from anyformer import look, parts, tasks
    from anyformer.checkpoint import load, save, spec
    from anyformer.counting import count
    from anyformer.drawing import draw
    from anyformer.evaluate.part_checks import check
    from anyformer.families import register
    from anyformer.generation import generate
    from anyformer.inputs.processor import processor
    from anyformer.look.trace import trace
    from anyformer.models.construct import build
    from anyformer.specs.codec import override
    from anyformer.transforms import adapters, lora

# public name -> its module (or the module itself), imported on first use: `import anyformer` does not import torch
_PUBLIC = {
    "spec": "anyformer.checkpoint",
    "override": "anyformer.specs.codec",
    "build": "anyformer.models.construct",
    "load": "anyformer.checkpoint",
    "save": "anyformer.checkpoint",
    "count": "anyformer.counting",
    "check": "anyformer.evaluate.part_checks",
    "draw": "anyformer.drawing",
    "generate": "anyformer.generation",
    "processor": "anyformer.inputs.processor",
    "tasks": "anyformer.tasks",
    "parts": "anyformer.parts",
    "trace": "anyformer.look.trace",
    "look": "anyformer.look",
    "lora": "anyformer.transforms.lora",
    "adapters": "anyformer.transforms.adapters",
    "register": "anyformer.families",
}

# functions that lower layers offer as methods, or need for one file format
register_service("draw", "anyformer.drawing")
register_service("generate", "anyformer.generation")
register_service("load_adapted", "anyformer.transforms.adapters")
register_service("save_adapter", "anyformer.transforms.adapters")
register_service("place_quantized", "anyformer.transforms.quantize")
register_service("recompute", "anyformer.transforms.recompute")
register_service("keep_activations", "anyformer.transforms.recompute")
register_service("kinds", "anyformer.specs.slots")
register_service("transcribe", "anyformer.tasks.each.transcribe")

__all__ = [
    "__version__", "adapters", "build", "check", "count", "draw", "generate", "load", "look", "lora", "override",
    "parts", "processor", "register", "save", "spec", "tasks", "trace",
]  # fmt: skip


if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _PUBLIC)
