"""Text embeddings with one more label per token: its task (ERNIE 2.0) or its language (XLM).

B batch, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from anyformer.kernels.capture import extremes
from anyformer.parts.embedding.padded_text import XLMText, XLMTextModule
from anyformer.parts.embedding.text import TextEmbedding, TextEmbeddingModule
from anyformer.runtime.inputs import Kind, check_shape
from anyformer.specs.field_types import Count, Natural
from anyformer.specs.part import Site


class TaskText(TextEmbedding, sees="itself", called=("task embedding",)):
    """Text embedding plus a task vector per token [Sun et al. 2020]. `task_type_ids` is (B, T), or (B, 1) for one task
    per text; without it, all tokens belong to task 0. With 0 `tasks`, it is accepted and ignored (ERNIE 1.0)."""

    inputs: ClassVar[tuple[str, ...]] = (*TextEmbedding.inputs, "task_type_ids")
    input_kinds: ClassVar[Mapping[str, Kind]] = {"task_type_ids": "integers"}
    token_labels: ClassVar[tuple[str, ...]] = (*TextEmbedding.token_labels, "task_type_ids")

    tasks: Natural = 3  # number of task vectors

    def build(self, site: Site) -> nn.Module:
        return LabelledTextModule(self, site, "tasks", "task_type_ids", default=0)


class LanguageText(XLMText, sees="itself", called=("language embedding",)):
    """Text embedding plus a language vector per token [Lample and Conneau 2019]. `langs` is (B, T), or (B, 1) for one
    language per text; without it, no language vector is added."""

    languages: Count = 2  # number of language vectors

    def build(self, site: Site) -> nn.Module:
        return LanguageTextModule(self, site, "languages", "langs")


class LabelledTextModule(TextEmbeddingModule):
    """Adds the vector of the label in input `name`. The table is named after `field`, the Part's field with its size.
    If the input is missing, the label is `default`; None: nothing is added."""

    def __init__(self, part: TextEmbedding, site: Site, field: str, name: str, default: int | None = None) -> None:
        super().__init__(part, site)
        self.field, self.name, self.default = field, name, default
        size = getattr(part, field)
        self.add_module(field, nn.Embedding(size, self.segment_width) if size else None)

    def add_segments(self, x: Tensor, inputs: dict[str, Any]) -> Tensor:
        x, labels, table = super().add_segments(x, inputs), inputs.get(self.name), getattr(self, self.field)
        B, T = x.shape[:2]
        check_shape(self.name, labels, (B, T), (1, T), (B, 1), (1, 1))
        if table is None or (labels is None and self.default is None):
            return x
        if labels is None:
            return x + table.weight[self.default]
        try:
            return x + table(labels)
        except IndexError:
            low, high = extremes(labels)
            bad = low if low < 0 else high
            size = table.num_embeddings
            raise ValueError(f"{self.name}: {bad} is not between 0 and {size - 1} ({self.field}={size})") from None


class LanguageTextModule(LabelledTextModule, XLMTextModule):
    pass
