"""Find and change values of a description by address patterns.

`*` matches one step, `**` any number of steps, and `head[TagHead]` only a value of that kind. If a stack has several
kinds of layers, `decoder.layers.attention` matches the step of each kind. Items of tuples are addressed by index:
`encoder.stages.0`.

>>> import anyformer as af
>>> spec = af.spec("gpt2")
>>> [".".join(path) for path, _ in find(spec, "decoder.layers.*.pre_norm.eps")]
['decoder.layers.attention.pre_norm.eps', 'decoder.layers.feedforward.pre_norm.eps']
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from anyformer.specs.frozen import Table
from anyformer.specs.messages import quote
from anyformer.specs.part import CHECKS_DEFERRED, Part, hints, walk

Path = tuple[str, ...]


def find(spec: Any, address: str) -> Iterator[tuple[Path, Any]]:
    """Yield (path, value) of everything that an address pattern matches."""
    return _find(spec, address.split("."), ())


def _find(node: Any, steps: Sequence[str], path: Path) -> Iterator[tuple[Path, Any]]:
    if not steps:
        yield path, node
        return
    name, _, kind = steps[0].removesuffix("]").partition("[")
    if name == "**":
        yield from _find(node, steps[1:], path)
        for each, value in children(node).items():
            if isinstance(value, (Part, Table, tuple)):
                yield from _find(value, steps, (*path, each))
        return
    for inner, value in _inside(node, name):
        if inner is None:  # one of several kinds of layers, which contains the step
            yield from _find(value[1], steps, (*path, value[0]))
        elif not kind or any(base.__name__ == kind for base in type(value).__mro__):
            yield from _find(value, steps[1:], (*path, inner))


def _inside(node: Any, name: str) -> Iterator[tuple[str | None, Any]]:
    """Yield (name, value) of everything that one step matches; the name is None for a kind of layer."""
    if isinstance(node, Part) and not node.open_fields:
        names = hints(type(node))
        for each in names if name == "*" else [name] if name in names else []:
            yield each, getattr(node, each)
    else:
        items = children(node)
        layers = isinstance(node, Table) and all(isinstance(v, Part) and v.open_fields for v in items.values())
        if items and layers and name not in items:
            yield from ((None, item) for item in items.items())
        elif name == "*":  # matches all keys, even if one of them is "*" (`init`)
            yield from items.items()
        elif name in items:
            yield name, items[name]


def children(node: Any) -> dict[str, Any]:
    """Return the values directly in a Part, a Table or a tuple, by the name of their step."""
    if isinstance(node, tuple):
        return {str(i): value for i, value in enumerate(node)}
    return dict(node.items()) if isinstance(node, (Part, Table)) else {}


def replace_all(node: Any, changes: Mapping[Path, Any]) -> Any:
    """Return a copy with new values at these paths; each Part on the way is constructed once. In a Part with open
    fields, the value None removes a field."""
    if () in changes:
        return changes[()]
    inside: dict[str, dict[Path, Any]] = {}
    for (name, *rest), value in changes.items():
        inside.setdefault(name, {})[tuple(rest)] = value
    items = children(node).items()
    values = {name: replace_all(value, inside[name]) if name in inside else value for name, value in items}
    if isinstance(node, tuple):
        return tuple(values.values())
    if isinstance(node, Table):
        return Table(values)
    if node.open_fields:
        values = {name: value for name, value in values.items() if value is not None}
    return type(node)(**values)


def edit(spec: Any, changes: Mapping[str, Any]) -> Any:
    """Return a copy with every matching value replaced; raise if an address matches nothing."""
    paths = {address: [path for path, _ in find(spec, address)] for address in changes}
    if missing := [address for address, found in paths.items() if not found]:
        raise ValueError(f"this {type(spec).__name__} has no {', '.join(missing)}")
    return replace_all(spec, {path: changes[address] for address, found in paths.items() for path in found})


# -- plain paths -------------------------------------------------------------------------------------------------------


def value_at(spec: Part, path: str) -> Any:
    """Return the value at a dotted path: `value_at(spec, "decoder.layers.3.attention.op.num_heads")`."""
    values: list[Any] = []

    def keep(value: Any) -> Any:
        values.append(value)
        return value

    try:
        spec.edit(tuple(path.split(".")), keep)
    except KeyError as error:
        raise ValueError(f"no {quote(path)} in this {type(spec).__name__}: {error.args[0]}") from None
    return values[0]


def with_values(spec: Part, changes: Mapping[str, Any]) -> Any:
    """Return a copy of `spec` with new values at dotted paths. Checks run after all changes, so the order of changes
    that are only valid together (heads and key/value heads) does not matter."""
    old = spec
    try:
        with deferred_checks():
            for path, value in changes.items():
                spec = spec.edit(tuple(path.split(".")), _always(value))
    except KeyError as error:
        raise ValueError(f"no {quote(path)} in this {type(spec).__name__}: {error.args[0]}") from None
    except ValueError as error:  # raised by the Part that has the field: put the path in front
        raise ValueError(re.sub(rf"^\w+\.{re.escape(path.rpartition('.')[2])}\b", path, str(error))) from None
    if spec is not old:
        check_all(spec)
    return spec


@contextlib.contextmanager
def deferred_checks() -> Iterator[None]:
    """Do not check Parts that are constructed inside the context; call `check_all` afterwards."""
    token = CHECKS_DEFERRED.set(True)
    try:
        yield
    finally:
        CHECKS_DEFERRED.reset(token)


@contextlib.contextmanager
def errors_at(path: str, kind: type[Part]) -> Iterator[None]:
    """Make ValueErrors start with the address of the Part instead of its kind."""
    try:
        yield
    except ValueError as error:
        text = str(error).removeprefix(f"{kind.__name__}.").removeprefix(f"{kind.__name__}: ")
        inside = text.startswith(tuple(f"{name}{end}" for name in hints(kind) for end in (":", ".", " is ", " are ")))
        raise ValueError(f"{path}{'.' if inside else ': '}{text}" if path else text) from None


def check_all(spec: Part) -> None:
    """Check every Part of a description, innermost first, as if the Parts were constructed now."""
    for address, part in reversed([*walk(spec)]):
        with errors_at(address, type(part)):
            part.check_fields()


def _always(value: Any) -> Callable[[Any], Any]:
    return lambda old: value
