"""Several sources at once: how much of what is learnt comes from each, and several tasks written as one."""

from __future__ import annotations

import hashlib
import math
import string
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from anyformer.data.source import Example, Row, Source, Subset, reach
from anyformer.specs.checks import at_least, positive
from anyformer.specs.messages import nearest, quote
from anyformer.specs.part import Part, Table


class Share(Part):
    """One source of a mixture. Its `weight` is relative to those of the others; without one it is the size of the
    source."""

    name: str
    source: Source
    weight: float | None = None

    def check(self) -> None:
        if isinstance(self.source, Mixture):
            raise ValueError(f"the share {quote(self.name)} is a Mixture; list its shares directly")
        if self.weight is not None and self.weight < 0:
            raise ValueError(f"the share {quote(self.name)} has the weight {self.weight}; it must be 0 or more")


class Mixture(Source, called=("mixture of datasets",)):
    """Draws examples from several sources by weight; each source has its own epochs.
    Weights count examples, and tokens where texts are packed; batches in tokens are of one source each.

    Where no weights are given a source counts by its size, up to `limit`, and with a higher `temperature` sizes matter
    less [Raffel et al. 2020, section 3.5.2]. To evaluate, everything is gone through once, one source after another."""

    shares: tuple[Share, ...]
    limit: int | None = None
    temperature: float = 1.0

    def check(self) -> None:
        at_least(self, 1, "limit")
        positive(self, "temperature")
        names, weights = [share.name for share in self.shares], [share.weight for share in self.shares]
        if self.columns:
            raise ValueError("Mixture: columns belong to the sources in it")
        if not names:
            raise ValueError("Mixture: it has no shares")
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"Mixture: two shares have the name {quote(twice)}")
        given = [weight for weight in weights if weight is not None]
        if given and len(given) < len(weights):
            raise ValueError(
                f"Mixture: {quote(names[weights.index(None)])} has no weight; give all shares a weight, or none"
            )
        if given and not any(given):
            raise ValueError("Mixture: all weights are 0")
        if given and (self.limit is not None or self.temperature != 1):
            raise ValueError("Mixture: limit and temperature are for shares without weights")

    def parts(self) -> dict[str, Source]:
        return {share.name: share.source for share in self.shares}

    def raw(self) -> Iterator[Row]:
        return chain.from_iterable(share.source.raw() for share in self.shares)

    def rows(self, wanted: tuple[str, ...]) -> Iterator[Row]:
        return chain.from_iterable(share.source.rows(wanted) for share in self.shares)

    def digest(self) -> str:
        return hashlib.sha256(" ".join(share.source.digest() for share in self.shares).encode()).hexdigest()

    def rates(self, sizes: Mapping[str, int]) -> dict[str, float]:
        """Which part of everything each share is to be; together 1."""
        most = math.inf if self.limit is None else self.limit
        weights = {
            share.name: min(sizes[share.name], most) if share.weight is None else share.weight for share in self.shares
        }
        largest = max(weights.values())  # relative to it, so that no power overflows
        weights = {name: (weight / largest) ** (1 / self.temperature) for name, weight in weights.items()}
        total = sum(weights.values())
        return {name: weight / total for name, weight in weights.items()}


class TextToText(Subset, called=("T5 task",)):
    """Each row as a text to read, "source", and one to write, "target": what `reads` and `writes` say, with columns in
    braces: "translate English to German: {en}" and "{de}". `words` has what is written for a value, {"0": "no"}. A list
    is joined where it is read; where it is written, each of it is right."""

    reads: str
    writes: str = "{target}"
    words: Mapping[str, str] = Table()

    def check(self) -> None:
        super().check()
        for form in (self.reads, self.writes):
            if not columns_of(form):
                raise ValueError(f"TextToText: {quote(form)} names no column in braces")

    def choose(self, rows: Iterator[Row]) -> Iterator[Row]:
        seen = False
        for row in rows:
            if row.example is None:
                yield row
                continue
            try:
                written = self.make_example(row.example)
            except KeyError as error:
                lacks = f"no column {quote(error.args[0])}"
                if not seen:  # an error in the description
                    raise ValueError(f"{row.place}: {lacks}; {nearest(error.args[0], row.example)}") from None
                yield Row(row.place, None, lacks)
                continue
            except ValueError as error:
                yield Row(row.place, None, str(error))
                continue
            seen = True
            yield Row(row.place, written)

    def rows(self, wanted: tuple[str, ...]) -> Iterator[Row]:
        return self.choose(self.source.rows(()))  # the columns that are wanted are made here

    def make_example(self, example: Example) -> dict[str, Any]:
        values = {name: reach(example, name) for name in columns_of(self.writes)}
        listed = next((name for name, value in values.items() if isinstance(value, (list, tuple))), None)
        right = [{**values, listed: one} for one in values[listed]] if listed is not None else [values]
        targets = [fill_form(self.writes, {name: self.word(value) for name, value in each.items()}) for each in right]
        read = {name: reach(example, name) for name in columns_of(self.reads)}
        return {"source": fill_form(self.reads, read), "target": targets[0] if listed is None else targets}

    def word(self, value: Any) -> str:
        text = str(value)
        if self.words and text not in self.words and text not in self.words.values():
            raise ValueError(f"no word for the value {quote(text)}; {nearest(text, self.words)}")
        return self.words.get(text, text)


def columns_of(form: str) -> list[str]:
    try:
        return [name for _, name, _, _ in string.Formatter().parse(form) if name]
    except ValueError as error:
        raise ValueError(f"TextToText: {quote(form)}: {error}") from None


def fill_form(form: str, values: Mapping[str, Any]) -> str:
    """A form with values in its braces; nothing of them is looked into."""
    texts = []
    for text, name, _, _ in string.Formatter().parse(form):
        value = values[name] if name else ""
        texts += [text, " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)]
    return "".join(texts)
