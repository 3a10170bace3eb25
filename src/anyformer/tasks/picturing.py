"""What tasks share that write about pictures or sounds: decoders with a tower that sees, or hears (LLaVA, Reka)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from anyformer.generation import check_writer, generate
from anyformer.generation.config import settings_for
from anyformer.inputs.audio import AudioProcessor
from anyformer.messages import quote
from anyformer.model import Tower, TowerDecoderModule
from anyformer.objectives.objective import padded_texts
from anyformer.tasks.each.write import said
from anyformer.tasks.task import TaskRun, blaming

ASKED = "USER: {image}\n{question} ASSISTANT:"  # as LLaVA 1.5 learnt it; {image} is where the picture stands
KINDS = {"image": ("pictures", "LLaVA"), "audio": ("sounds", "Reka")}  # tower -> what it is for, and one that has it


def tower_of(asked: TaskRun, name: str) -> Tower:
    """The tower that sees or hears; ValueError where there is none, or none that writes."""
    tower = model.spec.fed_by.get(name) if isinstance(model := asked.model, TowerDecoderModule) else None
    if tower is None:
        what, such = KINDS[name]
        raise ValueError(f"{asked.task} writes about {what}: it needs a decoder with a tower for them, such as {such}")
    check_writer(model)
    return tower


def check_template(template: str, *names: str) -> str:
    for name in names:
        if template.count(name) != 1:
            raise ValueError(f"template {quote(template)} has {template.count(name)} places {name}; it needs one")
    return template


def question_of(given: Any, what: str) -> str:
    if not isinstance(given, str) or not given.strip():
        raise ValueError(f"a {what} without a question: give one with it, or question for all (--question TEXT)")
    return given


def heard(asked: TaskRun) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """(which, batch on the model's device) of sounds, which are read as they are needed."""
    hear = AudioProcessor.load(asked.model.folder)
    for start in range(0, len(asked.rows), asked.reader.batch):
        which, features = [*range(len(asked.rows))][start : start + asked.reader.batch], []
        for i in which:
            with blaming(None if asked.one else i + 1):
                features.append(hear(asked.rows[i]["audio"])["input_features"])
        asked.reader.progress(start, len(asked.rows))
        yield which, {"input_features": torch.cat(features).to(asked.model.device, asked.model.dtype)}
    asked.reader.progress(len(asked.rows), len(asked.rows))


def written(asked: TaskRun, texts: Sequence[str], options: dict[str, Any], name: str = "image") -> list[Any]:
    """What is written after each text, with the picture or the sound of its row in it; of a folder's with "file"."""
    tower, found = tower_of(asked, name), [""] * len(asked.rows)
    count = tower.model.embedding.vectors(0) - tower.skip
    options = {name: value for name, value in options.items() if value is not None}
    ends = set(settings_for(asked.model, options).eos)
    for which, batch in asked.seen() if name == "image" else heard(asked):
        rows = [ids_of(asked, texts[i], f"{{{name}}}", tower.token, count) for i in which]
        for row in rows:
            asked.fits(len(row))
        read = padded_texts([{"input_ids": np.asarray(row)} for row in rows], asked.pad)
        given: dict[str, Any] = {**{name: value.to(asked.model.device) for name, value in read.items()}, **batch}
        sequences = generate(asked.model, **given, tokenizer=asked.tokenizer, **options)
        for i, row in zip(which, sequences[:, read["input_ids"].shape[1] :], strict=True):
            found[i] = "".join(said(asked, row.tolist(), ends, None)).strip()
    files = [row.get("file") for row in asked.rows]
    return [text if file is None else {"file": file, "text": text} for file, text in zip(files, found, strict=True)]


def ids_of(asked: TaskRun, text: str, place: str, token: int, count: int) -> list[int]:
    """The tokens of a text with so many of one in the place of the picture or the sound."""
    mark = asked.tokenizer.token(token)
    if mark is None:
        raise ValueError(f"the tokenizer has no token {token}, in whose place the model reads {place.strip('{}')}")
    return asked.tokenizer.encode(text.replace(place, mark * count))
