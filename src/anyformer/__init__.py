"""anyformer is one Transformer: every architecture is a short description put together from one set of parts.

>>> import anyformer as af
>>> small = {"decoder.depth": 2, "embedding.tokens.vocab_size": 100, "head.vocab_size": 100}
>>> spec = af.override(af.spec("gpt2"), small)
>>> model = af.build(spec, seed=0)
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

from anyformer._version import __version__

if TYPE_CHECKING:
    from anyformer.build import build
    from anyformer.checkpoint import load, save
    from anyformer.count import count
    from anyformer.generate import generate
    from anyformer.names import spec
    from anyformer.spec import override

# public name -> the module it lives in, imported on first use: `import anyformer` itself does not import torch
_PUBLIC = {
    "spec": "anyformer.names",
    "override": "anyformer.spec",
    "build": "anyformer.build",
    "load": "anyformer.checkpoint",
    "save": "anyformer.checkpoint",
    "count": "anyformer.count",
    "generate": "anyformer.generate",
}

__all__ = ["__version__", "build", "count", "generate", "load", "override", "save", "spec"]


class _Package(types.ModuleType):
    """Some public functions (`spec`, `build`, `count`) are called like the modules they live in. Importing such a
    module would put it in place of the function; here the function wins; `from anyformer.count import ...` works."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _PUBLIC and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name not in _PUBLIC:
            raise AttributeError(f"module 'anyformer' has no attribute {name!r}")
        import importlib

        value = getattr(importlib.import_module(_PUBLIC[name]), name)
        super().__setattr__(name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_PUBLIC})


sys.modules[__name__].__class__ = _Package
