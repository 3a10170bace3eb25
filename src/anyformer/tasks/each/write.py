"""Continue a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Unpack, cast

import numpy as np

from anyformer.generation import check_can_generate, generate
from anyformer.generation.defaults import settings_for
from anyformer.generation.writing import TextStream, check_ids, length_for, new_tokens
from anyformer.objectives.batches import Record
from anyformer.tasks.options import Beams
from anyformer.tasks.results import task
from anyformer.tasks.task import Inputs, RunOptions, Source, TaskRun, start_run
from anyformer.tasks.writing import check_settings, decode_text


class WriteOptions(RunOptions, total=False):
    """The options of sampling, and the options of every task."""

    do_sample: Annotated[bool, "sample tokens instead of taking the most likely"]
    temperature: Annotated[float | None, "sampling temperature: lower is more predictable, higher more varied"]
    top_k: Annotated[int | None, "sample from the N most likely tokens"]
    top_p: Annotated[
        float | None, "sample from the smallest set of tokens whose probabilities sum to X (nucleus sampling)"
    ]
    min_p: Annotated[float | None, "sample from tokens with at least X times the probability of the most likely one"]
    seed: Annotated[int | None, "seed of sampling: the same seed gives the same text"]


SAMPLING = WriteOptions.__annotations__.keys() - RunOptions.__annotations__.keys()


@task
def write(
    model: Source,
    inputs: Inputs,
    stream: bool = False,
    *,
    max_new_tokens: Annotated[int | None, "longest text, in tokens (default: the folder's, else 128)"] = None,
    num_beams: Beams = None,
    stop: Annotated[Sequence[str] | None, "stop before this text; can be repeated"] = None,
    chat: Annotated[bool, "the text is a user's message: apply the chat template"] = False,
    **others: Unpack[WriteOptions],
) -> str:
    """Return the text that the model writes after the input, or an encoder-decoder's output for the input. With
    `stream`, return an iterator over the pieces of one text. Options default to the folder's. With `chat`, the input is
    a user's message, to which the folder's chat template is applied.

    >>> write("a/model/folder", ["Once upon a time", "It rains"], max_new_tokens=20)  # doctest: +SKIP
    [' there was a fox ...', ' all day ...']
    >>> for piece in write("a/model/folder", "Once upon a time", stream=True):  # doctest: +SKIP
    ...     print(piece, end="", flush=True)
    """
    run_options = {name: value for name, value in others.items() if name not in SAMPLING}
    request = start_run("write", model, inputs, cast(RunOptions, run_options))
    check_can_generate(request.model, by_position=True)
    sampling = {name: value for name, value in others.items() if name in SAMPLING and value is not False}
    given = {"max_new_tokens": max_new_tokens, "num_beams": num_beams, **sampling}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    stops = None if stop is None else [stop] if isinstance(stop, str) else list(stop)
    if not stream:
        check_settings(request, options)

        def finish(run: TaskRun, records: list[Record]) -> list[str]:
            return generate_texts(run, records, options, stops)

        return request.answer(lambda row: record_of(request, row["text"], chat), finish)
    if not request.one:
        raise ValueError("stream=True writes one text; give it without a list")
    record = record_of(request, request.rows[0]["text"], chat)
    streamed: Any = TextStream(request.model, request.tokenizer, record["input_ids"].tolist(), options, stops)
    return iter(streamed)


def record_of(request: TaskRun, text: str, chat: bool) -> Record:
    tokenizer = request.tokenizer
    ids = tokenizer.chat([{"role": "user", "content": text}]) if chat else tokenizer.encode(text)
    check_ids(request.model, ids)
    request.fits(len(ids))
    return {"input_ids": np.asarray(ids)}


def generate_texts(
    request: TaskRun, records: list[Record], options: dict[str, Any], stops: list[str] | None
) -> list[str]:
    """Generate the texts of all records in batches; the batch does not change a text."""
    texts = [""] * len(records)
    ends = settings_for(request.model, options).eos
    rooms = [tuple(length_for(request.model, len(record["input_ids"]), options).items()) for record in records]
    for room in dict.fromkeys(rooms):  # lengths differ near the model's limit
        own = [i for i, other in enumerate(rooms) if other == room]
        for which, batch in request.batches([records[i] for i in own]):
            ids = batch["input_ids"]
            sequences = generate(
                request.model,
                ids,
                attention_mask=batch.get("attention_mask"),
                tokenizer=request.tokenizer,
                stop_strings=stops,
                **{**options, **dict(room)},
            )
            for i, tokens in zip(which, new_tokens(request.model, sequences, ids.shape[1], ends), strict=True):
                texts[own[i]] = decode_text(request, tokens, stops)
    return texts
