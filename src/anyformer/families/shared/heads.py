"""What published decoders and encoders share: heads by the ending of the class name, and the model around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anyformer.families.base.fields import Absent, Field
from anyformer.families.base.template import Class, Config, Entry, entry, read_only_entry
from anyformer.models import Model
from anyformer.parts.head.base import Head
from anyformer.parts.head.classify import ClassifyHead, MultipleChoiceHead
from anyformer.parts.head.language import LMHead
from anyformer.parts.head.pool import Pool
from anyformer.parts.head.span import SpanHead
from anyformer.parts.head.tag import TagHead
from anyformer.runtime.mask import All, Causal, Full, Mask, Window
from anyformer.specs.addresses import value_at


def tag_bias(spec: Model) -> bool:
    if not isinstance(spec.head, TagHead) or spec.head.bias:  # which no config class has: written where it says no
        raise Absent
    return False


def causal(path: str | Callable[[Any], Mask]) -> Field:
    """The field by which published decoders are made to see both sides, for embeddings say; `path` is their mask.
    It is written where it says so alone: true hides the future in encoders and cross-attentions of some kernels too."""

    def read(spec: Model) -> bool:
        if (path(spec) if callable(path) else value_at(spec, path)).sees == "past":
            raise Absent
        return False

    return Field(True, read)


def read_mask(c: Config) -> Mask:
    """What a token of such a decoder sees."""
    return Causal() if getattr(c, "is_causal", True) else Full()


def decoder_classes(name: str, vocab_size: int, span_prefix: str | None = None) -> dict[str, Class]:
    """The five classes that newer decoders have: `name`ForCausalLM and so on. The one for answers may have a prefix of
    its own."""
    last = Pool(take="last")
    return {
        f"{name}ForCausalLM": Class(LMHead(vocab_size=vocab_size), "lm_head"),
        f"{name}Model": Class(prefix=""),
        f"{name}ForSequenceClassification": Class(ClassifyHead(num_labels=2, pool=last, bias=False), "score"),
        f"{name}ForTokenClassification": Class(TagHead(num_labels=2, dropout=0.1), "score"),
        f"{name}ForQuestionAnswering": Class(SpanHead(), "qa_outputs", span_prefix),
    }


# what the tagging class reads that newer decoders share; their config classes do not have these fields
TAGGER_FIELDS: dict[str, Entry] = {
    "classifier_dropout": read_only_entry(
        addresses=("head[TagHead].dropout",),
        read=lambda value, c: next((p for p in (value, c.hidden_dropout) if p is not None), 0.1),
    ),
    "hidden_dropout": read_only_entry(),
    "token_classification_bias": entry("head[TagHead].bias", default=True, path=tag_bias),
}


def causal_mask(address: str) -> Entry:
    """`is_causal`, where it is the only field about the mask. It is written as `causal` says."""

    def write(mask: Mask) -> bool:
        if mask.sees == "past":
            raise Absent
        return False

    return entry(address, default=True, read=lambda value, c: Causal() if value else Full(), write=write)


def windowed_mask(address: str) -> dict[str, Field]:
    """`sliding_window` and `is_causal`: how far back a token looks, and whether only back."""

    return {
        "sliding_window": entry(address, read=lambda size, c: decoder_mask(size, c.is_causal), write=window_size),
        "is_causal": causal(address),
    }


def decoder_mask(window: int | None, is_causal: bool) -> Mask:
    if window is None:
        return Causal() if is_causal else Full()
    if is_causal:
        return Causal() & Window(size=window)
    return Window(size=window + 1, ahead=True)  # published: to both sides, a window does not count the query itself


def window_size(mask: Mask) -> int | None:
    """How far back a mask lets a token look, as published configs count; None: to the first token."""
    if isinstance(mask, Window):
        return mask.size - 1
    return next((each.size for each in mask.masks if isinstance(each, Window)), None) if isinstance(mask, All) else None


def encoder_head(
    c: Config, lm: LMHead, classify: Pool, choose: Pool, base: Head | None = None, *, dropout: float, span: float = 0.0
) -> Head | None:
    """Language model, a label for the text, one a token (after `dropout`), a choice, a span; `base` for the rest."""
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
            raise ValueError(f"num_labels is {c.num_labels}; an answer has two ends, a start and an end")
        return SpanHead(dropout=span)
    return base


def end_head(c: Config) -> ClassifyHead:
    """A label for the text, read off the decoder's vector where the source ends."""
    dropout = c.classifier_dropout
    pool = Pool(
        take="token", token=c.eos_token_id, dense=True, activation="tanh", dropout=dropout, input_dropout=dropout
    )
    return ClassifyHead(num_labels=c.num_labels, pool=pool, problem=c.problem_type)


def tag_dropout(spec: Model) -> float:
    """Reads back the dropout before a tagging head."""
    if not isinstance(spec.head, TagHead):
        raise Absent
    return spec.head.dropout
