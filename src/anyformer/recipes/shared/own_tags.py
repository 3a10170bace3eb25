"""`anyformer train --tags`: a word tagger for CoNLL columns, or for JSON lines with lists of words and tags."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from anyformer.data import Columns, JSONLines, Source
from anyformer.data.source import detect_encoding, find, lines, plain_suffix
from anyformer.objectives.tag import Tag, word_list
from anyformer.recipes.shared.encoder import tiny_bert, vocabulary
from anyformer.recipes.shared.held_out import Notify, divide_steps, held_out, name_of, skipped_reasons, usable
from anyformer.recipes.shared.models import with_labels, with_vocabulary
from anyformer.recipes.shared.own_text import MOST_LABELS
from anyformer.specs.messages import nearest
from anyformer.train.optim import AdamW, Linear
from anyformer.train.run import Batch, Evaluate, Run

# usual names of columns in JSON lines
WORDS = ("tokens", "words")
TAGS = ("tags", "ner_tags", "labels", "pos_tags", "ner", "pos", "upos")
OUTSIDE = "O"
TAGGER = "ForTokenClassification"
NUM_LINES = 2000  # lines that are read to detect the columns of a file
CONLLU = 10  # columns of CoNLL-U; the first is the number of the word


def from_tags(
    path: str,
    words: str | None = None,
    tags: str | None = None,
    model: str | None = None,
    *,
    encoding: str | None = None,
    tell: Notify = lambda line: None,
) -> Run:
    """Return a run that trains a tagger on labelled words. `words` and `tags` are column names of JSON lines, or column
    numbers (from 1) of other files. One sentence in ten is held out. `tell` receives a line on how the file is read."""
    source = sentences_in(path, words, tags, encoding)
    count, num_words, labels, skipped = 0, 0, set[str](), Counter[str]()
    for names in usable(source, ("words", "tags"), tags_of, skipped):
        count, num_words = count + 1, num_words + len(names)
        labels.update(names)
    if not count:
        raise ValueError(f"{path}: no sentence can be used; {skipped_reasons(skipped)}")
    reasons = f" ({skipped_reasons(skipped)})" if skipped else ""
    if not 2 <= len(labels) <= MOST_LABELS:
        number = "a single tag" if len(labels) < 2 else f"more than {MOST_LABELS} tags"
        raise ValueError(f"{path}: {number}, such as {min(labels)!r}{reasons}; choose the column with --label COLUMN")
    ordered = tuple(sorted(labels, key=lambda tag: (tag != OUTSIDE, tag.partition("-")[2], tag)))
    more = f"; encoding {source.encoding} (--encoding sets another)" if source.encoding != "utf-8" else ""
    where = ", ".join(f"{name} in {column}" for name, column in columns_of(source).items())
    tell(f"{path}: {count:,} sentences, {num_words:,} words, {len(ordered)} tags; {where}{more}")
    return tag_run(source, name_of(path), ordered, count, model)


def tags_of(example: Mapping[str, Any]) -> list[str]:
    """Return one tag per word. Raise ValueError if there are no words, or more or fewer tags."""
    words, tags = word_list(example, "words"), word_list(example, "tags")
    if len(words) != len(tags) or not words:
        raise ValueError(f"{len(words)} words and {len(tags)} tags")
    return [str(tag).strip() for tag in tags]


def sentences_in(path: str, words: str | None, tags: str | None, encoding: str | None) -> Columns | JSONLines:
    file = find(path, (*Columns(path=path).endings(), *JSONLines(path=path).endings()))[0]
    encoding = encoding or detect_encoding(file)
    if plain_suffix(file) in JSONLines(path=path).endings():
        return json_sentences(path, words, tags, encoding)
    return column_sentences(path, file, words, tags, encoding)


def json_sentences(path: str, words: str | None, tags: str | None, encoding: str) -> JSONLines:
    source = JSONLines(path=path, encoding=encoding)
    row = next((row for row in source.raw() if row.example is not None), None)
    if row is None or row.example is None:
        raise ValueError(f"{path}: no row can be read")
    known = [str(name) for name in row.example]
    fields = {}
    for name, given, usual, flag in (("words", words, WORDS, "--column"), ("tags", tags, TAGS, "--label")):
        if given is not None and given not in known:
            raise ValueError(f"{path}: no column {given!r}; {nearest(given, known)}")
        column = given or next((each for each in usual if each in known), None)
        if column is None:
            raise ValueError(f"{path}: choose the column of the {name} with {flag} COLUMN: {', '.join(known)}")
        fields[name] = column
    return source.replace(columns=fields)


def column_sentences(path: str, file: Path, words: str | None, tags: str | None, encoding: str) -> Columns:
    """Detect the columns of a file by the most common number of columns. Lines that begin with "# " and have a
    different number of columns are comments."""
    texts = [line.text for line in islice(lines(file, encoding), NUM_LINES) if line.text and line.text.strip()]
    cells = [text.split("\t") if "\t" in text else text.split() for text in texts]
    plain = [each for text, each in zip(texts, cells) if not text.startswith("# ")]
    if not plain:
        raise ValueError(f"{path}: no line with a word and its tag")
    number = Counter(map(len, plain)).most_common(1)[0][0]
    if number < 2:
        raise ValueError(f"{path}: lines have only one column; each needs a word and its tag")
    numbered = number == CONLLU and plain[0][0].partition("-")[0].isdigit()
    columns = {"words": 1, "tags": 3} if numbered else {"words": 0, "tags": number - 1}
    for name, given, flag in (("words", words, "--column"), ("tags", tags, "--label")):
        if given is not None:
            if not given.isdigit() or not 1 <= int(given) <= number:
                raise ValueError(f"{flag} {given}: {path} has columns 1 to {number}")
            columns[name] = int(given) - 1
    comments = any(text.startswith("# ") and len(each) != number for text, each in zip(texts, cells))
    return Columns(
        path=path, fields=columns, comment="# " if comments or numbered else None, numbered=numbered, encoding=encoding
    )


def columns_of(source: Columns | JSONLines) -> dict[str, str]:
    """Return name -> the column in the file, for messages."""
    if isinstance(source, Columns):
        return {name: f"column {index + 1}" for name, index in source.fields.items()}
    return {name: f"column {column!r}" for name, column in source.columns.items()}


def tag_run(source: Source, name: str, labels: tuple[str, ...], count: int, model: str | None) -> Run:
    size, length = 2000, 256
    entities = any(label.startswith("B-") for label in labels)
    run = Run(
        name=name,
        model=tiny_bert(f"Bert{TAGGER}", size, length, labels),
        vocabulary=vocabulary(size),
        data=held_out(source),
        objective=Tag(labels=labels),
        optimizer=AdamW(lr=5e-4, weight_decay=0.01),
        schedule=Linear(),
        batch=Batch(examples=16),
        steps=min(max(10 * count // 16, 100), 5000),  # ten epochs, between 100 and 5000 steps
        evaluate=Evaluate(metrics=("f1",) if entities else ("accuracy",)),
    )
    run = divide_steps(run)
    if model is None:
        return run
    given, new_vocabulary = with_vocabulary(model, with_labels(model, labels, TAGGER), vocabulary(size))
    return run.replace(
        model=given, vocabulary=new_vocabulary, optimizer=AdamW(lr=5e-5 if new_vocabulary is None else 5e-4)
    )
