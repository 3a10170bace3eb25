"""The language that is spoken in a recording."""

from __future__ import annotations

from typing import Annotated, Any, Unpack

import torch

from anyformer.generation.speech_prompt import code
from anyformer.inputs.audio_features import AudioProcessor
from anyformer.inputs.languages import SPOKEN
from anyformer.tasks.each.transcribe import check_listener
from anyformer.tasks.long_audio import Listener
from anyformer.tasks.task import How, Inputs, Row, Source, TaskRun, ask, file_of


def detect_language(
    model: Source,
    inputs: Inputs,
    *,
    top_k: Annotated[int, "number of languages, most likely first"] = 1,
    **how: Unpack[How],
) -> Any:
    """{language, name, score}, the likeliest; the first `top_k` of them where that is more than 1. The first window of
    a recording decides.

    >>> detect_language("openai/whisper-tiny", "jfk.flac")  # doctest: +SKIP
    {'language': 'en', 'name': 'english', 'score': 0.98}
    """
    asked = ask("detect-language", model, inputs, how)
    if not isinstance(top_k, int) or top_k < 1:
        raise ValueError(f"top_k is {top_k}; it must be at least 1")
    check_listener(asked)
    listener = Listener(asked.model, asked.tokenizer, AudioProcessor.load(asked.model.folder))

    def first(row: Row) -> torch.Tensor:
        return listener.open(row["audio"]).windows.take(0)[0]

    def finish(run: TaskRun, windows: list[torch.Tensor]) -> list[Any]:
        found: list[Any] = []
        _, chances = listener.start(torch.stack(windows))
        for row, tokens in zip(run.rows, listener.languages(chances), strict=True):
            best = [
                {**file_of(row), "language": code(token), "name": SPOKEN.get(code(token), code(token)), "score": score}
                for token, score in tokens[:top_k]
            ]
            found.append(best[0] if top_k == 1 else best)
        run.reader.progress(len(found), len(windows))
        return found

    return asked.answer(first, finish, at_once=asked.reader.batch)
