"""What a family file says: its published config, how that config becomes a description, and where its tensors go.

`describe` turns a config into a description. The way back is not written a second time: each config field names the
path where its value stands, and an export is accepted only if describing the recovered config gives the same
description again.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from anyformer.model import Model
from anyformer.parts.activation import published_name
from anyformer.spec import Part, Table, at, nearest, thaw, walk
from anyformer.weights.rules import Rule


class Absent(Exception):
    """Raised by a Field's path where a description has no such place."""


@dataclasses.dataclass(frozen=True)
class Field:
    """A config field that shapes the model: its published default, and where (or how) to find its value again."""

    default: Any
    path: str | Callable[[Any], Any] | None = None

    def recover(self, spec: Model) -> Any:
        """The field's value in a description."""
        if self.path is None:
            raise Absent
        try:
            return thaw(self.path(spec) if callable(self.path) else at(spec, self.path))
        except (ValueError, AttributeError, KeyError):
            raise Absent from None


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


ConfigField = Field | Inert | Only

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
    "_num_labels": Inert(None, "read with id2label"),
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
    "tie_encoder_decoder": Only(False, "an option for pairs of models"),
    "add_cross_attention": Only(False, "cross-attention in a family that has none here"),
    "is_decoder": Only(False, "decoding in a family that has none here"),
    "cross_attention_hidden_size": Only(None, "an option for pairs of models"),
    "pruned_heads": Only(None, "checkpoints with heads cut out", (None, {})),
    "per_layer_config": Only(None, "layers that differ from each other"),
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
    "eos_token",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Size:
    """A named description: config values, the count its paper prints, and anything a reader should know."""

    config: Mapping[str, Any]
    published: float | None = None  # parameters, as rounded in the paper
    note: str = ""


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
    legacy: Mapping[str, str] = dataclasses.field(default_factory=dict)  # old endings of tensor names -> today's
    sizes: Mapping[str, Size] = dataclasses.field(default_factory=dict)

    def prefix_of(self, architecture: str) -> str:
        return "" if architecture in self.base else self.prefixes.get(architecture, self.prefix)

    @property
    def known(self) -> dict[str, ConfigField]:
        return {**COMMON, **self.fields}

    def read(self, config: Mapping[str, Any], architecture: str | None = None) -> Model:
        """The description of a published config.json."""
        config = {self.aliases.get(name, name): value for name, value in config.items()}
        known = self.known
        for name, value in config.items():
            if name in GENERATION:
                continue
            if name not in known:
                raise ValueError(f"{self.name} config has an unknown field {name!r}; {nearest(name, known)}")
            field = known[name]
            if isinstance(field, Only) and value != field.default and value not in field.allowed:
                raise ValueError(f"{self.name} config: {name}={value!r} is not supported ({field.why})")
        classes = self.architectures or ("",)  # a family of which no class is published has descriptions alone
        architecture = architecture or (config.get("architectures") or [None])[0] or classes[0]
        if architecture not in classes:
            valid = nearest(architecture, self.architectures)
            raise ValueError(f"{self.name} config: architecture {architecture!r} is not supported; {valid}")
        values = SimpleNamespace(**{name: config.get(name, field.default) for name, field in known.items()})
        values.architecture, values.num_labels = architecture, num_labels(config, known["num_labels"].default or 2)
        try:
            spec = self.describe(values).replace(family=self.name, architecture=architecture)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.name} config: {error}") from None
        recovered = self._recover(spec)
        kept = {n: v for n, v in config.items() if n not in ("model_type", "architectures")}
        return spec.replace(source={n: v for n, v in kept.items() if n not in recovered or recovered[n] != v})

    def write(self, spec: Model) -> dict[str, Any]:
        """The published config.json of a description; refused where no config says the same."""
        if not self.architectures:
            raise ValueError(f"no class of {self.name} is published; save it with format='anyformer'")
        recovered, kept = self._recover(spec), thaw(Table(spec.source))
        inert = {n: v for n, v in kept.items() if not isinstance(self.known.get(n), Field)}
        first = None
        for config in ({**recovered, **kept}, {**recovered, **inert}):
            config = {"architectures": [spec.architecture], "model_type": self.name, **config}
            again = self.read(config)
            if again.replace(source={}, note="") == spec.replace(source={}, note=""):
                return config
            first = first or again
        where = first_difference(spec, again)
        raise ValueError(f"this description is no longer a {self.name} that a published config can say: {where}")

    def _recover(self, spec: Model) -> dict[str, Any]:
        found = {}
        for name, field in self.fields.items():
            if isinstance(field, Field):
                with contextlib.suppress(Absent):
                    found[name] = field.recover(spec)
        return found

    def named(self, name: str) -> Model:
        """The named description `name` of this family."""
        size = self.sizes[name]
        return self.read({**size.config}).replace(note=size.note, source={})


def num_labels(config: Mapping[str, Any], default: int) -> int:
    if config.get("id2label") is not None:
        return len(config["id2label"])
    return config.get("num_labels") or config.get("_num_labels") or default


def first_difference(a: Part, b: Part) -> str:
    """Where two descriptions part, by address."""
    left, right = dict(walk(a)), dict(walk(b))
    for path, part in left.items():
        other = right.get(path)
        if type(other) is not type(part):
            return f"{path or 'model'} is {type(part).__name__}, expected {type(other).__name__}"
        for name, value in part.items():
            theirs = dict(other.items()).get(name)
            if not isinstance(value, (Part, Table, tuple)) and value != theirs and name not in ("source", "note"):
                return f"{path + '.' if path else ''}{name} is {value!r}, expected {theirs!r}"
    return "the descriptions differ"


def token_ids(spec: Model) -> dict[str, Any]:
    """The special tokens of a description: as its config said, or the family's published defaults."""
    from anyformer import families

    known = families.find(spec.family).known if spec.family else COMMON
    found = {}
    for name in (n for n in known if n.endswith("_token_id")):
        field = known[name]
        try:
            value = field.recover(spec) if isinstance(field, Field) else None
        except Absent:
            value = None
        value = value if value is not None else thaw(Table(spec.source)).get(name, field.default)
        if value is not None:
            found[name] = value
    return found
