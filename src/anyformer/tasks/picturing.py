"""What tasks share that write about pictures: decoders with a tower that sees (LLaVA)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anyformer.generation import check_writer, generate
from anyformer.generation.config import settings_for
from anyformer.model import Tower, TowerDecoderModule
from anyformer.objectives.objective import padded_texts
from anyformer.tasks.each.write import said
from anyformer.tasks.task import TaskRun

PLACE = "{image}"  # in a template: where the picture stands
ASKED = f"USER: {PLACE}\n{{question}} ASSISTANT:"  # as LLaVA 1.5 learnt it


def seeing(asked: TaskRun) -> Tower:
    """The tower that sees; ValueError where there is none, or none that writes."""
    model = asked.model
    if not isinstance(model, TowerDecoderModule) or model.spec.image is None:
        raise ValueError(f"{asked.task} writes about pictures: it needs a decoder with a tower for them, such as LLaVA")
    check_writer(model)
    return model.spec.image


def check_template(template: str, *names: str) -> str:
    for name in (PLACE, *names):
        if template.count(name) != 1:
            raise ValueError(f"template {template!r} has {template.count(name)} places {name}; it needs one")
    return template


def written(asked: TaskRun, texts: Sequence[str], options: dict[str, Any]) -> list[Any]:
    """What is written after each text, with the picture of its row in it; of a folder's pictures with "file"."""
    tower, found = seeing(asked), [""] * len(asked.rows)
    count = tower.model.embedding.vectors(0) - tower.skip
    options = {name: value for name, value in options.items() if value is not None}
    ends = set(settings_for(asked.model, options).eos)
    for which, batch in asked.seen():
        rows = [ids_of(asked, texts[i], tower.token, count) for i in which]
        for row in rows:
            asked.fits(len(row))
        read = padded_texts([{"input_ids": np.asarray(row)} for row in rows], asked.pad)
        given: dict[str, Any] = {**{name: value.to(asked.model.device) for name, value in read.items()}, **batch}
        sequences = generate(asked.model, **given, tokenizer=asked.tokenizer, **options)
        for i, row in zip(which, sequences[:, read["input_ids"].shape[1] :], strict=True):
            found[i] = "".join(said(asked, row.tolist(), ends, None)).strip()
    files = [row.get("file") for row in asked.rows]
    return [text if file is None else {"file": file, "text": text} for file, text in zip(files, found, strict=True)]


def ids_of(asked: TaskRun, text: str, token: int, count: int) -> list[int]:
    """The tokens of a text with so many of one in the place of the picture."""
    mark = asked.tokenizer.token(token)
    if mark is None:
        raise ValueError(f"the tokenizer has no token {token}, in whose place the model sees pictures")
    return asked.tokenizer.encode(text.replace(PLACE, mark * count))
