"""Mixtures of several sources by weight, and several tasks written as text to text."""

from __future__ import annotations

import hashlib
import math
import string
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from anyformer.data.source import Example, Row, Source, Subset, reach
from anyformer.specs.field_types import Count, Positive
from anyformer.specs.messages import nearest, quote
from anyformer.specs.part import Part, Table


class Share(Part):
    """One source of a mixture. `weight` is relative to the other shares (default: the size of the source)."""

    name: str
    source: Source
    weight: float | None = None

    def check(self) -> None:
        if isinstance(self.source, Mixture):
            raise ValueError(f"the share {quote(self.name)} is a Mixture; list its shares directly instead")
        if self.weight is not None and self.weight < 0:
            raise ValueError(f"the share {quote(self.name)} has the weight {self.weight}; it must be 0 or more")


class Mixture(Source, called=("mixture of datasets",)):
    """Draws examples from several sources by weight; each source has its own epochs.
    Weights are rates of examples, or of tokens if texts are packed. If the batch size is in tokens, each batch comes
    from one source, and weights are rates of batches.

    Without weights, the weight of a source is its size, at most `limit`; a higher `temperature` makes the rates more
    equal [Raffel et al. 2020, section 3.5.2]. Evaluation reads every source once, one after another."""

    shares: tuple[Share, ...]
    limit: Count | None = None
    temperature: Positive = 1.0

    def check(self) -> None:
        names, weights = [share.name for share in self.shares], [share.weight for share in self.shares]
        if self.columns:
            raise ValueError("Mixture: set columns on its sources instead")
        if not names:
            raise ValueError("Mixture: give at least one share")
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
            raise ValueError("Mixture: limit and temperature need shares without weights")

    def parts(self) -> dict[str, Source]:
        return {share.name: share.source for share in self.shares}

    def raw(self) -> Iterator[Row]:
        return chain.from_iterable(share.source.raw() for share in self.shares)

    def rows(self, wanted: tuple[str, ...]) -> Iterator[Row]:
        return chain.from_iterable(share.source.rows(wanted) for share in self.shares)

    def digest(self) -> str:
        return hashlib.sha256(" ".join(share.source.digest() for share in self.shares).encode()).hexdigest()

    def rates(self, sizes: Mapping[str, int]) -> dict[str, float]:
        """Return the rate of each share; they sum to 1."""
        most = math.inf if self.limit is None else self.limit
        weights = {
            share.name: min(sizes[share.name], most) if share.weight is None else share.weight for share in self.shares
        }
        largest = max(weights.values())  # divided by it, so that no power overflows
        weights = {name: (weight / largest) ** (1 / self.temperature) for name, weight in weights.items()}
        total = sum(weights.values())
        return {name: weight / total for name, weight in weights.items()}


class TextToText(Subset, called=("T5 task",)):
    """Turns each row into an input text "source" and an output text "target". `reads` and `writes` are their forms,
    with columns in braces: "translate English to German: {en}" and "{de}". `words` maps values to output words:
    {"0": "no"}. In `reads`, a list is joined with spaces; in `writes`, each of its items is a correct target."""

    reads: str
    writes: str = "{target}"
    words: Mapping[str, str] = Table()

    def check(self) -> None:
        super().check()
        for form in (self.reads, self.writes):
            if not columns_of(form):
                raise ValueError(f"TextToText: {quote(form)} has no column in braces")

    def choose(self, rows: Iterator[Row]) -> Iterator[Row]:
        seen = False
        for row in rows:
            if row.example is None:
                yield row
                continue
            try:
                written = self.make_example(row.example)
            except KeyError as error:
                problem = f"no column {quote(error.args[0])}"
                if not seen:  # an error in the description
                    raise ValueError(f"{row.place}: {problem}; {nearest(error.args[0], row.example)}") from None
                yield Row(row.place, None, problem)
                continue
            except ValueError as error:
                yield Row(row.place, None, str(error))
                continue
            seen = True
            yield Row(row.place, written)

    def rows(self, wanted: tuple[str, ...]) -> Iterator[Row]:
        return self.choose(self.source.rows(()))  # `wanted` are "source" and "target", which this class creates

    def make_example(self, example: Example) -> dict[str, Any]:
        values = {name: reach(example, name) for name in columns_of(self.writes)}
        listed = next((name for name, value in values.items() if isinstance(value, (list, tuple))), None)
        answers = [{**values, listed: one} for one in values[listed]] if listed is not None else [values]
        targets = [fill_form(self.writes, {name: self.word(value) for name, value in each.items()}) for each in answers]
        inputs = {name: reach(example, name) for name in columns_of(self.reads)}
        return {"source": fill_form(self.reads, inputs), "target": targets[0] if listed is None else targets}

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
    """Return a form with values in its braces. Unlike str.format, it does not access attributes of values."""
    texts = []
    for text, name, _, _ in string.Formatter().parse(form):
        value = values[name] if name else ""
        texts += [text, " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)]
    return "".join(texts)
