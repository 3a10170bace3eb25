"""Helpers for tasks that write about pictures or sounds, with decoders that have an image or audio tower (LLaVA)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from anyformer.generation import check_can_generate, generate
from anyformer.generation.defaults import settings_for
from anyformer.generation.writing import new_tokens
from anyformer.inputs.audio_features import AudioProcessor
from anyformer.models import Tower, TowerDecoderModule
from anyformer.objectives.batches import pad_texts
from anyformer.specs.messages import quote
from anyformer.tasks.task import Row, TaskRun, file_of
from anyformer.tasks.writing import decode_text

LLAVA_PROMPT = "USER: {image}\n{question} ASSISTANT:"  # LLaVA 1.5; {image} is replaced by the picture


class Kind(NamedTuple):
    """The words and names for the input of a tower."""

    one: str
    several: str
    given: str  # name of the model's input
    example: str  # a family with this tower


KINDS = {
    "image": Kind("picture", "pictures", "pixel_values", "LLaVA"),
    "audio": Kind("recording", "sounds", "input_features", "Reka"),
}


def tower_of(request: TaskRun, name: str) -> Tower:
    """Return the image or audio tower; ValueError if there is none or the model does not generate text."""
    tower = model.spec.input_towers.get(name) if isinstance(model := request.model, TowerDecoderModule) else None
    if tower is None:
        kind = KINDS[name]
        needs = f"it needs a decoder with a tower for them, such as {kind.example}"
        raise ValueError(f"{request.task} writes about {kind.several}: {needs}")
    check_can_generate(model)
    return tower


def check_template(template: str, *names: str) -> str:
    for name in names:
        if template.count(name) != 1:
            raise ValueError(f"template {quote(template)} has {name} {template.count(name)} times, not once")
    return template


def question_of(given: Any, what: str) -> str:
    if not isinstance(given, str) or not given.strip():
        raise ValueError(f"the {what} has no question: give one in the input, or for all inputs (--question TEXT)")
    return given


def write_about(
    request: TaskRun, name: str, template: str, options: dict[str, Any], question: str | None = None
) -> Any:
    """Generate a text for each row, after a prompt: the template with the row's picture or sound, and its question if
    the template has {question}. For files of a folder the results are {"file", "text"}."""
    tower = tower_of(request, name)
    count = tower.model.embedding.vectors(0) - tower.skip
    options = {name: value for name, value in options.items() if value is not None}
    ends = settings_for(request.model, options).eos
    audio = AudioProcessor.load(request.model.folder) if name == "audio" else None

    def prepare(row: Row) -> tuple[Tensor, np.ndarray]:
        text = template
        if "{question}" in template:
            what = KINDS[name].one
            text = template.replace("{question}", question_of(row.get("question", question), what))
        media = request.pixels(row) if audio is None else audio(row["audio"])["input_features"][0]
        ids = ids_of(request, text, f"{{{name}}}", tower.token, count)
        request.fits(len(ids))
        return media, np.asarray(ids)

    def finish(run: TaskRun, prepared: list[tuple[Tensor, np.ndarray]]) -> list[Any]:
        texts = [""] * len(prepared)
        for which, batch in run.media_batches([media for media, _ in prepared], KINDS[name].given):
            read = pad_texts([{"input_ids": prepared[i][1]} for i in which], run.pad)
            given: dict[str, Any] = {**{name: value.to(run.model.device) for name, value in read.items()}, **batch}
            sequences = generate(run.model, **given, tokenizer=run.tokenizer, **options)
            rows = new_tokens(run.model, sequences, read["input_ids"].shape[1], ends)
            for i, tokens in zip(which, rows, strict=True):
                texts[i] = decode_text(run, tokens).strip()
        files = map(file_of, run.rows)
        return [{**file, "text": text} if file else text for file, text in zip(files, texts, strict=True)]

    return request.answer(prepare, finish, at_once=request.reader.batch)


def ids_of(request: TaskRun, text: str, placeholder: str, token: int, count: int) -> list[int]:
    """Return the token ids of a text after `placeholder` is replaced by `count` copies of `token`."""
    mark = request.tokenizer.token(token)
    if mark is None:
        raise ValueError(f"the tokenizer has no token {token}, the placeholder of the {placeholder.strip('{}')}")
    return request.tokenizer.encode(text.replace(placeholder, mark * count))
