"""Texts that say what label a row has."""

from __future__ import annotations

import string
from collections.abc import Iterator

from anyformer.data.source import Row, Source


class Captions(Source):
    """Another source with one more column, "text": what the number in its column `label` stands for, said in each of
    `forms`. In a form {} is the name, {a} the article before it."""

    source: Source
    names: tuple[str, ...]
    forms: tuple[str, ...] = ("{}",)
    label: str = "label"

    def check(self) -> None:
        fields = [{name for _, name, _, _ in string.Formatter().parse(form) if name is not None} for form in self.forms]
        if not self.names or not fields or not all({""} <= each <= {"", "a"} for each in fields):
            raise ValueError(f"Captions.forms are {self.forms}; each says {{}} for the name, and may say {{a}}")

    def raw(self) -> Iterator[Row]:
        for place, example, problem in self.source.rows((self.label,)):
            if example is None:
                yield Row(place, None, problem)
                continue
            number = example[self.label]
            if not 0 <= int(number) < len(self.names):
                yield Row(place, None, f"label {number} is outside 0..{len(self.names) - 1}")
                continue
            name = self.names[int(number)]
            article = "an" if name[:1].lower() in "aeiou" else "a"
            yield Row(place, {**example, "text": [form.format(name, a=article) for form in self.forms]})

    def digest(self) -> str:
        return self.source.digest()
