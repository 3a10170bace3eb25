"""anyformer is one Transformer: every architecture is a short description put together from one set of parts.

>>> import anyformer as af
>>> small = {"decoder.depth": 2, "embedding.tokens.vocab_size": 100, "head.vocab_size": 100}
>>> spec = af.override(af.spec("gpt2"), small)
>>> model = af.build(spec, seed=0)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyformer._version import __version__
from anyformer.lazy import lazily

if TYPE_CHECKING:
    from anyformer import tasks
    from anyformer.build import build
    from anyformer.checkpoint import load, save
    from anyformer.count import count
    from anyformer.generate import generate
    from anyformer.look.trace import trace
    from anyformer.names import spec
    from anyformer.spec import override

# public name -> the module it lives in (or is), imported on first use: `import anyformer` itself does not import torch
_PUBLIC = {
    "spec": "anyformer.names",
    "override": "anyformer.spec",
    "build": "anyformer.build",
    "load": "anyformer.checkpoint",
    "save": "anyformer.checkpoint",
    "count": "anyformer.count",
    "generate": "anyformer.generate",
    "tasks": "anyformer.tasks",
    "trace": "anyformer.look.trace",
}

__all__ = ["__version__", "build", "count", "generate", "load", "override", "save", "spec", "tasks", "trace"]


lazily(__name__, _PUBLIC)
