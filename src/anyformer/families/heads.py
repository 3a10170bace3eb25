"""The heads that published decoders share, by the ending of the class name."""

from __future__ import annotations

from typing import Any

from anyformer.parts.head import ClassifyHead, Head, LMHead, Pool, SpanHead, TagHead


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
        return TagHead(num_labels=c.num_labels, dropout=dropout)
    return SpanHead() if name.endswith("ForQuestionAnswering") else None
