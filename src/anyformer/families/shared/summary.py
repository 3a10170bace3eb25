"""Published `summary_*` fields: the second head of GPT and GPT-2 (DoubleHead), and the pooled vector of ELECTRA and
XLNet (Pool)."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.fields import Absent
from anyformer.families.base.template import Config, Entry, choice, entry, read_only
from anyformer.parts import DoubleHead, FirstToken, LMHead, LastColumn, MeanColumns, Model, Summary
from anyformer.parts.activation import ACTIVATION_NAMES, activation_named, published_name
from anyformer.specs.addresses import value_at
from anyformer.specs.messages import nearest

SUMMARY_TYPES: dict[str, Any] = {"cls_index": "index", "last": "last", "first": "first", "mean": "mean"}


def last_dropout(spec: Model) -> float:
    """Published models read this field, but their config class does not declare it: written only if set."""
    if not (rate := value_at(spec, "head.summary.last_dropout")):
        raise Absent
    return rate


def projects_to_labels(spec: Model) -> bool:
    if (width := value_at(spec, "head.summary.width")) is None:
        raise Absent
    return width == 1


def activation(spec: Model) -> str | None:
    name = published_name(value_at(spec, "head.summary.activation"))
    return None if name == "linear" else name


TYPES = ("last", "first", "mean", "cls_index", "attn")  # published; transformers does not implement "attn" either
FUNCTIONS = (*ACTIVATION_NAMES, "")  # "": no activation


def read_type(value: str, c: Config) -> str:
    if value not in SUMMARY_TYPES:
        raise ValueError(f"is not supported; {nearest(str(value), SUMMARY_TYPES)}")
    return SUMMARY_TYPES[value]


def double_template(vocab_size: int) -> DoubleHead:
    return DoubleHead(lm=LMHead(vocab_size=vocab_size), summary=Summary(take="index", width=1, first_dropout=0.1))


DOUBLE_HEAD_FIELDS: dict[str, Any] = {
    "summary_type": entry(
        "head.summary.take", read=read_type, write={v: k for k, v in SUMMARY_TYPES.items()}.get, choices=TYPES
    ),
    "summary_use_proj": Entry(
        True,
        lambda spec: spec.head.summary.width is not None,
        addresses=("head.summary.width",),
        read=lambda value, c: (1 if c.summary_proj_to_labels else c.n_embd) if value else None,
    ),
    "summary_activation": Entry(
        None,
        activation,
        choices=FUNCTIONS,
        addresses=("head.summary.activation",),
        read=lambda name, c: activation_named(name or "linear"),
    ),
    "summary_proj_to_labels": Entry(True, projects_to_labels),
    "summary_first_dropout": "head.summary.first_dropout",
    "summary_last_dropout": Entry(
        None, last_dropout, addresses=("head.summary.last_dropout",), read=lambda value, c: value or 0.0
    ),
}


# -- as a Pool --------------------------------------------------------------------------------------------------------

# which vector is the summary; "cls_index" is the last one too, because no caller can pass an index
POOLS = {"cls_index": LastColumn(), "last": LastColumn(), "first": FirstToken(), "mean": MeanColumns()}


def pool_entries(address: str) -> dict[str, Entry]:
    """Return the fields of a summary that is the Pool at this address."""

    def write(dropout: float) -> float:  # published config classes do not declare it: written only if set
        if dropout == 0:
            raise Absent
        return dropout

    return {
        "summary_type": choice(f"{address}.take", POOLS, choices=TYPES),
        "summary_use_proj": entry(f"{address}.dense"),
        "summary_activation": entry(
            f"{address}.activation",
            read=lambda name, c: activation_named(name or "identity"),
            write=published_name,
            choices=FUNCTIONS,
        ),
        "summary_first_dropout": entry(f"{address}.input_dropout", default=0.0, write=write),
        "summary_last_dropout": entry(f"{address}.dropout"),
        "summary_proj_to_labels": read_only(False),
    }


def check_pool(c: Config, width: int, *classes: str) -> None:
    labels = c.architecture in classes and c.summary_use_proj and c.summary_proj_to_labels
    if labels and c.num_labels not in (0, width):
        raise ValueError(f"summary_proj_to_labels=True needs num_labels {width}, got {c.num_labels}")
