"""`anyformer train --similar`: sentence embeddings from a table of pairs of texts that belong together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from anyformer.data import open_table
from anyformer.models import position_limit
from anyformer.objectives.match_text import MatchText
from anyformer.objectives.sentence_pooling import pool_of
from anyformer.recipes.shared.encoder import tiny_bert, vocabulary
from anyformer.recipes.shared.held_out import Notify, divide_steps, held_out, name_of, skipped_reasons, usable
from anyformer.recipes.shared.models import with_vocabulary
from anyformer.recipes.shared.own_text import describe_columns, refuse_files, text_columns
from anyformer.train.optim import AdamW, Linear
from anyformer.train.run import Batch, Evaluate, Pretrained, Run, description_of, model_of
from anyformer.weights import hub

SIZE, LENGTH, PAIRS = 4000, 128, 64  # of the vocabulary, of a text in tokens, and of a batch


def from_similar(
    path: str,
    columns: Sequence[str],
    model: str | None = None,
    *,
    delimiter: str | None = None,
    encoding: str | None = None,
    jsonl: bool = False,
    tell: Notify = lambda line: None,
) -> Run:
    """Return a run that trains vectors of texts, similar for the two texts of a row. One text in ten of the first
    column is held out with its rows. `tell` receives a line on how the file is read."""
    if len(columns) != 2:
        raise ValueError("--similar needs --column twice: the columns of two texts that belong together")
    source = open_table(path, columns, delimiter=delimiter, encoding=encoding, jsonl=jsonl)
    first = next((row.example for row in source.raw() if row.example is not None), None)
    if first is None:
        raise ValueError(f"{path}: no row can be read")
    text_columns(path, list(first), None, columns)
    refuse_files(path, source, columns)
    named = dict(zip(("text", "pair"), columns))
    source = source.replace(columns=named, required=("text", "pair"))
    skipped = Counter[str]()
    count = sum(1 for _ in usable(source, (), dict, skipped))
    if count < 2:
        raise ValueError(f"{path}: {count} pairs can be used, which is too few; {skipped_reasons(skipped)}")
    tell(f"{path}: {count:,} pairs; {describe_columns(source, named, ())}")
    run = Run(
        name=name_of(path),
        model=tiny_bert("BertModel", SIZE, LENGTH),
        vocabulary=vocabulary(SIZE),
        data=held_out(source, group="text"),
        objective=MatchText(length=LENGTH),
        optimizer=AdamW(lr=1e-3, weight_decay=0.01),
        schedule=Linear(),
        batch=Batch(examples=PAIRS),
        steps=min(max(10 * count // PAIRS, 100), 5000),  # ten epochs, between 100 and 5000 steps
        evaluate=Evaluate(metrics=("recall_at_10",), best="recall_at_10"),
    )
    run = divide_steps(run)
    if model is None:
        return run
    given, new_vocabulary = with_vocabulary(model, model_of(model), vocabulary(SIZE))
    spec = description_of(given)
    if spec.pair:
        raise ValueError(f"--model {model} is an encoder-decoder; --similar needs an encoder or a decoder")
    folder = Path(hub.resolve(given.path)) if isinstance(given, Pretrained) else None
    limit = min(position_limit(spec) or LENGTH, LENGTH)
    return run.replace(
        model=given,
        vocabulary=new_vocabulary,
        objective=MatchText(length=limit, pool=pool_of(spec, folder)),
        optimizer=AdamW(lr=5e-5 if new_vocabulary is None else 1e-3, weight_decay=0.01),
    )
