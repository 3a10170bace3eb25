"""The JSON schema of a run.json, for editors: made from the fields, types and defaults that it is read by."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

from anyformer.specs.codec import FORMAT, encode
from anyformer.specs.part import Part, Table, fitting, hints, slot_types
from anyformer.specs.slots import ANY, fields_of, needs_kind, only_kind, slots_of
from anyformer.train.run import Run, every_kind

PLAIN = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null", None: "null"}


def schema() -> dict[str, Any]:
    """Of run.json, with every kind that may stand in it."""
    every_kind()
    defined: dict[str, Any] = {}
    run = described(Run, defined)
    run["properties"] |= {
        "$schema": {"type": "string", "description": "where this schema is; nothing reads it but editors"},
        "anyformer": {"const": FORMAT, "description": "of the format"},
        "model": {
            "anyOf": [
                {"type": "string", "description": "a name of the zoo, a folder or a hub id"},
                run["properties"]["model"],
            ]
        },
        "set": {"type": "object", "description": 'other values by address: {"model.width": 96}'},
    }
    run["required"] = ["anyformer", *run["required"]]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "a run of anyformer",
        **run,
        "$defs": defined,
    }


def described(kind: type[Part], defined: dict[str, Any]) -> dict[str, Any]:
    """An object of this kind; the kinds inside of it are added to those `defined`."""
    told = {field["name"]: field["about"] for field in fields_of(kind)}
    properties: dict[str, Any] = {"kind": {"const": kind.__name__}}
    needed: list[str] = []
    for field in dataclasses.fields(kind):
        entry = properties[field.name] = valued(hints(kind)[field.name], defined)
        if told[field.name]:
            entry["description"] = told[field.name]
        if field.default is not dataclasses.MISSING:
            entry["default"] = encode(field.default)
        elif field.default_factory is dataclasses.MISSING:
            needed.append(field.name)
    others = valued(slots_of(kind)[ANY], defined) if kind.open_fields else False
    return {
        "type": "object",
        "description": " ".join((kind.__doc__ or "").split()),
        "properties": properties,
        "required": needed,
        "additionalProperties": others,
    }


def valued(hint: Any, defined: dict[str, Any]) -> dict[str, Any]:
    """What may stand in a field of this type."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return {}
    if origin is Literal:
        return {"enum": [*inner]}
    if needs_kind(hint):
        others = [valued(each, defined) for each in inner if not slot_types(each)]
        part = {"$ref": f"#/$defs/{slot(hint, defined)}"}
        return {"anyOf": [part, *others]} if others else part
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [valued(each, defined) for each in inner]}
    if origin is tuple and inner[1:] == (...,):
        return {"type": "array", "items": valued(inner[0], defined)}
    if origin is tuple:
        return {
            "type": "array",
            "prefixItems": [valued(each, defined) for each in inner],
            "minItems": len(inner),
            "maxItems": len(inner),
        }
    if origin in (Mapping, Table) or hint in (Mapping, Table):
        items = {"type": "object", "additionalProperties": valued(inner[1], defined) if inner else {}}
        named = {
            "type": "object",
            "properties": {"kind": {"const": "Table"}, "items": items},
            "required": ["kind", "items"],
            "additionalProperties": False,
        }
        return {"anyOf": [{**items, "not": {"required": ["kind"]}}, named]}
    if hint is Part:
        return {"type": "object", "required": ["kind"]}
    return {"type": PLAIN[hint]}


def slot(hint: Any, defined: dict[str, Any]) -> str:
    """The name under which it is defined what may stand where these kinds fit: an object whose `kind` says the rest."""
    known = fitting(hint)
    name = only_kind(hint) or f"any {' or '.join(sorted({each.__name__ for each in slot_types(hint)}))}"
    if name not in known:
        cases = [
            {"if": {"properties": {"kind": {"const": each}}}, "then": {"$ref": f"#/$defs/{each}"}} for each in known
        ]
        kinds = {"kind": {"enum": [*known]}}
        defined[name] = {"type": "object", "required": ["kind"], "properties": kinds, "allOf": cases}
    for each, kind in known.items():
        if each not in defined:
            defined[each] = {}  # a kind may stand inside of itself
            defined[each] = described(kind, defined)
    return name
