"""`anyformer train --text`, `--csv` and `--jsonl`: runs on your own texts and tables."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from anyformer.data import CSV, TSV, Data, JSONLines, Source, TextFiles, TrainedBPE, open_table
from anyformer.data.conversations import conversations_in
from anyformer.data.source import detect_encoding, known_encoding, lines
from anyformer.inputs import image, recordings
from anyformer.models import position_limit
from anyformer.objectives.causal import NextToken
from anyformer.objectives.classify import Classify
from anyformer.objectives.masked import Masked
from anyformer.objectives.multi_label import MultiLabel, split_labels
from anyformer.objectives.objective import Objective
from anyformer.objectives.permuted import Permuted
from anyformer.recipes import quickstart
from anyformer.recipes.shared.encoder import tiny_bert, vocabulary
from anyformer.recipes.shared.held_out import Notify, divide_steps, held_out, name_of, skipped_reasons, usable
from anyformer.recipes.shared.models import CLASSIFIER, with_labels, with_vocabulary
from anyformer.recipes.shared.own_answers import answers_run
from anyformer.specs.messages import nearest, quote, shorten
from anyformer.specs.part import walk
from anyformer.stacks.two_streams import TwoStreams
from anyformer.train.optim import AdamW, Linear
from anyformer.train.run import Batch, Evaluate, Run, description_of, model_of

MOST_LABELS = 200
TEXTS = ("text", "sentence", "content", "review", "document", "body")  # usual names of a text column
MISSING = {"na", "n/a", "nan", "none", "null", "nil", "missing", "unknown", "?", "-"}  # missing numbers
MEDIA = {  # kind of file -> its endings, and how to train on such files
    "images": (image.ENDINGS, "put the images of each class into one folder, and give --images DIR"),
    "sound files": (recordings.ENDINGS, "a run.json with the objective CTC or Transcribe learns from recordings"),
}
DECIMAL_COMMA = re.compile(r"[+-]?\d+(\.\d{3})*,\d+")  # 30,5 and 1.030,5


def from_text(
    path: str, model: str | None = None, *, encoding: str | None = None, tell: Notify = lambda line: None
) -> Run:
    """Return a run that trains a language model on text files; the last tenth of each file is for validation."""
    source = TextFiles(path=path)
    files = source.files()
    encodings = dict.fromkeys([known_encoding(encoding)] if encoding else map(detect_encoding, files))
    if set(encodings) != {"utf-8"}:
        source = source.replace(encoding=encoding if encoding or len(encodings) > 1 else next(iter(encodings)))
        tell(f"{path}: encoding {', '.join(encodings)} (--encoding sets another)")
    data = Data(train=source.replace(stop=0.9), valid=source.replace(start=0.9))
    size = sum(file.stat().st_size for file in files)
    if size < 2**16 and not all(any(True for _ in part.raw()) for part in (data.train, data.valid) if part):
        raise ValueError(f"{path}: too little text; the last tenth is held out and must contain words")
    begin = " ".join((line.text or "")[:400] for line in islice(lines(files[0], next(iter(encodings))), 20))
    return text_run(data, name_of(path), size, model, " ".join(begin.split()[:4]))


def from_table(
    path: str,
    label: str | None,
    columns: Sequence[str] = (),
    model: str | None = None,
    *,
    delimiter: str | None = None,
    encoding: str | None = None,
    jsonl: bool = False,
    separator: str | None = None,
    labels: Sequence[str] = (),
    tell: Notify = lambda line: None,
) -> Run:
    """Return a run that trains a classifier on the rows of a CSV, TSV or JSON lines file, or a language model if there
    is no label. A row has any number of labels if the label column contains lists, or names with a `separator`. One row
    in ten is held out. `labels` are used if the column contains any of them. `tell` receives a line on how the file is
    read."""
    wanted = (*columns, *([label] if label else ()))
    source: Source = open_table(path, wanted, delimiter=delimiter, encoding=encoding, jsonl=jsonl)
    known, problem, lists = dict[str, None](), "it is empty", set[bool]()
    first: Mapping[str, Any] | None = None
    for row in source.raw():
        problem = row.problem or problem
        if row.example is not None:
            first = first or row.example
            known.update(dict.fromkeys(row.example))
            if (value := row.example.get(label or "")) is not None:
                lists.add(isinstance(value, list))
            if isinstance(source, CSV):  # the first line has all column names
                break
    if first is None:
        if problem == "it is empty" and isinstance(source, CSV) and any(file.stat().st_size for file in source.files()):
            problem = "it has only a line of column names"
        raise ValueError(f"{path}: no row can be read ({problem})")
    if label is None and not columns and (talks := conversations_in(source, first)) is not None:
        return answers_run(talks, path, model, tell)
    texts = text_columns(path, list(known), label, columns)
    refuse_files(path, source, texts)
    named = {"text": texts[0], **({"pair": texts[1]} if len(texts) > 1 else {}), **({"label": label} if label else {})}
    if separator is None and label is not None and lists == {True}:
        separator = ","
    single = label is not None and separator is None
    source = source.replace(columns=named, required=("text", "label") if single else ("text",))
    count, size, values, skipped = 0, 0, LabelColumn(), Counter[str]()
    for example in usable(source, (), dict, skipped):
        count, size = count + 1, size + len(str(example["text"]))
        if label is not None:
            found = example["label"]
            for name in [found] if separator is None else split_labels(found, separator):
                values.add(name)
    if not count:
        raise ValueError(f"{path}: no row can be used; {skipped_reasons(skipped)}")
    if not values.names & {*labels}:
        labels = labels_of(path, label, values, skipped) if label is not None else ()
    tell(f"{path}: {count:,} rows; {describe_columns(source, named, labels)}")
    data = held_out(source, "label" if labels and single else None)
    if label is None:
        return text_run(data, name_of(path), size, model, "")
    labels = tuple(labels)
    objective = Classify(labels=labels, pair=len(texts) > 1)
    if separator is not None:
        objective = MultiLabel(labels=labels, pair=len(texts) > 1, separator=separator)
    return classifier_run(data, name_of(path), objective, count, model)


def text_columns(path: str, known: list[str], label: str | None, columns: Sequence[str]) -> list[str]:
    """Return the text column, or the two columns of a pair."""
    for name in (*columns, *([label] if label else ())):
        if name not in known:
            raise ValueError(f"{path}: no column {name!r}; {nearest(name, known)}")
    others = [name for name in known if name != label]
    usual = [name for name in others if name.lower() in TEXTS]
    chosen = list(columns) or usual[:1] or (others if len(others) == 1 else [])
    if not 1 <= len(chosen) <= 2:
        names = shorten(", ".join(others), 1000)
        raise ValueError(f"{path}: choose the text column with --column (repeat it for a pair): {names}")
    return chosen


def refuse_files(path: str, source: Source, columns: Sequence[str]) -> None:
    """Raise ValueError if the first rows of a column name images or sound files: a run would learn the names."""
    examples = [row.example for row in islice(source.raw(), 20) if row.example is not None]
    for column, (kind, (endings, hint)) in itertools.product(columns, MEDIA.items()):
        names = [str(example[column]) for example in examples if example.get(column)]
        if names and all(name.strip().lower().endswith(endings) for name in names):
            raise ValueError(f"{path}: column {column!r} names {kind}, such as {quote(names[0])}, not texts; {hint}")


def describe_columns(source: Source, named: Mapping[str, str], labels: Sequence[str]) -> str:
    """Describe how a table is read: its columns, delimiter and encoding."""
    parts = [f"{name}: column {column!r}" for name, column in named.items()]
    if "label" in named:
        parts[-1] += f", {len(labels)} labels" if labels else ", a number"
    if isinstance(source, CSV) and not isinstance(source, TSV) and source.delimiter != ",":
        parts.append(f"delimiter {source.delimiter!r} (--delimiter sets another)")
    encoding = source.encoding if isinstance(source, CSV | JSONLines) else "utf-8"
    parts += [f"encoding {encoding} (--encoding sets another)"] if encoding != "utf-8" else []
    return "; ".join(parts)


class LabelColumn:
    """Statistics of a column of labels."""

    def __init__(self) -> None:
        self.names: set[str] = set()  # at most MOST_LABELS + 1 different values
        self.total, self.numbers, self.fractions = 0, 0, False

    def add(self, value: Any) -> None:
        name = str(value).strip()
        self.total += 1
        if is_number(name):
            self.numbers += 1
            self.fractions |= not float(name).is_integer()
        if len(self.names) <= MOST_LABELS:
            self.names.add(name)

    @property
    def many(self) -> bool:
        return len(self.names) > MOST_LABELS


def labels_of(path: str, column: str, values: LabelColumn, skipped: Mapping[str, int]) -> tuple[str, ...]:
    """Return the labels of a column, sorted; none if its numbers are targets of a regression. Then up to one value in
    ten may not be a number, and any number of values may be missing ("n/a"); such rows are skipped later."""
    missing = {name.lower() for name in values.names if not is_number(name)} <= MISSING
    if (values.many or values.fractions) and (missing or values.numbers >= 0.9 * values.total):
        return ()
    labels = sorted(values.names)
    reasons = f" ({skipped_reasons(skipped)})" if skipped else ""
    commas = [name for name in labels if DECIMAL_COMMA.fullmatch(name)]
    if commas and {name.lower() for name in {*labels} - {*commas} if not is_number(name)} <= MISSING:
        raise ValueError(
            f"{path}: column {column!r} has decimal commas, such as {commas[0]!r}; write them with a point,"
            " or use --multi-label ',' if a cell names several labels"
        )
    if values.many:
        raise ValueError(f"{path}: column {column!r} has more than {MOST_LABELS} values, too many for labels{reasons}")
    if len(labels) < 2:
        raise ValueError(
            f"{path}: column {column!r} has a single value, {labels[0]!r}, in all {values.total:,} rows{reasons};"
            " a classifier needs two or more"
        )
    if len(labels) == values.total > 10:
        raise ValueError(
            f"{path}: column {column!r} has a different value in each of its {values.total:,} rows{reasons},"
            " so it cannot be a label"
        )
    return tuple(sorted(labels, key=float) if all(map(is_number, labels)) else labels)


def is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


# -- the runs ---------------------------------------------------------------------------------------------------------


def text_run(data: Data, name: str, size: int, model: str | None, sample: str) -> Run:
    """Return a run that trains a language model on `size` bytes of text."""
    small = size < 2**20
    watch = Evaluate(every=50 if small else 100, patience=3)  # small texts are memorised soon
    length, tokens = 128, 512 if small else 4096
    width, depth = (128, 4) if small else (256, 6)
    run = quickstart.language_run(
        data.train, 10, vocabulary=tokens, width=width, depth=depth, heads=4, length=length, batch=16, lr=6e-3
    ).replace(name=name, data=data, steps=400 if small else 2000, evaluate=watch.replace(sample=sample or None))
    if model is None:
        return run
    given = model_of(model)
    description = description_of(given)
    if description.pair:
        raise ValueError(f"--model {model} is an encoder-decoder; --text needs a model that reads a single text")
    any_order = any(isinstance(part, TwoStreams) for _, part in walk(description))
    objective: Objective = NextToken() if description.writes else Permuted() if any_order else Masked()
    length = min(position_limit(description) or 256, 256)
    given, new_vocabulary = with_vocabulary(
        model, given, TrainedBPE(size=tokens) if description.writes else vocabulary(tokens)
    )
    changed: dict[str, Any] = {"model": given, "objective": objective, "batch": Batch(examples=8, length=length)}
    changed |= {"optimizer": AdamW(lr=5e-5 if new_vocabulary is None else 6e-4), "schedule": Linear(warmup=20)}
    changed |= {"vocabulary": new_vocabulary}
    return run.replace(**changed, evaluate=watch.replace(sample=sample or None if description.writes else None))


def classifier_run(data: Data, name: str, objective: Classify, rows: int, model: str | None) -> Run:
    size, length, labels = 2000, 256, objective.labels
    run = Run(
        name=name,
        model=tiny_bert(f"Bert{CLASSIFIER}", size, length, labels or ("value",)),
        vocabulary=vocabulary(size),
        data=data,
        objective=objective.replace(length=length),
        optimizer=AdamW(lr=5e-4, weight_decay=0.01),
        schedule=Linear(),
        batch=Batch(examples=32),
        steps=min(max(5 * rows // 32, 60), 5000),  # five epochs, between 60 and 5000 steps
        evaluate=Evaluate(metrics=objective.metrics.usual[:1]),
    )
    run = divide_steps(run)
    if model is None:
        return run
    given, new_vocabulary = with_vocabulary(model, with_labels(model, labels or ("value",)), vocabulary(size))
    longest = position_limit(description_of(given))
    limit = longest if new_vocabulary is None else min(longest or length, length)
    lr = 5e-5 if new_vocabulary is None else 5e-4
    return run.replace(
        model=given,
        vocabulary=new_vocabulary,
        optimizer=AdamW(lr=lr, weight_decay=0.01),
        objective=objective.replace(length=limit),
    )
