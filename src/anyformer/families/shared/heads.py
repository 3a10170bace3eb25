"""Heads, published classes and mask fields that decoders and encoders share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anyformer.families.base.fields import Absent
from anyformer.families.base.template import Class, Config, Entry, entry, read_only
from anyformer.parts import (
    All, Causal, ClassifyHead, Full, Head, LMHead, LastOccurrence, LastToken, Mask, Model, MultipleChoiceHead, Pool,
    SpanHead, TagHead, Window,
)  # fmt: skip
from anyformer.specs.addresses import find, value_at


def tag_bias(spec: Model) -> bool:
    if not isinstance(spec.head, TagHead) or spec.head.bias:  # config classes do not declare it: written only if False
        raise Absent
    return False


def causal(path: str | Callable[[Any], Mask]) -> Entry:
    """The field `is_causal`; False makes a decoder bidirectional (an embedding model). `path` leads to the mask.
    It is written only if False: in some published kernels, True makes encoders and cross-attention causal as well."""

    def read(spec: Model) -> bool:
        if (path(spec) if callable(path) else value_at(spec, path)).sees == "past":
            raise Absent
        return False

    return Entry(True, read)


def read_mask(c: Config) -> Mask:
    """Return the mask that `is_causal` selects."""
    return Causal() if vars(c).get("is_causal", True) else Full()


def decoder_classes(name: str, vocab_size: int, span_prefix: str | None = None) -> dict[str, Class]:
    """Return the five classes of newer decoders: `name`ForCausalLM and so on. `span_prefix` is the prefix of
    `name`ForQuestionAnswering."""
    last = Pool(take=LastToken())
    return {
        f"{name}ForCausalLM": Class(LMHead(vocab_size=vocab_size), "lm_head"),
        f"{name}Model": Class(prefix=""),
        f"{name}ForSequenceClassification": Class(ClassifyHead(num_labels=2, pool=last, bias=False), "score"),
        f"{name}ForTokenClassification": Class(TagHead(num_labels=2, dropout=0.1), "score"),
        f"{name}ForQuestionAnswering": Class(SpanHead(), "qa_outputs", span_prefix),
    }


# fields of the ForTokenClassification class of newer decoders; their config classes do not declare them
TAGGER_FIELDS: dict[str, Entry] = {
    "classifier_dropout": read_only(
        addresses=("head[TagHead].dropout",),
        read=lambda value, c: next((p for p in (value, c.hidden_dropout) if p is not None), 0.1),
    ),
    "hidden_dropout": read_only(),
    "token_classification_bias": entry("head[TagHead].bias", default=True, path=tag_bias),
}


def causal_mask(address: str) -> Entry:
    """`is_causal`, if it is the only field about the mask. Like `causal`, it is written only if False."""

    def write(mask: Mask) -> bool:
        if mask.sees == "past":
            raise Absent
        return False

    return entry(address, default=True, read=lambda value, c: Causal() if value else Full(), write=write)


def windowed_mask(address: str) -> dict[str, Entry]:
    """`sliding_window` and `is_causal`: the window size, and whether tokens see only earlier ones."""
    return {
        "sliding_window": entry(address, read=lambda size, c: decoder_mask(size, c.is_causal), write=window_size),
        "is_causal": causal(address),
    }


def optional_window(address: str, default: int) -> dict[str, Entry]:
    """Like `windowed_mask`, but sliding_window (with this published default) needs use_sliding_window=True."""

    def mask(spec: Model) -> Mask:
        return next(mask for _, mask in find(spec, address))

    def read(size: int | None, c: Config) -> Mask:
        return decoder_mask(size if c.use_sliding_window else None, c.is_causal)

    return {
        "use_sliding_window": Entry(False, lambda spec: window_size(mask(spec)) is not None),
        "sliding_window": entry(address, default=default, read=read, write=window_size),
        "is_causal": causal(mask),
    }


def decoder_mask(window: int | None, is_causal: bool) -> Mask:
    if window is None:
        return Causal() if is_causal else Full()
    if is_causal:
        return Causal() & Window(size=window)
    return Window(size=window + 1, ahead=True)  # published: a bidirectional window does not count the query itself


def window_size(mask: Mask) -> int | None:
    """Return the window of a mask as published configs count it; None means no window."""
    if isinstance(mask, Window):
        return mask.size - 1
    return next((each.size for each in mask.masks if isinstance(each, Window)), None) if isinstance(mask, All) else None


def encoder_head(
    c: Config, lm: LMHead, classify: Pool, choose: Pool, base: Head | None = None, *, dropout: float, span: float = 0.0
) -> Head | None:
    """Return the head of a class by the ending of its name; `base` for other classes. `dropout` is the tagger's."""
    name = c.architecture
    if name.endswith("ForMaskedLM"):
        return lm
    if name.endswith(("LMHeadModel", "ForCausalLM")):
        return lm.replace(shift=True)
    if name.endswith("ForSequenceClassification"):
        return ClassifyHead(num_labels=c.num_labels, pool=classify, problem=c.problem_type)
    if name.endswith("ForMultipleChoice"):
        return MultipleChoiceHead(pool=choose)
    if name.endswith("ForTokenClassification"):
        return TagHead(num_labels=c.num_labels, dropout=dropout)
    if name.endswith("ForQuestionAnswering"):
        if c.num_labels != 2:
            raise ValueError(f"num_labels must be 2 for question answering (start and end), got {c.num_labels}")
        return SpanHead(dropout=span)
    return base


def end_head(c: Config) -> ClassifyHead:
    """Return a text classifier that reads the decoder's vector at the end-of-sequence token."""
    dropout = c.classifier_dropout
    pool = Pool(
        take=LastOccurrence(token=c.eos_token_id), dense=True, activation="tanh", dropout=dropout, input_dropout=dropout
    )
    return ClassifyHead(num_labels=c.num_labels, pool=pool, problem=c.problem_type)


def tag_dropout(spec: Model) -> float:
    """Return the dropout before a tagging head."""
    if not isinstance(spec.head, TagHead):
        raise Absent
    return spec.head.dropout
