"""ModernBERT's published classes, whose heads begin with a dense layer, an activation and a norm, and their fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families.base.template import Class, Config, Entry, activation, choice, entry, tied
from anyformer.parts import (
    ClassifyHead, FirstToken, Head, Initializer, LMHead, MeanTokens, MultipleChoiceHead, Norm, PredictionPool,
    PredictionSpanHead, PredictionTagHead, PredictionTransform, SparseHead, TruncatedLeCun,
)  # fmt: skip


def classes(name: str, vocab_size: int, norm: Norm, init: Mapping[str, Initializer]) -> dict[str, Class]:
    """Return the classes `name`ForMaskedLM and so on. `init` is the template's; classifiers start differently."""
    transform = PredictionTransform(activation="gelu", norm=norm)
    pool = PredictionPool(transform=transform)
    lm = LMHead(vocab_size=vocab_size, bias=True, shift=False, transform=transform)
    other = {"init": {**init, "head.out.weight": TruncatedLeCun()}}

    def classifier(head: Head) -> Class:
        ours = "head.pool.transform" if head.pool is not None else "head.transform"
        return Class(head, "classifier", changes=other, weights={"head.{dense,norm}": f"{ours}.{{dense,norm}}"})

    return {
        f"{name}ForMaskedLM": Class(lm, "decoder", weights={"head.{dense,norm}": "head.transform.{dense,norm}"}),
        f"{name}Model": Class(prefix=""),
        f"{name}ForSequenceClassification": classifier(ClassifyHead(num_labels=2, pool=pool)),
        f"{name}ForTokenClassification": classifier(PredictionTagHead(num_labels=2, transform=transform)),
        f"{name}ForQuestionAnswering": classifier(PredictionSpanHead(transform=transform)),
        f"{name}ForMultipleChoice": classifier(MultipleChoiceHead(pool=pool)),
    }


def set_sparse(spec: Any, value: bool, c: Config) -> Any:
    if not value or not isinstance(spec.head, LMHead):
        return spec
    return spec.replace(head=SparseHead(**dict(spec.head.items()), ignored=c.sparse_pred_ignore_index))


def check_labels(c: Config) -> None:
    if c.architecture.endswith("ForQuestionAnswering") and c.num_labels != 2:
        raise ValueError(f"num_labels must be 2 for question answering (start and end), got {c.num_labels}")


FIELDS: dict[str, Any] = {
    "classifier_pooling": choice(
        "head.pool.take", {"cls": FirstToken(), "mean": MeanTokens()}, choices=("cls", "mean")
    ),
    "classifier_dropout": (
        "head.pool.transform.dropout", "head[TagHead].transform.dropout", "head[SpanHead].transform.dropout",
    ),
    "classifier_bias": "head.**.transform.bias",
    "classifier_activation": activation("head.**.transform.activation"),
    "decoder_bias": "head[LMHead].bias",
    "sparse_prediction": Entry(False, lambda spec: isinstance(spec.head, SparseHead), build=set_sparse),
    "sparse_pred_ignore_index": entry("head.ignored", default=-100),
    "tie_word_embeddings": tied(True, LMHead="head.out.weight", SparseHead="head.out.weight"),
}  # fmt: skip
