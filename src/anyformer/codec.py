"""Descriptions as JSON, and descriptions changed by paths: what must know every kind of Part.

>>> from anyformer.parts.norm import LayerNorm
>>> norm = LayerNorm(eps=1e-6)
>>> decode(encode(norm)) == norm
True
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import pkgutil
import sys
import warnings
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, TypeVar

import anyformer.block
import anyformer.funnel
import anyformer.mask
import anyformer.model
import anyformer.parts
from anyformer.part import Part, Table, default_values, edited, freeze, nearest

GROUP = "anyformer.parts"  # entry points of packages that bring Parts
FORMAT = 1  # of spec.json; raised when an old file would be read wrongly

P = TypeVar("P", bound=Part)


def override(spec: P, changes: Mapping[str, Any]) -> P:
    """A copy of `spec` with other values at dotted paths; an unknown path or a value of the wrong type raises.

    Values are plain values, Parts, or Parts written as JSON (`{"kind": "RMSNorm"}`). The order of changes that are only
    valid together (heads and key/value heads) does not matter.
    """
    if not isinstance(spec, Part):
        raise ValueError(f"a description can be overridden, as af.spec gives it, not a {type(spec).__name__}")
    if not isinstance(changes, Mapping) or not all(isinstance(path, str) for path in changes):
        raise ValueError(f"changes are {{path: value}}, such as {{'width': 96}}, got {changes!r:.80}")
    return edited(spec, {p: decode(v) if isinstance(v, (dict, list)) else freeze(v) for p, v in changes.items()})


def encode(value: Any) -> Any:
    """A description as JSON-able data: each Part an object with its `kind` and the fields not at their default."""
    if isinstance(value, Part):
        defaults = default_values(type(value))
        fields = {k: encode(v) for k, v in value.items() if k not in defaults or defaults[k] != v}
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, Table):
        fields = {key: encode(item) for key, item in value.items()}
        return {"kind": "Table", "items": fields} if "kind" in fields else fields  # a label may be called so
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    return value


def decode(data: Any, where: str = "") -> Any:
    """The inverse of `encode`; unknown kinds and fields raise and name the nearest valid one."""
    if isinstance(data, dict) and "kind" in data:
        known, kind = kinds(), data["kind"]
        if kind == "Table" and set(data) == {"kind", "items"} and isinstance(data["items"], dict):
            return Table({key: decode(item, f"{where}.{key}") for key, item in data["items"].items()})
        if not isinstance(kind, str) or kind not in known:
            hint = "one that is not anyformer's needs its module: --import MODULE, or import it first"
            raise ValueError(f"{where or 'description'}: unknown kind {kind!r}; {nearest(str(kind), known)} ({hint})")
        cls = known[kind]
        values = {k: decode(v, f"{where}.{k}" if where else k) for k, v in data.items() if k != "kind"}
        fields = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
        for name in values:
            if not cls.open_fields and name not in fields:
                raise ValueError(f"{where or kind}: {kind} has no field {name!r}; {nearest(name, fields)}")
        try:
            return cls(**values)
        except TypeError as error:  # a required field is missing
            raise ValueError(f"{where or kind}: {error}") from None
    if isinstance(data, dict):
        return Table({key: decode(item, f"{where}.{key}") for key, item in data.items()})
    if isinstance(data, list):
        return tuple(decode(item, f"{where}.{i}") for i, item in enumerate(data))
    return data


def to_json(spec: Part) -> str:
    return json.dumps({"anyformer": FORMAT, **encode(spec)}, indent=1)


def from_json(data: Mapping[str, Any]) -> Any:
    """The description in the parsed content of a spec.json."""
    if not isinstance(data, Mapping):
        raise ValueError(f"not a description: expected an object, got a {type(data).__name__}")
    data = dict(data)
    version = data.pop("anyformer", None)
    if version != FORMAT:
        raise ValueError(f"not a description of format {FORMAT}: 'anyformer' is {version!r}")
    try:
        spec = decode(data)
    except RecursionError:
        raise ValueError("not a description: nested too deeply") from None
    if not isinstance(spec, Part):
        raise ValueError("not a description: it has no 'kind'")
    return spec


def kinds() -> dict[str, type[Part]]:
    """Every kind of Part by name, those of other packages included: what a description may be made of."""
    _import_kinds()
    return Part.kinds


@functools.cache
def _import_kinds() -> None:
    """Parts register when their module is imported. Ours come first, then what installed packages offer under the entry
    point group `anyformer.parts`: nothing that a file says decides what is imported."""
    for module in pkgutil.iter_modules(anyformer.parts.__path__):
        importlib.import_module(f"anyformer.parts.{module.name}")
    for point in entry_points(group=GROUP):
        try:
            point.load()
        except (Exception, SystemExit) as error:
            for name in [name for name, kind in Part.kinds.items() if kind.__module__ not in sys.modules]:
                del Part.kinds[name]  # of a module that got half way
            package = point.dist.name if point.dist else "a package"
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            warnings.warn(f"{GROUP}: {point.value} of {package} is left out ({why})", stacklevel=2)
