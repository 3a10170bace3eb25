"""`anyformer train --target`: runs on your own pairs of texts, such as translations or summaries."""

from __future__ import annotations

from collections.abc import Sequence

from anyformer import families
from anyformer.data import Source, TrainedBPE, open_table
from anyformer.models import position_limit
from anyformer.objectives.translate import Translate
from anyformer.recipes.multi30k_en_de import CONFIG
from anyformer.recipes.shared.held_out import Notify, divide_steps, held_out, name_of
from anyformer.recipes.shared.models import with_vocabulary
from anyformer.recipes.shared.own_text import describe_columns, refuse_files, text_columns
from anyformer.train.optim import AdamW, Linear
from anyformer.train.run import Batch, Run, description_of, model_of

SIZE, LENGTH = 4000, 256  # of the vocabulary and of a text, in tokens


def from_pairs(
    path: str,
    target: str,
    columns: Sequence[str] = (),
    model: str | None = None,
    *,
    delimiter: str | None = None,
    encoding: str | None = None,
    jsonl: bool = False,
    tell: Notify = lambda line: None,
) -> Run:
    """Return a run that trains a model to write column `target` from another column. One row in ten is held out."""
    source: Source = open_table(path, (*columns, target), delimiter=delimiter, encoding=encoding, jsonl=jsonl)
    first = next((row.example for row in source.raw() if row.example is not None), None)
    if first is None:
        raise ValueError(f"{path}: no row can be read")
    texts = text_columns(path, list(first), target, columns)
    if len(texts) > 1:
        raise ValueError("--target needs exactly one --column, the source text")
    refuse_files(path, source, (*texts, target))
    renamed = {"source": texts[0], "target": target}
    source = source.replace(columns=renamed, required=("source", "target"))
    count = sum(row.example is not None for row in source.rows(()))
    if not count:
        raise ValueError(f"{path}: no row has a text in {texts[0]!r} and in {target!r}")
    tell(f"{path}: {count:,} rows; {describe_columns(source, renamed, ())}")
    vocabulary = TrainedBPE(size=SIZE, special={"eos_token": "</s>", "pad_token": "<pad>"}, end="eos_token")
    run = Run(
        name=name_of(path),
        model=families.find("m2m_100").read({**CONFIG, "vocab_size": SIZE, "max_position_embeddings": LENGTH}),
        vocabulary=vocabulary,
        data=held_out(source),
        objective=Translate(smoothing=0.1, length=LENGTH, target_length=LENGTH),
        optimizer=AdamW(lr=1e-3, betas=(0.9, 0.98), weight_decay=0.0),
        schedule=Linear(),
        batch=Batch(examples=32),
        steps=min(max(20 * count // 32, 200), 10_000),  # twenty epochs, between 200 and 10,000 steps
    )
    run = divide_steps(run, parts=8)
    if model is None:
        return run
    given = model_of(model)
    if not description_of(given).pair:
        raise ValueError(f"--model {model} is not an encoder-decoder, which --target needs")
    given, new_vocabulary = with_vocabulary(model, given, vocabulary)
    limit = min(position_limit(description_of(given)) or LENGTH, LENGTH)
    return run.replace(
        model=given,
        vocabulary=new_vocabulary,
        objective=Translate(smoothing=0.1, length=limit, target_length=limit),
        optimizer=AdamW(lr=5e-5 if new_vocabulary is None else 5e-4),
    )
