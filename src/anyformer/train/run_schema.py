"""The JSON schema of run.json for editors, built from the fields, types and defaults of Parts."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from anyformer.specs.codec import FORMAT, encode
from anyformer.specs.field_types import annotated_hints
from anyformer.specs.part import Part, Table, kinds_for, slot_types
from anyformer.specs.slots import ANY, fields_of, needs_kind, only_kind, slots_of
from anyformer.train.run import Run, every_kind

JSON_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null", None: "null"}


def schema() -> dict[str, Any]:
    """Return the schema of run.json with every kind of Part."""
    every_kind()
    defined: dict[str, Any] = {}
    run = object_schema(Run, defined)
    run["properties"] |= {
        "$schema": {"type": "string", "description": "location of this schema, for editors"},
        "anyformer": {"const": FORMAT, "description": "format version"},
        "model": {
            "anyOf": [
                {"type": "string", "description": "a name from the zoo, a folder or a hub id"},
                run["properties"]["model"],
            ]
        },
        "set": {"type": "object", "description": 'values to override, by address: {"model.width": 96}'},
    }
    run["required"] = ["anyformer", *run["required"]]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "anyformer run",
        **run,
        "$defs": defined,
    }


def object_schema(kind: type[Part], defined: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a kind; add the kinds inside it to `defined`."""
    about = {field["name"]: field["about"] for field in fields_of(kind)}
    properties: dict[str, Any] = {"kind": {"const": kind.__name__}}
    required: list[str] = []
    for field in dataclasses.fields(kind):
        entry = properties[field.name] = value_schema(annotated_hints(kind)[field.name], defined)
        if about[field.name]:
            entry["description"] = about[field.name]
        if field.default is not dataclasses.MISSING:
            entry["default"] = encode(field.default)
        elif field.default_factory is dataclasses.MISSING:
            required.append(field.name)
    additional = value_schema(slots_of(kind)[ANY], defined) if kind.open_fields else False
    return {
        "type": "object",
        "description": " ".join((kind.__doc__ or "").split()),
        "properties": properties,
        "required": required,
        "additionalProperties": additional,
    }


def value_schema(hint: Any, defined: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a field with this type."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return {}
    if origin is Annotated:  # a number with a range
        return {**value_schema(inner[0], defined), **inner[1].schema()}
    if origin is Literal:
        return {"enum": [*inner]}
    if needs_kind(hint):
        additional = [value_schema(each, defined) for each in inner if not slot_types(each)]
        part = {"$ref": f"#/$defs/{define_slot(hint, defined)}"}
        return {"anyOf": [part, *additional]} if additional else part
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [value_schema(each, defined) for each in inner]}
    if origin is tuple and inner[1:] == (...,):
        return {"type": "array", "items": value_schema(inner[0], defined)}
    if origin is tuple:
        return {
            "type": "array",
            "prefixItems": [value_schema(each, defined) for each in inner],
            "minItems": len(inner),
            "maxItems": len(inner),
        }
    if origin in (Mapping, Table) or hint in (Mapping, Table):
        items = {"type": "object", "additionalProperties": value_schema(inner[1], defined) if inner else {}}
        named = {
            "type": "object",
            "properties": {"kind": {"const": "Table"}, "items": items},
            "required": ["kind", "items"],
            "additionalProperties": False,
        }
        return {"anyOf": [{**items, "not": {"required": ["kind"]}}, named]}
    if hint is Part:
        return {"type": "object", "required": ["kind"]}
    return {"type": JSON_TYPES[hint]}


def define_slot(hint: Any, defined: dict[str, Any]) -> str:
    """Add the schema of a slot, whose `kind` selects the case, to `defined` and return its name."""
    known = kinds_for(hint)
    name = only_kind(hint) or f"any {' or '.join(sorted({each.__name__ for each in slot_types(hint)}))}"
    if name not in known:
        cases = [
            {"if": {"properties": {"kind": {"const": each}}}, "then": {"$ref": f"#/$defs/{each}"}} for each in known
        ]
        kinds = {"kind": {"enum": [*known]}}
        defined[name] = {"type": "object", "required": ["kind"], "properties": kinds, "allOf": cases}
    for each, kind in known.items():
        if each not in defined:
            defined[each] = {}  # a kind can contain itself
            defined[each] = object_schema(kind, defined)
    return name
