"""The fields of a published config.json: those that shape the model (Entry), those without effect (Ignored), those with
few supported values (Fixed, Removed), and the fields that every published config may have (COMMON)."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from anyformer.parts import Model
from anyformer.parts.activation import ACTIVATION_NAMES
from anyformer.parts.head.losses import Problem
from anyformer.specs.addresses import Path, find, value_at
from anyformer.specs.frozen import LEAVES, only_leaves
from anyformer.specs.messages import nearest, quote
from anyformer.specs.part import thaw


class Absent(Exception):
    """Raised by a Entry's path if the field is not written for this description."""


TEMPLATE: Any = type("Template", (), {"__repr__": lambda self: "the template's value"})()


class Config(SimpleNamespace):
    """The fields of one config.json; missing fields have their published defaults."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"this config has no field {name}")

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


@dataclasses.dataclass(frozen=True)
class Entry:
    """A config field that shapes the model: its published default and the addresses of its value. `read(value, config)`
    converts the published value to the value at the addresses, and `write` is its inverse. If the field changes the
    structure, `build` returns the new description after all values are set. `path` is an address or a function that
    reads the field back, if the addresses do not."""

    default: Any = TEMPLATE
    path: str | Callable[[Any], Any] | None = None
    within: frozenset[str] = frozenset()  # if it is an object: its known keys
    choices: tuple[str, ...] = ()  # if it is a string: its valid values
    addresses: tuple[str, ...] = ()
    read: Callable[[Any, Config], Any] | None = None
    write: Callable[[Any], Any] | None = None
    build: Callable[[Any, Any, Config], Any] | None = None  # (description, value, config) -> description

    def places(self, spec: Model) -> Iterator[tuple[Path, Any]]:
        for address in self.addresses:
            yield from find(spec, address)

    def recover(self, spec: Model) -> Any:
        """Return the field's value in a description. Raises Absent if the field is not written."""
        if self.path is not None:
            try:
                return thaw(self.path(spec) if callable(self.path) else value_at(spec, self.path))
            except (ValueError, AttributeError, KeyError):
                raise Absent from None
        for _, value in self.places(spec):
            with contextlib.suppress(AttributeError, KeyError):  # no config has this value
                return thaw(value if self.write is None else self.write(value))
        raise Absent


@dataclasses.dataclass(frozen=True)
class Ignored:
    """A config field that cannot change a forward pass, with the reason. It is kept and exported unchanged."""

    default: Any
    why: str


@dataclasses.dataclass(frozen=True)
class Fixed:
    """A config field with one supported value, or a few. Other values are refused."""

    default: Any
    why: str = ""
    allowed: tuple[Any, ...] = ()

    def takes(self, value: Any) -> bool:
        return value == self.default or value in self.allowed


@dataclasses.dataclass(frozen=True)
class Quantized(Fixed):
    """`quantization_config` of a family whose weight rules dequantise: the methods in `allowed` are read. It is not
    written, because exports have plain weights."""

    def takes(self, value: Any) -> bool:
        return value is None or (isinstance(value, Mapping) and value.get("quant_method") in self.allowed)


@dataclasses.dataclass(frozen=True)
class Removed(Fixed):
    """A config field that published classes no longer read. With a value other than its old default it counts as an
    unknown field, and loading warns."""


class UnknownFieldWarning(UserWarning):
    """A config has fields that its published class does not know; they have no effect."""


ConfigField = Entry | Ignored | Fixed


PROBLEMS: tuple[str, ...] = typing.get_args(Problem)


_TOKEN = "a token id, used by tokenizers and generation"
_ORIGIN = "where the file came from"
_RUN = "how a run is executed, not what it computes"


# fields that every published config may have
COMMON: dict[str, ConfigField] = {
    "model_type": Ignored(None, _ORIGIN),
    "architectures": Ignored(None, "the class, read first"),
    "transformers_version": Ignored(None, _ORIGIN),
    "_name_or_path": Ignored("", _ORIGIN),
    "name_or_path": Ignored("", _ORIGIN),
    "_commit_hash": Ignored(None, _ORIGIN),
    "auto_map": Ignored(None, "names code in the checkpoint, which is never run"),
    "dtype": Ignored(None, "read by the loader"),
    "torch_dtype": Ignored(None, "read by the loader"),
    "output_hidden_states": Ignored(False, "which outputs are returned by default; read by forward"),
    "output_attentions": Ignored(False, "which outputs are returned by default; read by forward"),
    "return_dict": Ignored(True, "the type of the result; read by forward"),
    "use_cache": Ignored(True, "whether the cache is returned by default; read by forward"),
    "chunk_size_feed_forward": Ignored(0, "computes the same result in chunks"),
    "is_encoder_decoder": Ignored(False, "follows from the class"),
    "id2label": Ignored(None, "label names; their number is num_labels"),
    "label2id": Ignored(None, "label names"),
    "num_labels": Ignored(None, "read with id2label"),
    "sentence_pooling": Ignored(None, "set by our training of sentence embeddings: how a text's vector is pooled"),
    "label_all_tokens": Ignored(None, "set by our taggers if every token of a word has a label, not only the first"),
    "_num_labels": Ignored(None, "an old name of num_labels that nothing reads"),
    "problem_type": Ignored(None, "the type of labels; read by classification heads"),
    "bos_token_id": Ignored(None, _TOKEN),
    "eos_token_id": Ignored(None, _TOKEN),
    "eos_token_ids": Ignored(None, "an old name of eos_token_id that nothing reads"),
    "pad_token_id": Ignored(None, _TOKEN),
    "sep_token_id": Ignored(None, _TOKEN),
    "cls_token_id": Ignored(None, _TOKEN),
    "mask_token_id": Ignored(None, _TOKEN),
    "unk_token_id": Ignored(None, _TOKEN),
    "decoder_start_token_id": Ignored(None, _TOKEN),
    "tokenizer_class": Ignored(None, "used by tokenizers"),
    "prefix": Ignored(None, "used by tokenizers"),
    "finetuning_task": Ignored(None, _ORIGIN),
    "task_specific_params": Ignored(None, "used by generation"),
    "gradient_checkpointing": Ignored(False, _RUN),
    "torchscript": Ignored(False, _RUN),
    "use_bfloat16": Ignored(False, _RUN),
    "_attn_implementation": Ignored(None, _RUN),
    "_attn_implementation_autoset": Ignored(False, _RUN),
    "attn_implementation": Ignored(None, _RUN),
    "experts_implementation": Ignored(None, _RUN),
    "tf_legacy_loss": Ignored(False, _RUN),
    "tie_encoder_decoder": Removed(False, "an option of encoder-decoders"),
    "add_cross_attention": Removed(False, "cross-attention in a family without it"),
    "is_decoder": Removed(False, "a decoder in a family without one"),
    "cross_attention_hidden_size": Removed(None, "an option of encoder-decoders"),
    "pruned_heads": Removed(None, "checkpoints with pruned heads", (None, {})),
    "per_layer_config": Fixed(None, "layers that differ from each other", ({},)),
    "quantization_config": Fixed(None, "quantised checkpoints"),
    "tie_last_hidden_states": Fixed(None, "returns the last hidden state before the final norm", (None, True)),
}


# generation settings in old configs; today they are in generation_config.json
GENERATION = {
    "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty",
    "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "output_scores", "return_dict_in_generate",
    "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty",
    "suppress_tokens", "begin_suppress_tokens", "max_new_tokens", "min_new_tokens", "pad_token", "bos_token",
    "eos_token", "assistant_confidence_threshold", "assistant_lookbehind", "encoder_repetition_penalty",
    "epsilon_cutoff", "eta_cutoff", "num_assistant_tokens", "num_assistant_tokens_schedule", "target_lookbehind",
}  # fmt: skip


COUNTS = re.compile("layer|group|block|expert|depth|repeat")  # in names of fields that are counts
MAX_COUNT = 10_000  # the limit for experts is ten times as high


def check_count(name: str, value: Any) -> None:
    """Raise ValueError for a number of layers, groups, blocks or experts that is too large to build."""
    limit = 10 * MAX_COUNT if "expert" in name else MAX_COUNT
    numbers = [v for v in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(v, (int, float))]
    if COUNTS.search(name) and not sum(numbers) <= limit:
        raise ValueError(f"{name}={quote(value, 60)} is above the maximum of {limit:,}")


def named_class(config: Mapping[str, Any]) -> str | None:
    """Return the first published class that a config names, or None."""
    names = config.get("architectures")
    if names is None or names == []:
        name = config.get("_class_name")
        if not isinstance(name, str | None):
            raise ValueError(f"_class_name is {quote(name)}; it must be the name of a class")
        return name or None
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError(f'architectures is {quote(names)}; it must be a list of class names, such as ["BertModel"]')
    return names[0] or None


def read_labels(config: Mapping[str, Any], default: int) -> tuple[int, dict[str, Any]]:
    """Return the number of labels and the tables of label names. If id2label has a different length than num_labels,
    num_labels wins and the names are lost, as in the published classes."""
    names, number = config.get("id2label"), config.get("num_labels", default)
    if names is not None:
        if not isinstance(names, Mapping) or not all(str(key).isdecimal() for key in names):
            raise ValueError("id2label must be an object that maps numbers to names")
        names = {str(int(key)): names[key] for key in sorted(names, key=int)}
        number = config.get("num_labels", len(names))
    if type(number) is not int or number < 0:
        raise ValueError(f"num_labels={quote(number)} must be an integer of at least 0")
    tables = {"id2label": names, "label2id": config.get("label2id")}
    agree = names is not None and len(names) == number
    return number, {name: table for name, table in tables.items() if agree and name in config}


# names of fields that must be numbers (or booleans) although their published default is None
NUMBERS = re.compile("(dropout|_size|_dim|_id|_layers|_step|_embeddings)$")
FLAGS = re.compile("^(is|tie|scale)_")


def allowed_words(name: str, field: Entry) -> tuple[str, ...]:
    """Return the valid strings of a field, whether or not the class reads it; () if any string is valid."""
    if name == "problem_type":
        return PROBLEMS
    return field.choices or (ACTIVATION_NAMES if "act" in name and field.default in ACTIVATION_NAMES else ())


def explain_misfit(name: str, value: Any, field: Entry) -> str:
    """Return why the value is invalid for the field, or "" if it is valid or checked later by the description."""
    default = field.default
    if isinstance(value, float) and not math.isfinite(value):
        return "not finite"
    if (isinstance(default, bool) or (default is None and FLAGS.search(name))) and not isinstance(value, bool | None):
        return "not a boolean"
    number = isinstance(default, int | float) and not isinstance(default, bool)
    if number and isinstance(value, bool | str | dict):
        return "not a number"
    if default is None and NUMBERS.search(name) and isinstance(value, str | dict):
        return "not a number"
    words = allowed_words(name, field)
    if words and value is not None and value not in words:
        return f"not valid; {nearest(str(value), words)}"
    return ""


def tag_floats(value: Any) -> Any:
    """Replace infinity and NaN, which JSON lacks, by the published form {"__float__": "Infinity"}."""
    if isinstance(value, Mapping):
        flat = only_leaves(value.values(), LEAVES - {float})
        return dict(value) if flat else {key: tag_floats(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return list(value) if only_leaves(value, LEAVES - {float}) else [tag_floats(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"__float__": {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")}
    return value


def untag_floats(value: Any) -> Any:
    """Invert `tag_floats`."""
    if isinstance(value, dict) and value.keys() == {"__float__"}:
        return {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}.get(value["__float__"], value)
    if isinstance(value, dict):
        flat = only_leaves(value.values())
        return dict(value) if flat else {key: untag_floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return list(value) if only_leaves(value) else [untag_floats(item) for item in value]
    return value


def outside_vocabulary(name: str, field: ConfigField, size: float) -> bool:
    """Whether the published default of a special token is outside the vocabulary."""
    token = name.endswith("_token_id") and isinstance(field, Ignored) and isinstance(field.default, int)
    return token and field.default >= size
