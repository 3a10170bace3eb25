"""The fields of a published config: those that shape the model, and those that every config may have.

`describe` turns a config into a description. The way back is not written a second time: each config field names the
path where its value stands, and an export is accepted only if describing the recovered config gives the same
description again.
"""

from __future__ import annotations

import dataclasses
import math
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any

from anyformer.models import Model
from anyformer.parts.activation import ACTIVATION_NAMES, published_name
from anyformer.parts.head.losses import Problem
from anyformer.specs.addresses import value_at
from anyformer.specs.frozen import LEAVES, only_leaves
from anyformer.specs.messages import nearest, quote
from anyformer.specs.part import thaw


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
            return thaw(self.path(spec) if callable(self.path) else value_at(spec, self.path))
        except (ValueError, AttributeError, KeyError):
            raise Absent from None


def with_defaults(fields: Mapping[str, ConfigField], **defaults: Any) -> dict[str, ConfigField]:
    """Fields of another family under other published defaults."""
    return {name: dataclasses.replace(fields[name], default=default) for name, default in defaults.items()}


def activation_at(path: str) -> Callable[[Model], str]:
    """Reads an activation back under a published name."""
    return lambda spec: published_name(value_at(spec, path))


def tied(*heads: type) -> Callable[[Model], bool]:
    """Reads back whether a language-model head shares the embedding's weights."""

    def read(spec: Model) -> bool:
        if not isinstance(spec.head, heads):
            raise Absent
        return any(name.startswith("head.") for name, _ in spec.ties)

    return read


@dataclasses.dataclass(frozen=True)
class Ignored:
    """A config field that cannot change a forward pass, and why. It is carried along and given back."""

    default: Any
    why: str


@dataclasses.dataclass(frozen=True)
class Fixed:
    """A config field of which one value (or a few) is supported; any other is refused."""

    default: Any
    why: str = ""
    allowed: tuple[Any, ...] = ()

    def takes(self, value: Any) -> bool:
        return value == self.default or value in self.allowed


@dataclasses.dataclass(frozen=True)
class Removed(Fixed):
    """A config field that published classes had once and read no more: with any but its old default, one of the
    unknown fields that a load warns of."""


class UnknownFieldWarning(UserWarning):
    """A config has fields that its published class does not know, so that they change nothing."""


ConfigField = Field | Ignored | Fixed


PROBLEMS: tuple[str, ...] = typing.get_args(Problem)


_TOKEN = "a token id, used by tokenizers and generation"


_RECORD = "a record of where the file came from"


_RUN = "how a run is executed, not what it computes"


# fields that every published config may have
COMMON: dict[str, ConfigField] = {
    "model_type": Ignored(None, _RECORD),
    "architectures": Ignored(None, "chooses the head: read before anything else"),
    "transformers_version": Ignored(None, _RECORD),
    "_name_or_path": Ignored("", _RECORD),
    "name_or_path": Ignored("", _RECORD),
    "_commit_hash": Ignored(None, _RECORD),
    "auto_map": Ignored(None, "names code; no code from a checkpoint ever runs"),
    "dtype": Ignored(None, "read by the loader"),
    "torch_dtype": Ignored(None, "read by the loader"),
    "output_hidden_states": Ignored(False, "which outputs are returned by default; honoured by forward"),
    "output_attentions": Ignored(False, "which outputs are returned by default; honoured by forward"),
    "return_dict": Ignored(True, "the type of the result; honoured by forward"),
    "use_cache": Ignored(True, "whether a state is returned by default; honoured by forward"),
    "chunk_size_feed_forward": Ignored(0, "the same numbers computed in pieces"),
    "is_encoder_decoder": Ignored(False, "follows from the class"),
    "id2label": Ignored(None, "its length is num_labels; the names are for people"),
    "label2id": Ignored(None, "names for people"),
    "num_labels": Ignored(None, "read with id2label"),
    "label_all_tokens": Ignored(None, "our taggers: each token of a word was labelled, not its first only"),
    "_num_labels": Ignored(None, "an old name of num_labels that nothing reads"),
    "problem_type": Ignored(None, "the kind of labels; read by classification heads"),
    "bos_token_id": Ignored(None, _TOKEN),
    "eos_token_id": Ignored(None, _TOKEN),
    "eos_token_ids": Ignored(None, "an old name of eos_token_id that nothing reads"),
    "pad_token_id": Ignored(None, _TOKEN),
    "sep_token_id": Ignored(None, _TOKEN),
    "cls_token_id": Ignored(None, _TOKEN),
    "mask_token_id": Ignored(None, _TOKEN),
    "unk_token_id": Ignored(None, _TOKEN),
    "decoder_start_token_id": Ignored(None, _TOKEN),
    "tokenizer_class": Ignored(None, "how text is tokenised"),
    "prefix": Ignored(None, "how text is tokenised"),
    "finetuning_task": Ignored(None, _RECORD),
    "task_specific_params": Ignored(None, "settings of generation"),
    "gradient_checkpointing": Ignored(False, _RUN),
    "torchscript": Ignored(False, _RUN),
    "use_bfloat16": Ignored(False, _RUN),
    "_attn_implementation": Ignored(None, _RUN),
    "_attn_implementation_autoset": Ignored(False, _RUN),
    "attn_implementation": Ignored(None, _RUN),
    "experts_implementation": Ignored(None, _RUN),
    "tf_legacy_loss": Ignored(False, _RUN),
    "tie_encoder_decoder": Removed(False, "an option for pairs of models"),
    "add_cross_attention": Removed(False, "cross-attention in a family that has none"),
    "is_decoder": Removed(False, "decoding in a family that has none"),
    "cross_attention_hidden_size": Removed(None, "an option for pairs of models"),
    "pruned_heads": Removed(None, "checkpoints with heads cut out", (None, {})),
    "per_layer_config": Fixed(None, "layers that differ from each other", ({},)),
    "quantization_config": Fixed(None, "quantised checkpoints"),
    "tie_last_hidden_states": Fixed(None, "hidden states before the last norm", (None, True)),
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


MANY = re.compile("layer|group|block|expert|depth|repeat")  # in the names of fields that say how many of something


MOST = 10_000


def affordable(name: str, value: Any) -> None:
    """ValueError for a number of layers, groups, blocks or experts that no machine would ever finish to build."""
    limit = 10 * MOST if "expert" in name else MOST
    numbers = [v for v in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(v, (int, float))]
    if MANY.search(name) and not sum(numbers) <= limit:
        raise ValueError(f"{name}={quote(value, 60)}: at most {limit:,} can be built")


def named_class(config: Mapping[str, Any]) -> str | None:
    """The first published class that a config names; None if it names none."""
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


def tag_floats(value: Any) -> Any:
    """JSON has no infinity and no NaN: they are kept as published files write them, {"__float__": "Infinity"}."""
    if isinstance(value, Mapping):
        flat = only_leaves(value.values(), LEAVES - {float})
        return dict(value) if flat else {key: tag_floats(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return list(value) if only_leaves(value, LEAVES - {float}) else [tag_floats(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"__float__": {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")}
    return value


def untag_floats(value: Any) -> Any:
    """The inverse."""
    if isinstance(value, dict) and value.keys() == {"__float__"}:
        return {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}.get(value["__float__"], value)
    if isinstance(value, dict):
        flat = only_leaves(value.values())
        return dict(value) if flat else {key: untag_floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return list(value) if only_leaves(value) else [untag_floats(item) for item in value]
    return value


def outside_vocabulary(name: str, field: ConfigField, size: float) -> bool:
    """Whether the published class would fill in a special token that this vocabulary does not have."""
    token = name.endswith("_token_id") and isinstance(field, Ignored) and isinstance(field.default, int)
    return token and field.default >= size
