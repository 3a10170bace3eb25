"""Sources that generate a "text" column from the other columns of a row."""

from __future__ import annotations

import string
from collections.abc import Iterator

from anyformer.data.source import Example, Row, Source


class Captions(Source):
    """Adds a column "text" to a source: the class name of the number in column `label`, written in each of `forms`. In
    a form, {} is replaced by the name and {a} by its article."""

    source: Source
    names: tuple[str, ...]
    forms: tuple[str, ...] = ("{}",)
    label: str = "label"

    def check(self) -> None:
        fields = [{name for _, name, _, _ in string.Formatter().parse(form) if name is not None} for form in self.forms]
        if not self.names or not fields or not all({""} <= each <= {"", "a"} for each in fields):
            raise ValueError(f"Captions.forms: {self.forms}; each form needs {{}} for the name and may contain {{a}}")

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


class Worded(Source):
    """Adds a column "text" to a source: each of `forms`, filled with other columns. In a form, {name} is replaced by
    the column `name`; a list is joined with commas, and {name:4} takes only its first four items. Forms with an empty
    column are skipped."""

    source: Source
    forms: tuple[str, ...]

    def check(self) -> None:
        if not self.forms or not all(self.pieces(form) for form in self.forms):
            raise ValueError(f"Worded.forms: {self.forms}; each form needs a column, as {{name}} or {{name:4}}")

    @staticmethod
    def pieces(form: str) -> list[tuple[str, str | None, int | None]]:
        """Parse a form into (text, column after it, maximum number of items); [] if it is not a form."""
        try:
            fields = [(text, name, spec) for text, name, spec, _ in string.Formatter().parse(form)]
        except ValueError:
            return []
        fits = any(name for _, name, _ in fields) and all(not spec or spec.isdecimal() for _, _, spec in fields)
        return [(text, name or None, int(spec) if spec else None) for text, name, spec in fields] if fits else []

    def raw(self) -> Iterator[Row]:
        forms = [self.pieces(form) for form in self.forms]
        wanted = tuple(dict.fromkeys(name for form in forms for _, name, _ in form if name is not None))
        for place, example, problem in self.source.rows(wanted):
            texts = [] if example is None else [text for form in forms if (text := fill_form(form, example))]
            problem = problem or ("" if texts else "every form names an empty column")
            yield Row(place, {**example, "text": texts} if example is not None and texts else None, problem)

    def digest(self) -> str:
        return self.source.digest()


def fill_form(form: list[tuple[str, str | None, int | None]], example: Example) -> str:
    """Return the filled form, or "" if one of its columns is empty."""
    texts = []
    for text, name, most in form:
        value = "" if name is None else example[name]
        words = value if isinstance(value, str) else ", ".join(str(word) for word in list(value)[:most])
        if name is not None and not words:
            return ""
        texts.append(text + words)
    return "".join(texts)
