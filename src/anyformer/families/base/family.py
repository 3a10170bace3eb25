"""What a family file says: its published config, how that config becomes a description, and where its tensors go.

`describe` turns a config into a description. The way back is not written a second time: each config field names the
path where its value stands, and an export is accepted only if describing the recovered config gives the same
description again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from anyformer.families.base.fields import (
    COMMON,
    GENERATION,
    Absent,
    ConfigField,
    Field,
    Fixed,
    Removed,
    UnknownFieldWarning,
    affordable,
    labels,
    misfit,
    named_class,
    outside_vocabulary,
    tag_floats,
    untag_floats,
)
from anyformer.families.base.template import Class, Config, Weights, complete, fill, rules_of
from anyformer.models import Model
from anyformer.specs.addresses import edit, with_values
from anyformer.specs.messages import nearest, quote, shorten
from anyformer.specs.part import Part, Table, thaw, walk
from anyformer.weights.pieces import STEMS
from anyformer.weights.rules import Matched, Rule, plan


@dataclasses.dataclass(frozen=True)
class Size:
    """A named description: config values, the count its paper prints, and anything a reader should know."""

    config: Mapping[str, Any]
    published: float | None = None  # parameters, as rounded in the paper
    note: str = ""


# endings of tensor names before 2019, in every family: as TensorFlow calls them
LEGACY = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}

UNFIT = (TypeError, ArithmeticError, AttributeError, LookupError)  # raised by a description of unfit values


def no_function(given: Any) -> Any:
    raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Family:
    """One family of published models."""

    name: str  # config.json's model_type
    about: str
    # a family as data: `fields`, `describe`, `rules` and the classes below follow from these
    template: Any = None  # the description with the published defaults
    classes: Mapping[str, Class] = dataclasses.field(default_factory=dict)  # "" where none is published
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # published field -> addresses, or an entry
    weights: Weights | Callable[[Any], Weights] = dataclasses.field(default_factory=dict)
    computed: Mapping[str, Callable[[Config], Any]] = dataclasses.field(default_factory=dict)  # address -> of several
    checks: tuple[Callable[[Config], None], ...] = ()  # ValueError where fields of a config contradict each other
    # a family whose structure is a function of its config
    fields: Mapping[str, ConfigField] = dataclasses.field(default_factory=dict)
    describe: Callable[[Config], Model] = no_function
    rules: Callable[[Any], Sequence[Rule]] = no_function  # of the kind of model that `describe` makes
    architectures: tuple[str, ...] = ()  # class names; the first is the default; none where no class is published
    base: tuple[str, ...] = ()  # those without the prefix
    prefix: str = ""  # what the other classes put before the base model's names
    prefixes: Mapping[str, str] = dataclasses.field(default_factory=dict)  # classes that put something else there
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)  # other names of config fields
    dropped: tuple[str, ...] = ()  # templates of published tensors that hold nothing to learn
    absent: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)  # see `fields_from_weights`
    legacy: Mapping[str, str] = dataclasses.field(default_factory=dict)  # old endings of tensor names -> today's
    moved: Mapping[str, str] = dataclasses.field(default_factory=dict)  # old beginnings of tensor names -> today's
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)  # old names of classes -> today's
    sizes: Mapping[str, Size] = dataclasses.field(default_factory=dict)
    library: str = "transformers"  # whose classes they are
    pictures: str = "ViT"  # the kind of processor that reads for it where a folder's settings name none

    def __post_init__(self) -> None:
        if self.template is None:
            return
        templates = {name: each.apply_to(self.template) for name, each in self.classes.items()}
        fields = complete(self.config, [*templates.values()])

        def describe(c: Config) -> Model:
            for check in self.checks:
                check(c)
            return fill(templates[c.architecture], fields, self.computed, c)

        def rules(spec: Model) -> list[Rule]:
            weights = self.weights(spec) if callable(self.weights) else self.weights
            own = self.classes.get(spec.architecture, Class())  # a part of another model has no class
            out = {own.out: "head.out"} if own.out else {}
            return [*rules_of({**own.weights, **weights, **own.weights, **out}, spec)]

        prefixes = {name: each.prefix for name, each in self.classes.items() if each.prefix is not None}
        follows = {
            "fields": fields,
            "describe": describe,
            "rules": rules,
            "architectures": tuple(name for name in self.classes if name),
            "base": tuple(name for name, prefix in prefixes.items() if not prefix),
            "prefixes": {name: prefix for name, prefix in prefixes.items() if prefix},
        }
        for name, value in follows.items():
            object.__setattr__(self, name, value)

    def but(
        self,
        name: str,
        *,
        changes: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        weights: Weights | None = None,
        **others: Any,
    ) -> Family:
        """A related family: other values at addresses of the template, other config fields and weights (None: it has no
        such), and other values of whatever else a family has. It has sizes of its own."""
        assert not callable(self.weights) or weights is None, f"{self.name}.weights is a function of the description"
        own = weights or {}
        names = self.weights if callable(self.weights) else {**own, **self.weights, **own}  # its own come first
        template = edit(self.template, changes) if changes else self.template
        config = {**self.config, **(config or {})}
        return dataclasses.replace(
            self, name=name, **{"template": template, "config": config, "weights": names, "sizes": {}, **others}
        )

    @property
    def stem(self) -> str:
        """How the names of files with published weights begin."""
        return STEMS[self.library == "diffusers"]

    @property
    def unwritten(self) -> tuple[str, ...]:
        """Fields that every other config has and those of this library have not: in diffusers the weights say it."""
        return ("dtype",) if self.library == "diffusers" else ()

    def prefix_of(self, architecture: str) -> str:
        return "" if architecture in self.base else self.prefixes.get(architecture, self.prefix)

    def prefix_in(self, names: Iterable[str], architecture: str) -> str:
        """The prefix of a checkpoint with these names: one of the base model alone leaves it out."""
        prefix = self.prefix_of(architecture) or self.prefix
        return prefix if any(name.startswith(prefix) for name in names) else ""

    def fields_from_weights(self, names: Iterable[str], architecture: str) -> dict[str, Any]:
        """What a checkpoint with these names adds to its config: `absent` says which fields a tensor sets that is not
        there (a ViT without its pooler)."""
        names = {*names}
        prefix = self.prefix_in(names, architecture)
        missing = [fields for name, fields in self.absent.items() if name.replace("~", prefix) not in names]
        return {name: value for fields in missing for name, value in fields.items()}

    def current_names(self, names: Iterable[str]) -> dict[str, str]:
        """{today's name of a tensor: the name it is stored under}."""
        endings, found = {**LEGACY, **self.legacy}, {}
        for name in names:
            start = next((old for old in self.moved if name.startswith(old)), "")
            now = self.moved.get(start, "") + name.removeprefix(start)
            ending = next((old for old in endings if now.endswith(old)), None)
            found[now.removesuffix(ending) + endings[ending] if ending else now] = name
        return found

    def match(self, spec: Model, stored: list[str], targets: list[str]) -> Matched:
        """How stored tensors fill the addresses `targets` of a model of this description."""
        names = self.current_names(stored)
        prefix = self.prefix_in(names, spec.architecture)
        steps, orphans = plan(self.rules(spec), targets, prefix)
        assert not orphans, f"{self.name} has no rule for {orphans}"
        return Matched(names, steps, [template.replace("~", prefix) for template in self.dropped])

    @property
    def all_fields(self) -> dict[str, ConfigField]:
        return {**COMMON, **self.fields}

    def read(self, config: Mapping[str, Any], architecture: str | None = None) -> Model:
        """The description of a published config.json. Fields that the published class does not know change nothing
        there: they are kept, and named in one warning."""
        if strange := [each for name, value in config.items() for each in self._strange(name, value)]:
            names = ", ".join(map(repr, strange))
            warnings.warn(
                f"{self.name} config: the published class does not know {shorten(names, 4000)}; kept, without effect",
                UnknownFieldWarning,
                stacklevel=3,
            )
        return self._read(config, architecture)

    def _strange(self, name: str, value: Any) -> list[str]:
        """What of a field the published class does not know: all, nothing, or some names inside it."""
        field = self.all_fields.get(self.aliases.get(name, name))
        if isinstance(field, Field) and field.within and isinstance(value, Mapping):
            return [f"{name}.{inner}" for inner in value if inner not in field.within]
        unknown = field is None or (isinstance(field, Removed) and not field.takes(value))
        return [name] if unknown and name not in GENERATION else []

    def _read(self, config: Mapping[str, Any], architecture: str | None = None) -> Model:
        # of two names of one field the alias counts, as where they are published
        own = {name: value for name, value in config.items() if name not in self.aliases}
        config = tag_floats({**own, **{self.aliases[name]: value for name, value in config.items() if name not in own}})
        known = self.all_fields
        values = Config(**{name: field.default for name, field in known.items()})
        for name in (n for n in config if n in known):
            field, value = known[name], untag_floats(config[name])
            if isinstance(field, Fixed):
                if not isinstance(field, Removed) and not field.takes(value):
                    valid = ", ".join(map(repr, dict.fromkeys(map(str, (field.default, *field.allowed)))))
                    raise ValueError(
                        f"{self.name} config: {name}={quote(value)} is not supported ({field.why}); valid: {valid}"
                    )
                continue
            if value is None and isinstance(field.default, float):  # null: the default is meant, nothing else could run
                continue
            if isinstance(field, Field) and (wrong := misfit(name, value, field)):
                raise ValueError(f"{self.name} config: {name}={quote(value)} is {wrong}")
            affordable(name, value)
            setattr(values, name, False if value is None and isinstance(field.default, bool) else value)
        # a published class derives one field from another (num_decoder_layers) before it hears the other's alias
        values.unaliased = SimpleNamespace(**{n: own.get(n, known[n].default) for n in self.aliases.values()})
        for name, value in vars(values.unaliased).items():
            affordable(name, value)
        values.architecture = architecture = self._class_of(config, architecture)
        try:
            values.num_labels, tables = labels(config, known["num_labels"].default or 2)
            spec = self.describe(values).replace(family=self.name, architecture=architecture)
        except ValueError as error:
            raise ValueError(f"{self.name} config: {shorten(str(error), 800)}") from None
        except UNFIT as error:
            raise ValueError(f"{self.name} config: {self._at_fault(values, config)}") from error
        recovered = self.recover(spec)
        named = ("_class_name",) if self.library == "diffusers" else ()
        apart = ("model_type", "architectures", "id2label", "label2id", *named)
        kept = {**{n: v for n, v in config.items() if n not in apart}, **tables}
        return spec.replace(source={n: v for n, v in kept.items() if n not in recovered or recovered[n] != v})

    def _at_fault(self, values: Config, config: Mapping[str, Any]) -> str:
        """Which value of a config cannot be described at all (0 heads): the one in whose place the default can. Values
        of another type than the default, then those that are empty or zero, are suspected first."""
        fields = {n: field for n, field in self.all_fields.items() if n in config and isinstance(field, Field)}
        for name in sorted(fields, key=lambda n: (isinstance(config[n], type(fields[n].default)), bool(config[n]))):
            default = {name: fields[name].default}
            unaliased = SimpleNamespace(**{**vars(values.unaliased), **default})
            try:
                self.describe(Config(**{**vars(values), **default, "unaliased": unaliased}))
            except UNFIT:
                continue
            except ValueError:  # it is understood, and does not go with the rest
                pass
            return f"{name}={quote(config[name], 60)} is not a valid value"
        return "no model can be made of these values"

    def part(self, config: Mapping[str, Any], architecture: str) -> Model:
        """The description of a config that stands inside another: what it says of its origin is the other's matter."""
        return self._read(config, architecture).replace(family="", architecture="", source={})

    def _class_of(self, config: Mapping[str, Any], asked: str | None) -> str:
        """The class that is asked for, or the first of the config's, or else the family's own first."""
        classes = self.architectures or ("",)  # a family of which no class is published has descriptions alone
        name = asked or named_class(config) or classes[0]
        name = self.renamed.get(name, name)
        if found := [each for each in classes if each.lower() == str(name).lower()]:
            return found[0]
        valid = nearest(str(name), self.architectures)
        raise ValueError(f"{self.name} config: architecture {quote(name)} is not supported; {valid}")

    def write(self, spec: Model) -> dict[str, Any]:
        """The published config.json of a description; refused where no config says the same."""
        if not self.architectures:
            raise ValueError(f"no class of {self.name} is published; save it with format='anyformer'")
        recovered, kept = self.recover(spec), thaw(Table(spec.source))
        size, num_labels = recovered.get("vocab_size", math.inf), getattr(spec.head, "num_labels", None)
        if num_labels and "num_labels" not in recovered and "id2label" not in kept:  # a published class names them so
            names = {f"LABEL_{i}": i for i in range(num_labels)}
            kept |= {"id2label": {str(i): name for name, i in names.items()}, "label2id": names}
        kept = {
            **{name: None for name, field in self.all_fields.items() if outside_vocabulary(name, field, size)},
            **kept,
        }
        inert = {n: v for n, v in kept.items() if not isinstance(self.all_fields.get(n), Field)}
        found, trained = [], None
        for config in ({**recovered, **kept}, {**kept, **recovered}, {**recovered, **inert}):
            named = {"architectures": [spec.architecture], "model_type": self.name}
            config = {**({"_class_name": spec.architecture} if self.library == "diffusers" else named), **config}
            again = self._read(config)
            if again.replace(source={}, note="") == spec.replace(source={}, note=""):
                return config
            if trained is None and as_trained(again) == as_trained(spec):
                trained = config
            found.append(differences(spec, again))
        if trained is not None:
            return trained
        kinds, values = min(found, key=lambda each: (len(each[0]), len(each[1])))
        why = next(iter((*kinds, *values)), "the descriptions differ")
        raise ValueError(
            f"this description is no longer a {self.name} that a published config can say: {why}; format='anyformer'"
            " saves it as it is"
        )

    def recover(self, spec: Model) -> dict[str, Any]:
        """The fields of a config that describes this, but for those that change nothing."""
        found = {}
        for name, field in self.fields.items():
            if isinstance(field, Field):
                with contextlib.suppress(Absent):
                    found[name] = tag_floats(field.recover(spec))
        return found

    def read_size(self, name: str) -> Model:
        """The named description `name` of this family."""
        size = self.sizes[name]
        return self.read({**size.config}).replace(note=size.note, source={})


FREE = ("source", "note")  # what a description may have of its own


def as_trained(spec: Model) -> Model:
    """Without how its weights start, which may depend on the depth and says nothing of those that it has."""
    models = [path for path, part in walk(spec) if isinstance(part, Model)]
    plain = with_values(spec, {f"{path}.init" if path else "init": Table({}) for path in models})
    return plain.replace(source={}, note="")


def differences(a: Part, b: Part) -> tuple[list[str], list[str]]:
    """Where two descriptions part, by address: other kinds of Part, and other values."""
    kinds, values = [], []
    right = dict(walk(b))
    for path, part in walk(a):
        other = right.get(path)
        if type(other) is not type(part):
            if path.rpartition(".")[0] in right:  # below what is another kind nothing is the same
                kinds.append(f"{path or 'the model'} is {_a(part)}, and {_a(other)} there")
            continue
        theirs = dict(other.items())
        for name, value in part.items():
            if value is None and isinstance(theirs.get(name), Part):
                kinds.append(f"{path}.{name} is nothing, and {_a(theirs[name])} there")
            elif not holds_parts(value) and value != theirs.get(name) and name not in FREE:
                if not isinstance(theirs.get(name), Part):
                    stored = quote(theirs.get(name), 80)
                    values.append(f"{path + '.' if path else ''}{name} is {quote(value, 80)}, and {stored} there")
    return kinds, values


def holds_parts(value: Any) -> bool:
    return isinstance(value, (Part, Table)) or (isinstance(value, tuple) and any(isinstance(v, Part) for v in value))


def _a(part: Part | None) -> str:
    return "nothing" if part is None else type(part).__name__
