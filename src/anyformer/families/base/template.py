"""A family as data: a literal description with the published defaults (the template), the published classes on top of
it, and config entries that name addresses in it.

An entry works in both directions: import writes a published value to the entry's addresses, export reads it back from
there. The default is the template's value. Addresses that a class does not have are skipped.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from anyformer.families.base.fields import TEMPLATE, Absent, ConfigField
from anyformer.families.base.fields import Config as Config
from anyformer.families.base.fields import Entry as Entry
from anyformer.parts import Head, Model
from anyformer.parts.activation import activation_named, published_name
from anyformer.specs.addresses import Path, check_all, children, deferred_checks, edit, find, replace_all, value_at
from anyformer.specs.messages import nearest, quote
from anyformer.specs.part import Part, conform, hints
from anyformer.weights.rules import Copies, Interleave, Rename, Reshape, Rule, Split, Transpose

# -- entries ----------------------------------------------------------------------------------------------------------


def omit_field(spec: Model) -> Any:
    """The path of a field that is never written, because another field contains the same information."""
    raise Absent


def entry(*addresses: str, default: Any = TEMPLATE, **more: Any) -> Entry:
    return Entry(default, addresses=addresses, **more)


def choice(address: str, table: Mapping[Any, Any], default: Any = TEMPLATE, **more: Any) -> Entry:
    """An entry whose published values are mapped to ours by a table."""
    inverse = {ours: theirs for theirs, ours in table.items()}

    def read(value: Any, c: Config) -> Any:
        if value not in table:
            raise ValueError(f"is not supported; {nearest(str(value), map(str, table))}")
        return table[value]

    return entry(address, default=default, read=read, write=lambda ours: inverse[ours], **more)


def activation(*addresses: str, default: Any = TEMPLATE, **more: Any) -> Entry:
    """An entry for an activation under its published name."""
    return entry(*addresses, default=default, read=lambda name, c: activation_named(name), write=published_name, **more)


def derived(
    *addresses: str,
    of: Callable[[Config], Any],
    default: Any = None,
    unset: tuple[Any, ...] = (None, 0),
    usual: Callable[[Any], Any] | None = None,
) -> Entry:
    """An entry that is computed by `of(config)` if its value is in `unset`. `usual` values are written as None."""

    def recover(spec: Model) -> Any:
        assert usual is not None
        value = value_at(spec, addresses[0])
        return None if value == usual(spec) else value

    return entry(
        *addresses,
        default=default,
        read=lambda value, c: of(c) if value in unset else value,
        path=None if usual is None else recover,
    )


def optional_step(address: str, default: bool = False) -> Entry:
    """A boolean entry: False removes this step from the template."""

    def build(spec: Model, value: bool, c: Config) -> Model:
        return spec if value else edit(spec, {address: None})

    return Entry(default, lambda spec: any(True for _ in find(spec, address)), build=build)


def kind_field(name: str, address: str, table: Mapping[Any, type[Part]], default: Any = TEMPLATE) -> dict[str, Entry]:
    """A config field that chooses the kind of the Parts at an address; they keep the fields that both kinds have."""
    inverse = {kind: theirs for theirs, kind in table.items()}

    def build(spec: Model, value: Any, c: Config) -> Model:
        if value not in table:
            raise ValueError(f"{name}={quote(value)} is not supported; {nearest(str(value), map(str, table))}")
        return replace_all(spec, {path: part.as_kind(table[value]) for path, part in find(spec, address)})

    def recover(spec: Model) -> Any:
        for _, part in find(spec, address):
            if type(part) in inverse:
                return inverse[type(part)]
        raise Absent

    return {name: Entry(default, recover, build=build)}


def tied(default: bool, **outputs: str) -> Entry:
    """A boolean entry: whether the head shares the embedding's weights. `outputs`: type of head -> address to tie."""

    def build(spec: Model, value: bool, c: Config) -> Model:
        address = outputs.get(type(spec.head).__name__)
        return spec.replace(ties=(*spec.ties, (address, "embedding.tokens.weight"))) if address and value else spec

    return Entry(default, head_is_tied(*outputs), build=build)


def head_is_tied(*heads: str) -> Callable[[Model], bool]:
    """Return a path function: whether a head of these types shares the embedding's weights."""

    def recover(spec: Model) -> bool:
        if type(spec.head).__name__ not in heads:
            raise Absent
        return any(name.startswith("head.") for name, _ in spec.ties)

    return recover


def read_only(default: Any = None, **more: Any) -> Entry:
    """An entry that is read on import and never written, because another entry writes its information."""
    return Entry(default, omit_field, **more)


HEAD_FIELDS: dict[str, Entry] = {"problem_type": entry("head.problem", default=None)}  # of all families


def resolve_fields(config: Mapping[str, Any], templates: Sequence[Model]) -> dict[str, ConfigField]:
    """Return the fields of a config, with defaults from the first of the templates that has the field."""
    fields: dict[str, ConfigField] = {}
    for name, given in {**HEAD_FIELDS, **config}.items():
        if given is None:  # a field of the related family that this family does not have
            continue
        field = entry(*((given,) if isinstance(given, str) else given)) if isinstance(given, (str, tuple)) else given
        if isinstance(field, Entry) and field.default is TEMPLATE:
            field = dataclasses.replace(field, default=_default(name, field, templates))
        fields[name] = field
    return fields


def _default(name: str, field: Entry, templates: Sequence[Model]) -> Any:
    for spec in templates:
        try:
            return field.recover(spec)
        except Absent:
            continue
    raise AssertionError(f"{name}: no class has an address {field.addresses}")


def fill_template(
    spec: Model, fields: Mapping[str, ConfigField], computed: Mapping[str, Callable[[Config], Any]], c: Config
) -> Any:
    """Return a template with the values of a config, and with computed values at the addresses of `computed`."""
    changes: dict[Path, Any] = {}
    names: dict[str, str] = {}  # address -> published field whose unchanged value it contains
    entries = {name: field for name, field in fields.items() if isinstance(field, Entry)}
    for name, field in {**entries, "num_labels": entry("head.num_labels")}.items():
        for path, old in field.places(spec):
            value = getattr(c, name)
            new = value if field.read is None else _read(field.read, name, value, c)
            if new != old or type(new) is not type(old):
                changes[path] = new
                if new is value:
                    names[".".join(path)] = name
    for address, compute in computed.items():
        changes |= {path: compute(c) for path, _ in find(spec, address)}
    with deferred_checks():
        for path, new in changes.items():
            owner = functools.reduce(lambda node, name: children(node)[name], path[:-1], spec)
            if isinstance(owner, Part) and not owner.open_fields:
                changes[path] = conform(new, hints(type(owner))[path[-1]], names.get(".".join(path), path[-1]))
        spec = replace_all(spec, changes) if changes else spec
        for name, field in entries.items():
            if field.build is not None:
                spec = field.build(spec, getattr(c, name), c)
    try:
        check_all(spec)
    except ValueError as error:
        text = str(error)
        for address, name in names.items():
            text = re.sub(rf"(?<![\w.]){re.escape(address)}(?![\w.]*\w)", name, text)
        raise ValueError(text) from None
    return spec


def _read(read: Callable[[Any, Config], Any], name: str, value: Any, c: Config) -> Any:
    try:
        return read(value, c)
    except ValueError as error:  # raised by code that does not know the field's name
        raise ValueError(str(error) if name in str(error) else f"{name}={quote(value)} {error}") from None


def divides(part: str, whole: str) -> Callable[[Config], None]:
    """Return a check that the field `whole` is a multiple of the field `part`."""

    def check(c: Config) -> None:
        if getattr(c, whole) % getattr(c, part):
            raise ValueError(f"{whole} {getattr(c, whole)} is not a multiple of {part} {getattr(c, part)}")

    return check


def require_integer(name: str) -> Callable[[Config], None]:
    """Return a check that a field is an integer, for fields that no address type-checks."""

    def check(c: Config) -> None:
        if type(value := getattr(c, name)) is not int:
            raise ValueError(f"{name} must be an integer, got {quote(value)}")

    return check


equal_heads = divides("num_attention_heads", "hidden_size")


# -- classes and weights ----------------------------------------------------------------------------------------------

Weights = Mapping[Any, Any]  # published module(s) -> our address or a function that returns rules


@dataclasses.dataclass(frozen=True)
class Class:
    """A published class: its head, the published name of the head's output layer (`out`), the prefix of tensor
    names if it is not the family's, changes to the template, or its own template."""

    head: Head | None = None
    out: str = ""
    prefix: str | None = None
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    template: Model | None = None
    weights: Weights = dataclasses.field(default_factory=dict)  # tried before the family's weights

    def apply_to(self, template: Model) -> Model:
        return edit(self.template or template, {**self.changes, "head": self.head})


def rules_of(weights: Weights, spec: Model) -> Iterator[Rule]:
    """Yield the rules of a weights table for one description."""
    for theirs, ours in weights.items():
        if isinstance(theirs, tuple):  # one tensor stored under several names
            yield Copies([f"{name}.weight" for name in theirs], f"{ours}.weight")
        elif callable(ours):
            yield from ours(theirs, spec)
        elif ours is not None:
            if ours.startswith("*."):  # the model's only stack
                ours = ("decoder" if spec.left_to_right else "encoder") + ours[1:]
            for one, other in zip(expand(theirs), expand(ours), strict=True):
                yield Rename(f"{one}.{{p}}", f"{other}.{{p}}")


def expand(text: str) -> list[str]:
    """Expand `{q,k}_proj` to q_proj and k_proj; several braces give all combinations. `{i}` is not expanded."""
    if (braces := re.search(r"\{([\w.]+(?:,[\w.]+)+)\}", text)) is None:
        return [text]
    names = braces[1].split(",")
    return [each for name in names for each in expand(text[: braces.start()] + name + text[braces.end() :])]


def conv1d(ours: str) -> Callable[[str, Any], list[Rule]]:
    """Rules of GPT-2's Conv1D layers: matrices are stored transposed, and q, k and v as one matrix."""
    targets = expand(ours)
    if len(targets) == 1:
        return lambda theirs, spec: [
            Transpose(f"{theirs}.weight", f"{ours}.weight"),
            Rename(f"{theirs}.bias", f"{ours}.bias"),
        ]
    return lambda theirs, spec: [
        Split(f"{theirs}.weight", [f"{target}.weight" for target in targets], transpose=True),
        Split(f"{theirs}.bias", [f"{target}.bias" for target in targets]),
    ]


def parameter(ours: str, shape: tuple[int, ...] | None = None) -> Callable[[str, Any], list[Rule]]:
    """Rules of a tensor that is not the weight or bias of a layer. `shape` is the stored shape, if it differs."""

    def rules(theirs: str, spec: Model) -> list[Rule]:
        pairs = zip(expand(theirs), expand(ours), strict=True)
        return [Rename(*pair) if shape is None else Reshape(*pair, shape) for pair in pairs]

    return rules


def split(ours: str) -> Callable[[str, Any], list[Rule]]:
    """Rules of one stored layer that concatenates several of ours."""
    return lambda theirs, spec: [
        Split(f"{theirs}.{p}", [f"{target}.{p}" for target in expand(ours)]) for p in ("weight", "bias")
    ]


def interleave(ours: str) -> Callable[[str, Any], list[Rule]]:
    """Rules of GPT-NeoX's attention: q, k and v are stored as one tensor, interleaved by head."""
    targets, count = expand(ours), f"{ours.rpartition('.')[0].replace('.{i}', '')}.num_heads"

    def rules(theirs: str, spec: Model) -> list[Rule]:
        heads = value_at(spec, count)
        return [Interleave(f"{theirs}.{p}", [f"{each}.{p}" for each in targets], heads) for p in ("weight", "bias")]

    return rules
