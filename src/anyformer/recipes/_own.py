"""Runs on data of your own: what `anyformer train --text`, `--csv` and `--jsonl` stand for, as whole descriptions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from anyformer.data import CSV, TSV, Data, Held, JSONLines, Source, TextFiles, TrainedBPE
from anyformer.generation.prompt import position_limit
from anyformer.objectives.causal import NextToken
from anyformer.objectives.classify import Classify
from anyformer.objectives.dialogue import Dialogue
from anyformer.objectives.masked import Masked
from anyformer.objectives.objective import Objective
from anyformer.objectives.permuted import Permuted
from anyformer.part import nearest, walk
from anyformer.recipes import dialogue, quickstart
from anyformer.recipes._encoder import small_bert, vocabulary
from anyformer.recipes._models import CLASSIFIER, labelled, with_vocabulary
from anyformer.train.optim import AdamW, Linear
from anyformer.train.run import Batch, Evaluate, Keep, Pretrained, Run, description_of, model_of

MOST_LABELS = 200
TEXTS = ("text", "sentence", "content", "review", "document", "body")  # what a column of texts is usually called


def from_text(path: str, model: str | None = None) -> Run:
    """A model that learns to write what stands in text files: the last tenth of each shows whether it did."""
    source = TextFiles(path=path)
    files = source.files()
    data = Data(train=source.replace(stop=0.9), valid=source.replace(start=0.9))
    start = files[0].open(encoding="utf-8", errors="replace").read(400) if files[0].suffix != ".gz" else ""
    return writing(data, name_of(path), sum(file.stat().st_size for file in files), model, " ".join(start.split()[:4]))


def from_table(path: str, label: str | None, columns: Sequence[str] = (), model: str | None = None) -> Run:
    """A classifier for the rows of a CSV, TSV or JSON lines, or without a label a model that writes such texts. One row
    in ten is held out."""
    kind = {".tsv": TSV, ".csv": CSV}.get(Path(path.removesuffix(".gz")).suffix.lower(), JSONLines)
    source: Source = kind(path=path)
    first = next((row.example for row in source.raw() if row.example is not None), None)
    if first is None:
        raise ValueError(f"{path}: no row that could be read")
    if label is None and not columns and "messages" in first:
        return conversing(source, path, model)
    texts = text_columns(path, list(first), label, columns)
    count, size, values = 0, 0, set[str]()
    for example in (row.example for row in source.raw() if row.example is not None):
        count, size = count + 1, size + len(str(example.get(texts[0])))
        if label is not None and len(values) <= MOST_LABELS and example.get(label) not in (None, ""):
            values.add(str(example[label]))
    named = {"text": texts[0], **({"pair": texts[1]} if len(texts) > 1 else {}), **({"label": label} if label else {})}
    source = source.replace(columns=named)
    data = Data(train=Held(source=source, one_in=10), valid=Held(source=source, one_in=10, out=True))
    if label is None:
        return writing(data, name_of(path), size, model, "")
    return classifying(data, name_of(path), labels_of(path, label, values), len(texts) > 1, count, model)


def name_of(path: str) -> str:
    return Path(path).expanduser().resolve().name.partition(".")[0] or "own"


def text_columns(path: str, known: list[str], label: str | None, columns: Sequence[str]) -> list[str]:
    """The column of the texts, and of what each is paired with."""
    for name in (*columns, *([label] if label else ())):
        if name not in known:
            raise ValueError(f"{path}: no column {name!r}; {nearest(name, known)}")
    others = [name for name in known if name != label]
    usual = [name for name in others if name.lower() in TEXTS]
    found = list(columns) or usual[:1] or (others if len(others) == 1 else [])
    if not 1 <= len(found) <= 2:
        raise ValueError(f"{path}: --column says which column is the text (given again, its pair): {', '.join(others)}")
    return found


def labels_of(path: str, column: str, values: Iterable[str]) -> tuple[str, ...]:
    """The labels of a column in the order of their names; none where it has numbers that are no classes."""
    found = sorted(values)
    if len(found) > MOST_LABELS or any("." in value and number(value) for value in found):
        if all(map(number, found)):
            return ()
        raise ValueError(f"{path}: column {column!r} has more than {MOST_LABELS} values, too many for labels")
    if len(found) < 2:
        raise ValueError(f"{path}: column {column!r} has one value alone, {found[0] if found else 'nothing'!r}")
    return tuple(sorted(found, key=float) if all(map(number, found)) else found)


def number(text: str) -> bool:
    try:
        return float(text) == float(text)
    except ValueError:
        return False


# -- the runs ---------------------------------------------------------------------------------------------------------


def writing(data: Data, name: str, size: int, model: str | None, sample: str) -> Run:
    """For so many bytes of text."""
    small = size < 2**20
    length, tokens = 128, 512 if small else 4096
    width, depth = (128, 4) if small else (256, 6)
    run = quickstart.described(
        data.train, 10, vocabulary=tokens, width=width, depth=depth, heads=4, length=length, batch=16, lr=6e-3
    ).replace(name=name, data=data, steps=400 if small else 2000, evaluate=Evaluate(every=100, sample=sample or None))
    if model is None:
        return run
    given = model_of(model)
    limit = description_of(given)
    if limit.pair:
        raise ValueError(f"--model {model} reads one text and writes another; --text is for models of one text")
    any_order = any("an order" in getattr(part, "needs", ()) for _, part in walk(limit))
    objective: Objective = NextToken() if limit.writes else Permuted() if any_order else Masked()
    length = min(position_limit(limit) or 256, 256)
    given, made = with_vocabulary(model, given, TrainedBPE(size=tokens) if limit.writes else vocabulary(tokens))
    changed: dict[str, Any] = {"model": given, "objective": objective, "batch": Batch(examples=8, length=length)}
    changed |= {"optimizer": AdamW(lr=5e-5 if made is None else 6e-4), "schedule": Linear(warmup=20)}
    changed |= {"vocabulary": made}
    return run.replace(**changed, evaluate=Evaluate(every=100, sample=sample or None if limit.writes else None))


def conversing(source: Source, path: str, model: str | None) -> Run:
    """For conversations in a column of messages."""
    given = None if model is None else model_of(model)
    if not isinstance(given, Pretrained):
        raise ValueError(f"{path} holds conversations: --model names the checkpoint, with a chat template, to train")
    length = min(position_limit(description_of(given)) or dialogue.LENGTH, dialogue.LENGTH)
    return dialogue.run().replace(
        name=name_of(path), model=given, objective=Dialogue(length=length),
        data=Data(train=Held(source=source, one_in=10), valid=Held(source=source, one_in=10, out=True)),
    )  # fmt: skip


def classifying(data: Data, name: str, labels: tuple[str, ...], pair: bool, rows: int, model: str | None) -> Run:
    size, length = 2000, 256
    scratch = small_bert(
        f"Bert{CLASSIFIER}", labels or ("value",), vocab_size=size, hidden_size=128, num_hidden_layers=2,
        intermediate_size=512, max_position_embeddings=length,
    )  # fmt: skip
    steps = min(max(5 * rows // 32, 60), 5000)  # five times through the rows, within reason
    run = Run(
        name=name, model=scratch, vocabulary=vocabulary(size), data=data,
        objective=Classify(labels=labels, pair=pair, length=length),
        optimizer=AdamW(lr=5e-4, weight_decay=0.01), schedule=Linear(warmup=steps // 10),
        batch=Batch(examples=32), steps=steps, keep=Keep(every=max(steps // 4, 1)),
        evaluate=Evaluate(every=max(steps // 4, 1), metrics=("accuracy",) if labels else ("pearson",)),
    )  # fmt: skip
    if model is None:
        return run
    given, made = with_vocabulary(model, labelled(model, labels or ("value",)), vocabulary(size))
    longest = position_limit(description_of(given))
    objective = Classify(labels=labels, pair=pair, length=longest if made is None else min(longest or length, length))
    lr = 5e-5 if made is None else 5e-4
    return run.replace(model=given, vocabulary=made, optimizer=AdamW(lr=lr, weight_decay=0.01), objective=objective)
