"""Encode descriptions as JSON, decode them, and override their fields by path.

>>> from anyformer.parts.norm import LayerNorm
>>> norm = LayerNorm(eps=1e-6)
>>> decode(encode(norm)) == norm
True
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Mapping
from typing import Any, TypeVar

from anyformer.specs.addresses import errors_at, value_at, with_values
from anyformer.specs.frozen import only_leaves
from anyformer.specs.messages import nearest, quote
from anyformer.specs.part import ANY, Part, Table, default_values, freeze, is_flat, nearest_kind, thaw
from anyformer.specs.slots import kinds, only_kind, slot_at, slots_of, wrong_kind

FORMAT = 1  # version of spec.json; increased if an old file would be read wrongly

ALIASES = {  # kinds and fields of earlier versions -> their new names
    "Idle": "Unused",
    "ConvPainter": "ConvDecoder",
    "KLPainter": "KLDecoder",
    "AutoencoderModel.painter": "image_decoder",
    "AutoencoderModel.reads": "input_name",
    "AutoencoderModel.says": "output_name",
    "LMHead.idle_bias": "unused_bias",
    "LatentAttention.turned_width": "rotary_width",
}

P = TypeVar("P", bound=Part)


def override(spec: P, changes: Mapping[str, Any]) -> P:
    """Return a copy of `spec` with new values at dotted paths; raise if a path is unknown or a type is wrong.

    Values are plain values, Parts, or Parts written as JSON (`{"kind": "RMSNorm"}`). The order of changes that are only
    valid together (heads and key/value heads) does not matter.
    """
    if not isinstance(spec, Part):
        raise ValueError(f"expected a description from af.spec, got {type(spec).__name__}")
    if not isinstance(changes, Mapping) or not all(isinstance(path, str) for path in changes):
        raise ValueError(f"changes must be {{path: value}}, such as {{'width': 96}}, got {quote(changes)}")
    new = with_values(spec, {path: _given(spec, path, value) for path, value in changes.items()})
    for path in changes:
        home = path.rpartition(".")[0]
        part, before = (value_at(each, home) if home else each for each in (new, spec))
        if isinstance(part, Part) and isinstance(before, Part):
            if line := part.sizes_left_behind(before, path, changes):
                warnings.warn(line, stacklevel=2)
    return new


def _given(spec: Part, path: str, value: Any) -> Any:
    if not isinstance(value, (dict, list)):
        return freeze(value)
    try:
        slot = slot_at(path, (type(spec),))
    except ValueError:  # an unknown path, which `with_values` reports
        slot = Part
    return decode(value, path, slot)


def encode(value: Any) -> Any:
    """Return a description as data for JSON: each Part is an object with its `kind` and its non-default fields."""
    if isinstance(value, Part):
        defaults = default_values(type(value))
        fields = {k: encode(v) for k, v in value.items() if k not in defaults or defaults[k] != v}
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, Table):
        fields = thaw(value) if is_flat(value) else {key: encode(item) for key, item in value.items()}
        return {"kind": "Table", "items": fields} if "kind" in fields else fields  # a label may be named "kind"
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    return value


def decode(data: Any, where: str = "", slot: Any = Part) -> Any:
    """Invert `encode`. An error about an unknown kind or field names the nearest one that fits the slot."""
    if isinstance(data, dict) and "kind" not in data and (only := only_kind(slot)) is not None:
        data = {"kind": only, **data}
    if isinstance(data, dict) and "kind" in data:
        known, kind = kinds(), data["kind"]
        if isinstance(kind, str) and kind not in known:
            kind = ALIASES.get(kind, kind)
        if kind == "Table" and set(data) == {"kind", "items"} and isinstance(data["items"], dict):
            return Table({key: decode(item, f"{where}.{key}", slot) for key, item in data["items"].items()})
        if not isinstance(kind, str) or kind not in known:
            hint = f"{nearest_kind(str(kind), slot)} (if another module defines it: --import MODULE)"
            raise ValueError(f"{where or 'description'}: unknown kind {quote(kind)}; {hint}")
        cls = known[kind]
        data = cls.upgrade({name: value for name, value in data.items() if name != "kind"})
        if data.get("kind", kind) != kind:  # another kind replaced an earlier version of this one
            return decode(data, where, slot)
        if why := wrong_kind(kind, slot):
            raise ValueError(f"{where}: {why}")
        given, slots = {_current(cls, name): value for name, value in data.items() if name != "kind"}, slots_of(cls)
        inner = {name: slots.get(name, slots.get(ANY, Part)) for name in given}
        path = f"{where}." if where else ""
        values = {name: decode(value, f"{path}{name}", inner[name]) for name, value in given.items()}
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for name in values:
            if not cls.open_fields and name not in fields:
                raise ValueError(f"{where or kind}: {kind} has no field {quote(name)}; {nearest(name, fields)}")
        needed = (f.name for f in fields.values() if f.default is f.default_factory is dataclasses.MISSING)
        missing = [name for name in needed if name not in values and not cls.open_fields]
        if missing:
            raise ValueError(f"{where or kind}: {kind} needs {' and '.join(missing)}")
        with errors_at(where, cls):
            return cls(**values)
    if isinstance(data, dict):
        if why := wrong_kind(None, slot):
            raise ValueError(f"{where}: {why}")
        if only_leaves(data.values()):
            return Table(data)
        return Table({key: decode(item, f"{where}.{key}", slot) for key, item in data.items()})
    if isinstance(data, list):
        if only_leaves(data):
            return tuple(data)
        return tuple(decode(item, f"{where}.{i}", slot) for i, item in enumerate(data))
    return data


def _current(cls: type[Part], field: str) -> str:
    """Return the current name of a field that may be from an earlier version, even if a base class declares it."""
    return next((ALIASES[old] for base in cls.mro() if (old := f"{base.__name__}.{field}") in ALIASES), field)


def to_json(spec: Part) -> str:
    return json.dumps({"anyformer": FORMAT, **encode(spec)}, indent=1)


def from_json(data: Mapping[str, Any]) -> Any:
    """Return the description in the parsed content of a spec.json."""
    if not isinstance(data, Mapping):
        raise ValueError(f"not a description: expected an object, got a {type(data).__name__}")
    data = dict(data)
    version = data.pop("anyformer", None)
    if version != FORMAT:
        raise ValueError(f"not a description of format {FORMAT}: 'anyformer' is {quote(version)}")
    try:
        spec = decode(data)
    except RecursionError:
        raise ValueError("not a description: nested too deeply") from None
    if not isinstance(spec, Part):
        raise ValueError("not a description: it has no 'kind'")
    return spec
