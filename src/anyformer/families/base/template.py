"""A family as data: the literal description with the published defaults (template), the published classes over it, and
config entries that name addresses in it.

An entry works in both directions: a published value is put at its addresses, and read back there. Its default is what
stands in the template. An address that a class does not have is passed over.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from anyformer.families.base.fields import Absent, ConfigField, Field
from anyformer.models import Model
from anyformer.parts.activation import activation_named, published_name
from anyformer.parts.head.base import Head
from anyformer.specs.addresses import Path, check_all, children, deferred_checks, edit, find, replace_all, value_at
from anyformer.specs.messages import nearest, quote
from anyformer.specs.part import Part, conform, hints, thaw
from anyformer.weights.rules import Copies, Interleave, Rename, Reshape, Rule, Split, Transpose

TEMPLATE: Any = type("Template", (), {"__repr__": lambda self: "as in the template"})()


class Config(SimpleNamespace):
    """The fields of one config.json, with the published defaults of those that it leaves out."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"this config has no field {name}")


# -- entries ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Entry(Field):
    """A published field and where its value stands. `read` makes of the published value (and the rest of the config)
    what stands there, `write` is its inverse. Where a field changes the structure, `build` makes the new description
    once all values stand, and `path` reads the field back from the whole of it."""

    default: Any = TEMPLATE
    addresses: tuple[str, ...] = ()
    read: Callable[[Any, Config], Any] | None = None
    write: Callable[[Any], Any] | None = None
    build: Callable[[Any, Any, Config], Any] | None = None  # (description, value, config) -> description

    def places(self, spec: Model) -> Iterator[tuple[Path, Any]]:
        for address in self.addresses:
            yield from find(spec, address)

    def recover(self, spec: Model) -> Any:
        if self.path is not None:
            return super().recover(spec)
        for _, value in self.places(spec):
            try:
                return thaw(value if self.write is None else self.write(value))
            except (ValueError, AttributeError, KeyError):  # no config can say it
                break
        raise Absent


def omit_field(spec: Model) -> Any:
    """The path of a field that is not written: another one says the same."""
    raise Absent


def entry(*addresses: str, default: Any = TEMPLATE, **more: Any) -> Entry:
    return Entry(default, addresses=addresses, **more)


def choice(address: str, table: Mapping[Any, Any], default: Any = TEMPLATE, **more: Any) -> Entry:
    """Published value -> ours, by a table."""
    back = {ours: theirs for theirs, ours in table.items()}

    def read(value: Any, c: Config) -> Any:
        if value not in table:
            raise ValueError(f"is not supported; {nearest(str(value), map(str, table))}")
        return table[value]

    return entry(address, default=default, read=read, write=lambda ours: back[ours], **more)


def activation(*addresses: str, default: Any = TEMPLATE, **more: Any) -> Entry:
    """A function by its published name."""
    return entry(*addresses, default=default, read=lambda name, c: activation_named(name), write=published_name, **more)


def derived(
    *addresses: str,
    of: Callable[[Config], Any],
    default: Any = None,
    unset: tuple[Any, ...] = (None, 0),
    usual: Callable[[Any], Any] | None = None,
) -> Entry:
    """A field that is `of` others where it is `unset`. Where a description has the `usual` value, None is written."""

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
    """Whether there is a step that the template has."""

    def build(spec: Model, value: bool, c: Config) -> Model:
        return spec if value else edit(spec, {address: None})

    return Entry(default, lambda spec: any(True for _ in find(spec, address)), build=build)


def tied(default: bool, **outputs: str) -> Entry:
    """Whether a head shares the embedding's weights: kind of head -> the address of what it shares."""

    def build(spec: Model, value: bool, c: Config) -> Model:
        address = outputs.get(type(spec.head).__name__)
        return spec.replace(ties=(*spec.ties, (address, "embedding.tokens.weight"))) if address and value else spec

    def recover(spec: Model) -> bool:
        if type(spec.head).__name__ not in outputs:
            raise Absent
        return any(name.startswith("head.") for name, _ in spec.ties)

    return Entry(default, recover, build=build)


def read_only_entry(default: Any = None, **more: Any) -> Entry:
    """A field that another entry reads, and writes for it."""
    return Entry(default, omit_field, **more)


HEAD_FIELDS: dict[str, Entry] = {"problem_type": entry("head.problem", default=None)}  # in every family


def resolve_fields(config: Mapping[str, Any], templates: Sequence[Model]) -> dict[str, ConfigField]:
    """The fields of a config; those without a default have that of the template."""
    fields: dict[str, ConfigField] = {}
    for name, given in {**HEAD_FIELDS, **config}.items():
        if given is None:  # a field that a related family has
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
    raise AssertionError(f"{name}: no class has {field.addresses}")


def fill_template(
    spec: Model, fields: Mapping[str, ConfigField], computed: Mapping[str, Callable[[Config], Any]], c: Config
) -> Any:
    """A template with the values of a config in their places, and at some addresses what is computed of several."""
    changes: dict[Path, Any] = {}
    names: dict[str, str] = {}  # address -> the published field that stands there as it is
    entries = {name: field for name, field in fields.items() if isinstance(field, Entry)}
    for name, field in {**entries, "num_labels": entry("head.num_labels")}.items():
        for path, old in field.places(spec):
            value = getattr(c, name)
            new = value if field.read is None else _read(field.read, name, value, c)
            if new is not old and (new != old or type(new) is not type(old)):
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
    except ValueError as error:  # of someone who knows no field
        raise ValueError(str(error) if name in str(error) else f"{name}={quote(value)} {error}") from None


def divides(part: str, whole: str) -> Callable[[Config], None]:
    """A check of a family: `part` equal pieces make up `whole`."""

    def check(c: Config) -> None:
        if getattr(c, whole) % getattr(c, part):
            raise ValueError(f"{whole} {getattr(c, whole)} is not a multiple of {part} {getattr(c, part)}")

    return check


def require_integer(name: str) -> Callable[[Config], None]:
    """A check of a family: a field that no address holds as it is, is a whole number."""

    def check(c: Config) -> None:
        if type(value := getattr(c, name)) is not int:
            raise ValueError(f"{name} is {quote(value)}, which is not a whole number")

    return check


equal_heads = divides("num_attention_heads", "hidden_size")  # under the names that most families have


# -- classes and weights ----------------------------------------------------------------------------------------------

Weights = Mapping[Any, Any]  # published module(s) -> our address, or a function that gives rules


@dataclasses.dataclass(frozen=True)
class Class:
    """A published class: its head over the template, what files call the head's output layer (`out`), the prefix of the
    base model's names where it is not the family's, other values in the template, or a template of its own."""

    head: Head | None = None
    out: str = ""
    prefix: str | None = None
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    template: Model | None = None
    weights: Weights = dataclasses.field(default_factory=dict)  # tried before the family's

    def apply_to(self, template: Model) -> Model:
        return edit(self.template or template, {**self.changes, "head": self.head})


def rules_of(weights: Weights, spec: Model) -> Iterator[Rule]:
    """The rules of a table of weights, for one description."""
    for theirs, ours in weights.items():
        if isinstance(theirs, tuple):  # one tensor under several names
            yield Copies([f"{name}.weight" for name in theirs], f"{ours}.weight")
        elif callable(ours):
            yield from ours(theirs, spec)
        elif ours is not None:
            if ours.startswith("*."):  # the only stack, whichever it is
                ours = ("decoder" if hasattr(spec, "decoder") else "encoder") + ours[1:]
            for one, other in zip(expand(theirs), expand(ours), strict=True):
                yield Rename(f"{one}.{{p}}", f"{other}.{{p}}")


def expand(text: str) -> list[str]:
    """`{q,k}_proj` is q_proj and k_proj, of several such all combinations; `{i}` stays."""
    if (found := re.search(r"\{([\w.]+(?:,[\w.]+)+)\}", text)) is None:
        return [text]
    names = found[1].split(",")
    return [whole for name in names for whole in expand(text[: found.start()] + name + text[found.end() :])]


def conv1d(ours: str) -> Callable[[str, Any], list[Rule]]:
    """GPT-2's layers: matrices are stored transposed, and several of them in one."""
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
    """A tensor that has a name of its own: it is not the weight or bias of a layer. `shape` is that of the stored one,
    if it is another."""

    def rules(theirs: str, spec: Model) -> list[Rule]:
        pairs = zip(expand(theirs), expand(ours), strict=True)
        return [Rename(*pair) if shape is None else Reshape(*pair, shape) for pair in pairs]

    return rules


def split(ours: str) -> Callable[[str, Any], list[Rule]]:
    """One stored layer holds several of ours side by side."""
    return lambda theirs, spec: [
        Split(f"{theirs}.{p}", [f"{target}.{p}" for target in expand(ours)]) for p in ("weight", "bias")
    ]


def interleave(ours: str) -> Callable[[str, Any], list[Rule]]:
    """GPT-NeoX's attention: queries, keys and values stored as one, a piece of each for each head in turn."""
    targets, count = expand(ours), f"{ours.rpartition('.')[0].replace('.{i}', '')}.num_heads"

    def rules(theirs: str, spec: Model) -> list[Rule]:
        heads = value_at(spec, count)
        return [Interleave(f"{theirs}.{p}", [f"{each}.{p}" for each in targets], heads) for p in ("weight", "bias")]

    return rules
