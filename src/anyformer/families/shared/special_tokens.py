"""Special tokens under the names of published configs."""

from __future__ import annotations

from typing import Any

from anyformer import families
from anyformer.families.base.fields import COMMON, Absent, Entry
from anyformer.parts import Model
from anyformer.specs.part import Table, thaw


def token_ids(spec: Model) -> dict[str, Any]:
    """Return the special tokens of a description: from its config, or the family's published defaults."""
    known = families.find(spec.family).all_fields if spec.family else COMMON
    tokens = {}
    for name in (n for n in known if n.endswith("_token_id")):
        field = known[name]
        try:
            value = field.recover(spec) if isinstance(field, Entry) else None
        except Absent:
            value = None
        value = value if value is not None else thaw(Table(spec.source)).get(name, field.default)
        if value is not None:
            tokens[name] = value
    return tokens
