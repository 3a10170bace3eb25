"""What a family file says: its published config, how that config becomes a description, and where its tensors go.

`describe` turns a config into a description. The way back is not written a second time: each config field names the
path where its value stands, and an export is accepted only if describing the recovered config gives the same
description again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import typing
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from anyformer.models import Model
from anyformer.parts.activation import ACTIVATION_NAMES, published_name
from anyformer.parts.head.losses import Problem
from anyformer.specs.messages import quote, shorten
from anyformer.specs.part import Part, Table, at, nearest, thaw, walk
from anyformer.weights.pieces import STEMS
from anyformer.weights.rules import Matched, Rule, plan


class Absent(Exception):
    """Raised by a Field's path where a description has no such place."""


@dataclasses.dataclass(frozen=True)
class Field:
    """A config field that shapes the model: its published default, and where (or how) to find its value again."""

    default: Any
    path: str | Callable[[Any], Any] | None = None
    within: frozenset[str] = frozenset()  # the names that are known inside it, where it is an object
    choices: tuple[str, ...] = ()  # the words that it may be, where these are few

    def recover(self, spec: Model) -> Any:
        """The field's value in a description."""
        if self.path is None:
            raise Absent
        try:
            return thaw(self.path(spec) if callable(self.path) else at(spec, self.path))
        except (ValueError, AttributeError, KeyError):
            raise Absent from None


def again(fields: Mapping[str, ConfigField], **defaults: Any) -> dict[str, ConfigField]:
    """Fields of another family under other published defaults."""
    return {name: dataclasses.replace(fields[name], default=default) for name, default in defaults.items()}


def activation_at(path: str) -> Callable[[Model], str]:
    """Reads an activation back under a published name."""
    return lambda spec: published_name(at(spec, path))


def tied(*heads: type) -> Callable[[Model], bool]:
    """Reads back whether a language-model head shares the embedding's weights."""

    def read(spec: Model) -> bool:
        if not isinstance(spec.head, heads):
            raise Absent
        return any(name.startswith("head.") for name, _ in spec.ties)

    return read


@dataclasses.dataclass(frozen=True)
class Inert:
    """A config field that cannot change a forward pass, and why. It is carried along and given back."""

    default: Any
    why: str


@dataclasses.dataclass(frozen=True)
class Only:
    """A config field of which one value (or a few) is supported; any other is refused."""

    default: Any
    why: str = ""
    allowed: tuple[Any, ...] = ()

    def takes(self, value: Any) -> bool:
        return value == self.default or value in self.allowed


@dataclasses.dataclass(frozen=True)
class Gone(Only):
    """A config field that published classes had once and read no more: with any but its old default, one of the
    unknown fields that a load warns of."""


class UnknownFieldWarning(UserWarning):
    """A config has fields that its published class does not know, so that they change nothing."""


ConfigField = Field | Inert | Only

PROBLEMS: tuple[str, ...] = typing.get_args(Problem)

_TOKEN = "a token id, used by tokenizers and generation"
_RECORD = "a record of where the file came from"
_RUN = "how a run is executed, not what it computes"

# fields that every published config may have
COMMON: dict[str, ConfigField] = {
    "model_type": Inert(None, _RECORD),
    "architectures": Inert(None, "chooses the head: read before anything else"),
    "transformers_version": Inert(None, _RECORD),
    "_name_or_path": Inert("", _RECORD),
    "name_or_path": Inert("", _RECORD),
    "_commit_hash": Inert(None, _RECORD),
    "auto_map": Inert(None, "names code; no code from a checkpoint ever runs"),
    "dtype": Inert(None, "read by the loader"),
    "torch_dtype": Inert(None, "read by the loader"),
    "output_hidden_states": Inert(False, "which outputs are returned by default; honoured by forward"),
    "output_attentions": Inert(False, "which outputs are returned by default; honoured by forward"),
    "return_dict": Inert(True, "the type of the result; honoured by forward"),
    "use_cache": Inert(True, "whether a state is returned by default; honoured by forward"),
    "chunk_size_feed_forward": Inert(0, "the same numbers computed in pieces"),
    "is_encoder_decoder": Inert(False, "follows from the class"),
    "id2label": Inert(None, "its length is num_labels; the names are for people"),
    "label2id": Inert(None, "names for people"),
    "num_labels": Inert(None, "read with id2label"),
    "label_all_tokens": Inert(None, "our taggers: each token of a word was labelled, not its first only"),
    "_num_labels": Inert(None, "an old name of num_labels that nothing reads"),
    "problem_type": Inert(None, "the kind of labels; read by classification heads"),
    "bos_token_id": Inert(None, _TOKEN),
    "eos_token_id": Inert(None, _TOKEN),
    "eos_token_ids": Inert(None, "an old name of eos_token_id that nothing reads"),
    "pad_token_id": Inert(None, _TOKEN),
    "sep_token_id": Inert(None, _TOKEN),
    "cls_token_id": Inert(None, _TOKEN),
    "mask_token_id": Inert(None, _TOKEN),
    "unk_token_id": Inert(None, _TOKEN),
    "decoder_start_token_id": Inert(None, _TOKEN),
    "tokenizer_class": Inert(None, "how text is tokenised"),
    "prefix": Inert(None, "how text is tokenised"),
    "finetuning_task": Inert(None, _RECORD),
    "task_specific_params": Inert(None, "settings of generation"),
    "gradient_checkpointing": Inert(False, _RUN),
    "torchscript": Inert(False, _RUN),
    "use_bfloat16": Inert(False, _RUN),
    "_attn_implementation": Inert(None, _RUN),
    "_attn_implementation_autoset": Inert(False, _RUN),
    "attn_implementation": Inert(None, _RUN),
    "experts_implementation": Inert(None, _RUN),
    "tf_legacy_loss": Inert(False, _RUN),
    "tie_encoder_decoder": Gone(False, "an option for pairs of models"),
    "add_cross_attention": Gone(False, "cross-attention in a family that has none"),
    "is_decoder": Gone(False, "decoding in a family that has none"),
    "cross_attention_hidden_size": Gone(None, "an option for pairs of models"),
    "pruned_heads": Gone(None, "checkpoints with heads cut out", (None, {})),
    "per_layer_config": Only(None, "layers that differ from each other", ({},)),
    "quantization_config": Only(None, "quantised checkpoints"),
    "tie_last_hidden_states": Only(None, "hidden states before the last norm", (None, True)),
}

# parameters of generation that old configs carry; generation_config.json is where they live now
GENERATION = {
    "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty",
    "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "output_scores", "return_dict_in_generate",
    "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty",
    "suppress_tokens", "begin_suppress_tokens", "max_new_tokens", "min_new_tokens", "pad_token", "bos_token",
    "eos_token", "assistant_confidence_threshold", "assistant_lookbehind", "encoder_repetition_penalty",
    "epsilon_cutoff", "eta_cutoff", "num_assistant_tokens", "num_assistant_tokens_schedule", "target_lookbehind",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Size:
    """A named description: config values, the count its paper prints, and anything a reader should know."""

    config: Mapping[str, Any]
    published: float | None = None  # parameters, as rounded in the paper
    note: str = ""


# endings of tensor names before 2019, in every family: as TensorFlow calls them
LEGACY = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


@dataclasses.dataclass(frozen=True)
class Family:
    """One family of published models."""

    name: str  # config.json's model_type
    about: str
    fields: Mapping[str, ConfigField]
    describe: Callable[[Any], Model]
    rules: Callable[[Model], Sequence[Rule]]
    architectures: tuple[str, ...]  # class names; the first is the default; none where no class is published
    base: tuple[str, ...] = ()  # those without the prefix
    prefix: str = ""  # what the other classes put before the base model's names
    prefixes: Mapping[str, str] = dataclasses.field(default_factory=dict)  # classes that put something else there
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)  # other names of config fields
    dropped: tuple[str, ...] = ()  # templates of published tensors that hold nothing to learn
    absent: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)  # see `told_by`
    legacy: Mapping[str, str] = dataclasses.field(default_factory=dict)  # old endings of tensor names -> today's
    moved: Mapping[str, str] = dataclasses.field(default_factory=dict)  # old beginnings of tensor names -> today's
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)  # old names of classes -> today's
    sizes: Mapping[str, Size] = dataclasses.field(default_factory=dict)
    library: str = "transformers"  # whose classes they are
    pictures: str = "ViT"  # the kind of processor that reads for it where a folder's settings name none

    @property
    def stem(self) -> str:
        """How the names of files with published weights begin."""
        return STEMS[self.library == "diffusers"]

    def prefix_of(self, architecture: str) -> str:
        return "" if architecture in self.base else self.prefixes.get(architecture, self.prefix)

    def prefix_in(self, names: Iterable[str], architecture: str) -> str:
        """The prefix of a checkpoint with these names: one of the base model alone leaves it out."""
        prefix = self.prefix_of(architecture) or self.prefix
        return prefix if any(name.startswith(prefix) for name in names) else ""

    def told_by(self, names: Iterable[str], architecture: str) -> dict[str, Any]:
        """What a checkpoint with these names adds to its config: `absent` says which fields a tensor sets that is not
        there (a ViT without its pooler)."""
        names = {*names}
        prefix = self.prefix_in(names, architecture)
        missing = [fields for name, fields in self.absent.items() if name.replace("~", prefix) not in names]
        return {name: value for fields in missing for name, value in fields.items()}

    def today(self, names: Iterable[str]) -> dict[str, str]:
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
        names = self.today(stored)
        prefix = self.prefix_in(names, spec.architecture)
        steps, orphans = plan(self.rules(spec), targets, prefix)
        assert not orphans, f"{self.name} has no rule for {orphans}"
        return Matched(names, steps, [template.replace("~", prefix) for template in self.dropped])

    @property
    def known(self) -> dict[str, ConfigField]:
        return {**COMMON, **self.fields}

    def read(self, config: Mapping[str, Any], architecture: str | None = None) -> Model:
        """The description of a published config.json. Fields that the published class does not know change nothing
        there: they are kept, and named in one warning."""
        if strange := [each for name, value in config.items() for each in self._strange(name, value)]:
            names = ", ".join(map(repr, strange))
            warnings.warn(
                f"{self.name} config: the published class does not know {shorten(names, 4000)}; kept, without effect",
                UnknownFieldWarning, stacklevel=3,
            )  # fmt: skip
        return self._read(config, architecture)

    def _strange(self, name: str, value: Any) -> list[str]:
        """What of a field the published class does not know: all, nothing, or some names inside it."""
        field = self.known.get(self.aliases.get(name, name))
        if isinstance(field, Field) and field.within and isinstance(value, Mapping):
            return [f"{name}.{inner}" for inner in value if inner not in field.within]
        unknown = field is None or (isinstance(field, Gone) and not field.takes(value))
        return [name] if unknown and name not in GENERATION else []

    def _read(self, config: Mapping[str, Any], architecture: str | None = None) -> Model:
        # of two names of one field the alias counts, as where they are published
        own = {name: value for name, value in config.items() if name not in self.aliases}
        config = tagged({**own, **{self.aliases[name]: value for name, value in config.items() if name not in own}})
        known = self.known
        values = SimpleNamespace(**{name: field.default for name, field in known.items()})
        for name in (n for n in config if n in known):
            field, value = known[name], untagged(config[name])
            if isinstance(field, Only):
                if not isinstance(field, Gone) and not field.takes(value):
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
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.name} config: {shorten(str(error), 800)}") from None
        except (ArithmeticError, AttributeError, LookupError) as error:
            raise ValueError(f"{self.name} config: {self._at_fault(values, config)}") from error
        recovered = self.recover(spec)
        named = ("_class_name",) if self.library == "diffusers" else ()
        apart = ("model_type", "architectures", "id2label", "label2id", *named)
        kept = {**{n: v for n, v in config.items() if n not in apart}, **tables}
        return spec.replace(source={n: v for n, v in kept.items() if n not in recovered or recovered[n] != v})

    def _at_fault(self, values: SimpleNamespace, config: Mapping[str, Any]) -> str:
        """Which value of a config cannot be described at all (0 heads): the one in whose place the default can. What is
        empty or zero is suspected first."""
        for name in sorted((n for n in config if isinstance(self.known.get(n), Field)), key=lambda n: bool(config[n])):
            try:
                self.describe(SimpleNamespace(**{**vars(values), name: self.known[name].default}))
            except (ArithmeticError, AttributeError, LookupError):
                continue
            except (TypeError, ValueError):  # it is understood, and does not go with the rest
                pass
            return f"{name}={quote(config[name], 60)} is nothing that a model could be made of"
        return "no model can be made of these values"

    def part(self, config: Mapping[str, Any], architecture: str) -> Model:
        """The description of a config that stands inside another: what it says of its origin is the other's matter."""
        return self._read(config, architecture).replace(family="", architecture="", source={})

    def _class_of(self, config: Mapping[str, Any], asked: str | None) -> str:
        """The class that is asked for, or the first of the config's, or else the family's own first."""
        named = config.get("architectures") or config.get("_class_name") or ()
        named = (named,) if isinstance(named, str) else tuple(named)
        classes = self.architectures or ("",)  # a family of which no class is published has descriptions alone
        name = asked or next(iter(named), None) or classes[0]
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
        size = recovered.get("vocab_size", math.inf)
        kept = {**{name: None for name, field in self.known.items() if _outside(name, field, size)}, **kept}
        inert = {n: v for n, v in kept.items() if not isinstance(self.known.get(n), Field)}
        found = []
        for config in ({**recovered, **kept}, {**kept, **recovered}, {**recovered, **inert}):
            named = {"architectures": [spec.architecture], "model_type": self.name}
            config = {**({"_class_name": spec.architecture} if self.library == "diffusers" else named), **config}
            again = self._read(config)
            if again.replace(source={}, note="") == spec.replace(source={}, note=""):
                return config
            found.append(differences(spec, again))
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
                    found[name] = tagged(field.recover(spec))
        return found

    def named(self, name: str) -> Model:
        """The named description `name` of this family."""
        size = self.sizes[name]
        return self.read({**size.config}).replace(note=size.note, source={})


FREE = ("source", "note")  # what a description may have of its own
MANY = re.compile("layer|group|block|expert|depth|repeat")  # in the names of fields that say how many of something
MOST = 10_000


def affordable(name: str, value: Any) -> None:
    """ValueError for a number of layers, groups, blocks or experts that no machine would ever finish to build."""
    limit = 10 * MOST if "expert" in name else MOST
    numbers = [v for v in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(v, (int, float))]
    if MANY.search(name) and not sum(numbers) <= limit:
        raise ValueError(f"{name}={quote(value, 60)}: at most {limit:,} can be built")


def labels(config: Mapping[str, Any], default: int) -> tuple[int, dict[str, Any]]:
    """How many labels a config means, and its tables of their names, by number. Where it says both and they disagree
    the number counts and the names are lost, as where they are published."""
    names, number = config.get("id2label"), config.get("num_labels", default)
    if names is not None:
        if not isinstance(names, Mapping) or not all(str(key).isdecimal() for key in names):
            raise ValueError("id2label is not an object from numbers to names")
        names = {str(int(key)): names[key] for key in sorted(names, key=int)}
        number = config.get("num_labels", len(names))
    if type(number) is not int or number < 0:
        raise ValueError(f"num_labels={quote(number)} is not a number of labels")
    tables = {"id2label": names, "label2id": config.get("label2id")}
    agree = names is not None and len(names) == number
    return number, {name: table for name, table in tables.items() if agree and name in config}


# fields that are numbers, or true or false, where their published default is None
NUMERIC = re.compile("(dropout|_size|_dim|_id|_layers|_step|_embeddings)$")
TRUTH = re.compile("^(is|tie|scale)_")


def words_of(name: str, field: Field) -> tuple[str, ...]:
    """The words that a field may be, whether or not a class reads it; none where any may stand there."""
    if name == "problem_type":
        return PROBLEMS
    return field.choices or (ACTIVATION_NAMES if "act" in name and field.default in ACTIVATION_NAMES else ())


def misfit(name: str, value: Any, field: Field) -> str:
    """Why a value cannot stand in a field, used or not; empty where it can, or where it is left to the description."""
    default = field.default
    if isinstance(value, float) and not math.isfinite(value):
        return "not finite"
    if (isinstance(default, bool) or (default is None and TRUTH.search(name))) and not isinstance(value, bool | None):
        return "neither true nor false"
    number = isinstance(default, int | float) and not isinstance(default, bool)
    if number and isinstance(value, bool | str | dict):
        return "not a number"
    if default is None and NUMERIC.search(name) and isinstance(value, str | dict):
        return "not a number"
    words = words_of(name, field)
    if words and value is not None and value not in words:
        return f"not valid; {nearest(str(value), words)}"
    return ""


def tagged(value: Any) -> Any:
    """JSON has no infinity and no NaN: they are kept as published files write them, {"__float__": "Infinity"}."""
    if isinstance(value, Mapping):
        return {key: tagged(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [tagged(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"__float__": {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")}
    return value


def untagged(value: Any) -> Any:
    """The inverse."""
    if isinstance(value, dict) and value.keys() == {"__float__"}:
        return {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}.get(value["__float__"], value)
    if isinstance(value, dict):
        return {key: untagged(item) for key, item in value.items()}
    return [untagged(item) for item in value] if isinstance(value, list) else value


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
            elif not isinstance(value, (Part, Table, tuple)) and value != theirs.get(name) and name not in FREE:
                if not isinstance(theirs.get(name), Part):
                    stored = quote(theirs.get(name))
                    values.append(f"{path + '.' if path else ''}{name} is {quote(value)}, and {stored} there")
    return kinds, values


def _a(part: Part | None) -> str:
    return "nothing" if part is None else type(part).__name__


def _outside(name: str, field: ConfigField, size: float) -> bool:
    """Whether the published class would fill in a special token that this vocabulary does not have."""
    token = name.endswith("_token_id") and isinstance(field, Inert) and isinstance(field.default, int)
    return token and field.default >= size
