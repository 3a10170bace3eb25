"""Repeats the rows of rare classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from anyformer.data.source import Row, Source, Subset
from anyformer.specs.field_types import TwoOrMore


class Oversample(Subset):
    """Repeats the rows of rare classes, so that every class has about as many rows as the most frequent one; a row is
    repeated at most `most` times. `column` contains the classes. Use it for training data only."""

    column: str = "label"
    most: TwoOrMore = 20

    @property
    def whole(self) -> Source:
        return self.source.whole

    def rows(self, wanted: tuple[str, ...]) -> Iterator[Row]:
        columns = (*dict.fromkeys((*wanted, self.column)),)
        counts = Counter(self._class(row) for row in self.source.rows(columns) if row.example is not None)
        largest = max(counts.values(), default=0)
        for row in self.source.rows(columns):
            times = 1 if row.example is None else min(round(largest / counts[self._class(row)]), self.most)
            yield from [row] * times

    def _class(self, row: Row) -> str:
        assert row.example is not None
        return str(row.example[self.column])
