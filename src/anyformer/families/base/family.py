"""Family: a published config, how it becomes a description, and where its tensors go.

`describe` turns a config into a description. The way back is not written separately: each config field names the path
of its value, and an export is accepted only if describing the recovered config gives the same description.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Literal

from anyformer.families.base.fields import (
    COMMON,
    GENERATION,
    Absent,
    ConfigField,
    Entry,
    Fixed,
    Removed,
    UnknownFieldWarning,
    check_count,
    explain_misfit,
    named_class,
    outside_vocabulary,
    read_labels,
    tag_floats,
    untag_floats,
)
from anyformer.families.base.template import Class, Config, Weights, fill_template, resolve_fields, rules_of
from anyformer.parts import Model
from anyformer.specs.addresses import edit, with_values
from anyformer.specs.messages import nearest, quote, shorten
from anyformer.specs.part import Part, Table, thaw, walk
from anyformer.weights.pieces import STEMS
from anyformer.weights.rules import Matched, Rule, plan


@dataclasses.dataclass(frozen=True)
class Size:
    """A named description: config values, the parameter count of the paper, and a note for readers."""

    config: Mapping[str, Any]
    published: float | None = None  # number of parameters, as rounded in the paper
    note: str = ""


def size_table(fields: str, rows: Mapping[str, tuple[Any, ...]], **shared: Any) -> dict[str, Size]:
    """Return a size per row, which has the values of `fields` (names separated by spaces), then the number of
    parameters and a note. All sizes have the `shared` values."""
    names = fields.split()
    return {name: Size({**dict(zip(names, row)), **shared}, *row[len(names) :]) for name, row in rows.items()}


# endings of tensor names in checkpoints before 2019, in all families; the names are TensorFlow's
LEGACY = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}

UNFIT = (TypeError, ArithmeticError, AttributeError, LookupError)  # raised by `describe` for invalid values


@dataclasses.dataclass(frozen=True)
class Family:
    """One family of published models."""

    name: str  # config.json's model_type
    about: str
    # the description with the published defaults; a function of the config if the structure depends on the config
    template: Any
    classes: Mapping[str, Class] = dataclasses.field(default_factory=dict)  # {"": ...} if none is published
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # published field -> addresses or Entry
    weights: Weights | Callable[[Any], Weights | list[Rule]] = dataclasses.field(default_factory=dict)
    computed: Mapping[str, Callable[[Config], Any]] = dataclasses.field(default_factory=dict)  # address -> function
    checks: tuple[Callable[[Config], None], ...] = ()  # raise ValueError if config fields contradict each other
    prefix: str = ""  # of the base model's tensor names, in classes that give no prefix
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)  # alias -> config field
    dropped: tuple[str, ...] = ()  # name patterns of published tensors that are not loaded
    absent: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)  # see `fields_from_weights`
    legacy: Mapping[str, str] = dataclasses.field(default_factory=dict)  # old ending of tensor names -> current ending
    moved: Mapping[str, str] = dataclasses.field(default_factory=dict)  # old start of tensor names -> current start
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)  # old class name -> current class name
    sizes: Mapping[str, Size] = dataclasses.field(default_factory=dict)
    library: str = "transformers"  # the library that publishes the classes
    pictures: str = "ViT"  # image processor of folders whose settings name none
    tokenizer: str | None = None  # tokenizer class of folders that name none; "": none is published
    # when transformers uses the defaults of its base class of tokenizers: if the folder names no class, or always
    base_tokenizer: Literal["", "unnamed", "always"] = ""
    # computed
    fields: Mapping[str, ConfigField] = dataclasses.field(init=False)
    describe: Callable[[Config], Model] = dataclasses.field(init=False)
    rules: Callable[[Any], Sequence[Rule]] = dataclasses.field(init=False)  # argument: a description
    architectures: tuple[str, ...] = dataclasses.field(init=False)  # class names; empty if none is published
    base: tuple[str, ...] = dataclasses.field(init=False)  # classes without the prefix
    prefixes: Mapping[str, str] = dataclasses.field(init=False)  # class -> its prefix, if it is not `prefix`

    def __post_init__(self) -> None:
        template = self.template
        templates = {} if callable(template) else {name: each.apply_to(template) for name, each in self.classes.items()}
        fields = resolve_fields(self.config, [*templates.values()])

        def describe(c: Config) -> Model:
            for check in self.checks:
                check(c)
            spec = template(c) if callable(template) else templates[c.architecture]
            return fill_template(spec, fields, self.computed, c)

        def rules(spec: Model) -> list[Rule]:
            weights = self.weights(spec) if callable(self.weights) else self.weights
            if isinstance(weights, list):
                return weights
            cls = self.classes.get(spec.architecture, Class())  # a model inside another model has no class
            out = {cls.out: "head.out"} if cls.out else {}
            return [*rules_of({**cls.weights, **weights, **cls.weights, **out}, spec)]

        prefixes = {name: each.prefix for name, each in self.classes.items() if each.prefix is not None}
        computed = {
            "fields": fields,
            "describe": describe,
            "rules": rules,
            "architectures": tuple(name for name in self.classes if name),
            "base": tuple(name for name, prefix in prefixes.items() if not prefix),
            "prefixes": {name: prefix for name, prefix in prefixes.items() if prefix},
        }
        for name, value in computed.items():
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
        """Return a related family: `changes` at addresses of the template, and `config` and `weights` that replace or
        (if None) remove entries. `others` replaces further fields. Sizes are not inherited."""
        assert not callable(self.weights) or weights is None, f"{self.name}.weights is a function of the description"
        new = weights or {}
        names = self.weights if callable(self.weights) else {**new, **self.weights, **new}  # new entries first
        template = edit(self.template, changes) if changes else self.template
        config = {**self.config, **(config or {})}
        return dataclasses.replace(
            self, name=name, **{"template": template, "config": config, "weights": names, "sizes": {}, **others}
        )

    @property
    def stem(self) -> str:
        """The start of the names of published weight files."""
        return STEMS[self.library == "diffusers"]

    @property
    def unwritten(self) -> tuple[str, ...]:
        """Common fields that configs of this library do not have. In diffusers the weights give the dtype."""
        return ("dtype",) if self.library == "diffusers" else ()

    def prefix_of(self, architecture: str) -> str:
        return "" if architecture in self.base else self.prefixes.get(architecture, self.prefix)

    def prefix_in(self, names: Iterable[str], architecture: str) -> str:
        """Return the prefix in a checkpoint with these names: "" if it contains only the base model."""
        prefix = self.prefix_of(architecture) or self.prefix
        return prefix if any(name.startswith(prefix) for name in names) else ""

    def fields_from_weights(self, names: Iterable[str], architecture: str) -> dict[str, Any]:
        """Return the config fields that `absent` sets because tensors are missing from the checkpoint (a ViT without
        its pooler)."""
        names = {*names}
        prefix = self.prefix_in(names, architecture)
        missing = [fields for name, fields in self.absent.items() if name.replace("~", prefix) not in names]
        return {name: value for fields in missing for name, value in fields.items()}

    def current_names(self, names: Iterable[str]) -> dict[str, str]:
        """Return {current name of a tensor: name in the file}."""
        endings, current = {**LEGACY, **self.legacy}, {}
        for name in names:
            start = next((old for old in self.moved if name.startswith(old)), "")
            now = self.moved.get(start, "") + name.removeprefix(start)
            ending = next((old for old in endings if now.endswith(old)), None)
            current[now.removesuffix(ending) + endings[ending] if ending else now] = name
        return current

    def match(self, spec: Model, stored: list[str], targets: list[str]) -> Matched:
        """Plan how stored tensors fill the addresses `targets` of a model with this description."""
        names = self.current_names(stored)
        prefix = self.prefix_in(names, spec.architecture)
        steps, orphans = plan(self.rules(spec), targets, prefix, names)
        assert not orphans, f"{self.name} has no rule for {orphans}"
        return Matched(names, steps, [template.replace("~", prefix) for template in self.dropped])

    @property
    def all_fields(self) -> dict[str, ConfigField]:
        return {**COMMON, **self.fields}

    def read(self, config: Mapping[str, Any], architecture: str | None = None) -> Model:
        """Return the description of a published config.json. Fields that the published class does not know have no
        effect; they are kept and listed in one warning."""
        if unknown := [each for name, value in config.items() for each in self._unknown_fields(name, value)]:
            names = ", ".join(map(repr, unknown))
            warnings.warn(
                f"{self.name} config: unknown to the published class: {shorten(names, 4000)}; kept, but without effect",
                UnknownFieldWarning,
                stacklevel=3,
            )
        spec, plain, tables = self._describe(config, architecture)
        recovered = self.recover(spec)
        named = ("_class_name",) if self.library == "diffusers" else ()
        not_kept = ("model_type", "architectures", "id2label", "label2id", "quantization_config", *named)
        kept = {**{n: v for n, v in plain.items() if n not in not_kept}, **tables}
        return spec.replace(source={n: v for n, v in kept.items() if n not in recovered or recovered[n] != v})

    def _unknown_fields(self, name: str, value: Any) -> list[str]:
        """Return the names in a field that the published class does not know: the field itself or keys inside it."""
        field = self.all_fields.get(self.aliases.get(name, name))
        if isinstance(field, Entry) and field.within and isinstance(value, Mapping):
            return [f"{name}.{inner}" for inner in value if inner not in field.within]
        unknown = field is None or (isinstance(field, Removed) and not field.takes(value))
        return [name] if unknown and name not in GENERATION else []

    def _describe(
        self, config: Mapping[str, Any], architecture: str | None = None
    ) -> tuple[Model, Mapping[str, Any], dict[str, Any]]:
        """Return the description of a config without its source, the config without aliases, and its label names."""
        # if a field has a value under both names, the alias wins, as in the published classes
        plain = {name: value for name, value in config.items() if name not in self.aliases}
        aliased = {self.aliases[name]: value for name, value in config.items() if name not in plain}
        config = tag_floats({**plain, **aliased})
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
            if value is None and isinstance(
                field.default, (float, dict)
            ):  # null means the default: nothing else could run
                continue
            if isinstance(field, Entry) and (reason := explain_misfit(name, value, field)):
                raise ValueError(f"{self.name} config: {name}={quote(value)} is {reason}")
            check_count(name, value)
            setattr(values, name, False if value is None and isinstance(field.default, bool) else value)
        # published classes derive some fields (num_decoder_layers) before aliases are applied
        values.unaliased = SimpleNamespace(**{n: plain.get(n, known[n].default) for n in self.aliases.values()})
        for name, value in vars(values.unaliased).items():
            check_count(name, value)
        values.architecture = architecture = self._choose_class(config, architecture)
        try:
            values.num_labels, tables = read_labels(config, known["num_labels"].default or 2)
            spec = self.describe(values).replace(family=self.name, architecture=architecture)
        except ValueError as error:
            raise ValueError(f"{self.name} config: {shorten(str(error), 800)}") from None
        except UNFIT as error:
            raise ValueError(f"{self.name} config: {self._name_bad_field(values, config)}") from error
        return spec, config, tables

    def _name_bad_field(self, values: Config, config: Mapping[str, Any]) -> str:
        """Return a message that names the field whose value cannot be described (0 heads): with its default, it can.
        Fields whose type differs from their default's are tried first, then empty and zero values."""
        fields = {n: field for n, field in self.all_fields.items() if n in config and isinstance(field, Entry)}
        for name in sorted(fields, key=lambda n: (isinstance(config[n], type(fields[n].default)), bool(config[n]))):
            default = {name: fields[name].default}
            unaliased = SimpleNamespace(**{**vars(values.unaliased), **default})
            try:
                self.describe(Config(**{**vars(values), **default, "unaliased": unaliased}))
            except UNFIT:
                continue
            except ValueError:  # it can be read, but contradicts other fields
                pass
            return f"{name}={quote(config[name], 60)} is not a valid value"
        return "these values do not describe a model"

    def part(self, config: Mapping[str, Any], architecture: str) -> Model:
        """Return the description of a config inside another config, without family, class and source."""
        return self._describe(config, architecture)[0].replace(family="", architecture="")

    def _choose_class(self, config: Mapping[str, Any], requested: str | None) -> str:
        """Return the requested class, else the first class of the config, else the first class of the family."""
        classes = self.architectures or ("",)  # a family without published classes
        name = requested or named_class(config) or classes[0]
        name = self.renamed.get(name, name)
        if matches := [each for each in classes if each.lower() == str(name).lower()]:
            return matches[0]
        valid = nearest(str(name), self.architectures)
        raise ValueError(f"{self.name} config: class {quote(name)} is not supported; {valid}")

    def write(self, spec: Model) -> dict[str, Any]:
        """Return the published config.json of a description. Raises ValueError if no config has this description."""
        if not self.architectures:
            raise ValueError(f"{self.name} has no published class; save the model with format='anyformer'")
        recovered, kept = self.recover(spec), thaw(Table(spec.source))
        size, num_labels = recovered.get("vocab_size", math.inf), getattr(spec.head, "num_labels", None)
        if num_labels and "num_labels" not in recovered and "id2label" not in kept:  # the published default names
            names = {f"LABEL_{i}": i for i in range(num_labels)}
            kept |= {"id2label": {str(i): name for name, i in names.items()}, "label2id": names}
        kept = {
            **{name: None for name, field in self.all_fields.items() if outside_vocabulary(name, field, size)},
            **kept,
        }
        inert = {n: v for n, v in kept.items() if not isinstance(self.all_fields.get(n), Entry)}
        mismatches, trained = [], None
        for config in ({**recovered, **kept}, {**kept, **recovered}, {**recovered, **inert}):
            named = {"architectures": [spec.architecture], "model_type": self.name}
            config = {**({"_class_name": spec.architecture} if self.library == "diffusers" else named), **config}
            reread, *_ = self._describe(config)
            if reread == spec.replace(source={}, note=""):
                return config
            if trained is None and without_init(reread) == without_init(spec):
                trained = config
            mismatches.append(differences(spec, reread))
        if trained is not None:
            return trained
        kinds, values = min(mismatches, key=lambda each: (len(each[0]), len(each[1])))
        why = next(iter((*kinds, *values)), "the descriptions differ")
        raise ValueError(
            f"no published {self.name} config has this description: {why}; save the model with format='anyformer'"
        )

    def recover(self, spec: Model) -> dict[str, Any]:
        """Return the config fields of a description, without fields that have no effect."""
        config = {}
        for name, field in self.fields.items():
            if isinstance(field, Entry):
                with contextlib.suppress(Absent):
                    config[name] = tag_floats(field.recover(spec))
        return config

    def read_size(self, name: str) -> Model:
        size = self.sizes[name]
        return self.read({**size.config}).replace(note=size.note, source={})


NOT_COMPARED = ("source", "note")  # fields that a config does not determine


def without_init(spec: Model) -> Model:
    """Return the description without initialisers: they may depend on the depth and do not affect loaded weights."""
    models = [path for path, part in walk(spec) if isinstance(part, Model)]
    plain = with_values(spec, {f"{path}.init" if path else "init": Table({}) for path in models})
    return plain.replace(source={}, note="")


def differences(a: Part, b: Part) -> tuple[list[str], list[str]]:
    """Return the differences of two descriptions by address: (different kinds of Part, different values)."""
    kinds, values = [], []
    right = dict(walk(b))
    for path, part in walk(a):
        other = right.get(path)
        if type(other) is not type(part):
            if path.rpartition(".")[0] in right:  # report only the topmost Part that differs
                kinds.append(f"{path or 'the model'} is {_kind_name(part)}, published: {_kind_name(other)}")
            continue
        theirs = dict(other.items())
        for name, value in part.items():
            if value is None and isinstance(theirs.get(name), Part):
                kinds.append(f"{path}.{name} is None, published: {_kind_name(theirs[name])}")
            elif not contains_parts(value) and value != theirs.get(name) and name not in NOT_COMPARED:
                if not isinstance(theirs.get(name), Part):
                    stored = quote(theirs.get(name), 80)
                    values.append(f"{path + '.' if path else ''}{name} is {quote(value, 80)}, published: {stored}")
    return kinds, values


def contains_parts(value: Any) -> bool:
    return isinstance(value, (Part, Table)) or (isinstance(value, tuple) and any(isinstance(v, Part) for v in value))


def _kind_name(part: Part | None) -> str:
    return "None" if part is None else type(part).__name__
