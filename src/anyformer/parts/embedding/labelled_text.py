"""Texts whose tokens have one more label: the task they are read for (ERNIE 2.0), or their language (XLM).

B batch, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from anyformer.kernels.capture import extremes
from anyformer.parts.embedding.text import TextEmbedding, TextEmbeddingModule
from anyformer.runtime.inputs import Kind, check_shape
from anyformer.specs.checks import at_least
from anyformer.specs.part import Site


class TaskText(TextEmbedding, sees="itself", called=("task embedding",)):
    """Text with a vector for the task that each token is read for: `task_type_ids` (B, T), or (B, 1) for a whole text;
    the first task where none are given [Sun et al. 2020]."""

    inputs: ClassVar[tuple[str, ...]] = (*TextEmbedding.inputs, "task_type_ids")
    input_kinds: ClassVar[Mapping[str, Kind]] = {"task_type_ids": "integers"}
    token_labels: ClassVar[tuple[str, ...]] = (*TextEmbedding.token_labels, "task_type_ids")

    tasks: int = 3  # number of task vectors

    def check(self) -> None:
        super().check()
        at_least(self, 1, "tasks")

    def build(self, site: Site) -> nn.Module:
        return LabelledTextModule(self, site, "tasks", "task_type_ids", default=0)


class LanguageText(TextEmbedding, sees="itself", called=("language embedding",)):
    """Text with a vector for the language of each token: `langs` (B, T), or (B, 1) for a whole text; nothing is added
    where none are given [Lample and Conneau 2019]."""

    inputs: ClassVar[tuple[str, ...]] = (*TextEmbedding.inputs, "langs")
    input_kinds: ClassVar[Mapping[str, Kind]] = {"langs": "integers"}
    token_labels: ClassVar[tuple[str, ...]] = (*TextEmbedding.token_labels, "langs")

    languages: int = 2  # number of language vectors

    def check(self) -> None:
        super().check()
        at_least(self, 1, "languages")

    def build(self, site: Site) -> nn.Module:
        return LabelledTextModule(self, site, "languages", "langs")


class LabelledTextModule(TextEmbeddingModule):
    """The table has the name of the field that says its size. `default`: the label where none are given."""

    def __init__(self, part: TextEmbedding, site: Site, field: str, name: str, default: int | None = None) -> None:
        super().__init__(part, site)
        self.field, self.name, self.default = field, name, default
        self.add_module(field, nn.Embedding(getattr(part, field), self.segment_width))

    def add_segments(self, x: Tensor, inputs: dict[str, Any]) -> Tensor:
        x, labels, table = super().add_segments(x, inputs), inputs.get(self.name), self.get_submodule(self.field)
        assert isinstance(table, nn.Embedding)
        B, T = x.shape[:2]
        check_shape(self.name, labels, (B, T), (1, T), (B, 1), (1, 1))
        if labels is None:
            return x if self.default is None else x + table.weight[self.default]
        try:
            return x + table(labels)
        except IndexError:
            low, high = extremes(labels)
            bad = low if low < 0 else high
            raise ValueError(f"{self.name}: {bad} is none of the {table.num_embeddings} {self.field}") from None
