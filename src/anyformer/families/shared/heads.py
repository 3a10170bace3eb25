"""What published decoders and encoders share: heads by the ending of the class name, and the model around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anyformer.families.base.family import Absent, ConfigField, Field
from anyformer.models import DecoderModel
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.head.base import Head
from anyformer.parts.head.classify import ClassifyHead, MultipleChoiceHead
from anyformer.parts.head.language import LMHead
from anyformer.parts.head.pool import Pool
from anyformer.parts.head.span import SpanHead
from anyformer.parts.head.tag import TagHead
from anyformer.parts.init import Normal
from anyformer.runtime.mask import Causal, Full, Mask
from anyformer.specs.part import at
from anyformer.stacks.stack import Stack


def tag_bias(spec: Any) -> bool:
    if not isinstance(spec.head, TagHead) or spec.head.bias:  # which no config class has: written where it says no
        raise Absent
    return False


# what the tagging class reads that newer decoders share; their config classes do not have these fields
TAGGING: dict[str, ConfigField] = {
    "classifier_dropout": Field(None), "hidden_dropout": Field(None), "token_classification_bias": Field(True, tag_bias)
}  # fmt: skip


def causal(path: str | Callable[[Any], Mask]) -> Field:
    """The field by which published decoders are made to see both sides, for embeddings say; `path` is their mask.
    It is written where it says so alone: true hides the future in encoders and cross-attentions of some kernels too."""

    def read(spec: Any) -> bool:
        if (path(spec) if callable(path) else at(spec, path)).sees == "past":
            raise Absent
        return False

    return Field(True, read)


def seen(c: Any) -> Mask:
    """What a token of such a decoder sees."""
    return Causal() if getattr(c, "is_causal", True) else Full()


def decoder_head(c: Any) -> Head | None:
    """Language model, a label for the text (read off its last token), one a token, a span; None for the base class."""
    name = c.architecture
    if name.endswith(("LMHeadModel", "ForCausalLM")):
        return LMHead(vocab_size=c.vocab_size)
    if name.endswith("ForSequenceClassification"):
        pool = Pool(take="last", padding_token=c.pad_token_id)
        return ClassifyHead(num_labels=c.num_labels, pool=pool, bias=False, problem=c.problem_type)
    if name.endswith("ForTokenClassification"):
        dropout = next((p for p in (c.classifier_dropout, c.hidden_dropout) if p is not None), 0.1)
        return TagHead(num_labels=c.num_labels, dropout=dropout, bias=getattr(c, "token_classification_bias", True))
    return SpanHead() if name.endswith("ForQuestionAnswering") else None


def decoder_model(
    c: Any, decoder: Stack, embedding: TextEmbedding | None = None, head: Head | None = None, **more: Any
) -> DecoderModel:
    """The head of the class over a stack, tied to the tokens where it scores them and the config says so."""
    head = decoder_head(c) if head is None else head
    tie = isinstance(head, LMHead) and c.tie_word_embeddings
    return DecoderModel(
        width=c.hidden_size,
        embedding=embedding or TextEmbedding(tokens=Tokens(vocab_size=c.vocab_size, padding_index=c.pad_token_id)),
        decoder=decoder,
        head=head,
        ties=(("head.out.weight", "embedding.tokens.weight"),) if tie else (),
        init={"*": Normal(std=c.initializer_range)},
        **more,
    )


def encoder_head(
    c: Any, lm: LMHead, classify: Pool, choose: Pool, base: Head | None = None, *, dropout: float, span: float = 0.0
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


def end_head(c: Any) -> ClassifyHead:
    """A label for the text, read off the decoder's vector where the source ends."""
    dropout = c.classifier_dropout
    pool = Pool(
        take="token", token=c.eos_token_id, dense=True, activation="tanh", dropout=dropout, input_dropout=dropout
    )
    return ClassifyHead(num_labels=c.num_labels, pool=pool, problem=c.problem_type)


def tag_dropout(spec: Any) -> float:
    """Reads back the dropout before a tagging head."""
    if not isinstance(spec.head, TagHead):
        raise Absent
    return spec.head.dropout
