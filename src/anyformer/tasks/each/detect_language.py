"""Detect the language of a recording."""

from __future__ import annotations

from typing import Annotated, Any, Unpack

import torch

from anyformer.generation.speech_prompt import code
from anyformer.inputs.audio_features import AudioProcessor
from anyformer.inputs.languages import SPOKEN
from anyformer.tasks.each.transcribe import check_transcriber
from anyformer.tasks.long_audio import Transcriber
from anyformer.tasks.results import Language, task
from anyformer.tasks.task import Inputs, Row, RunOptions, Source, TaskRun, file_of, start_run


@task
def detect_language(
    model: Source,
    inputs: Inputs,
    *,
    top_k: Annotated[int, "number of languages, most likely first"] = 1,
    **run_options: Unpack[RunOptions],
) -> Language:
    """Return {"language", "name", "score"} of the most likely language; a list if `top_k` is above 1. Only the first
    window of a recording is read.

    >>> detect_language("openai/whisper-tiny", "jfk.flac")  # doctest: +SKIP
    {'language': 'en', 'name': 'english', 'score': 0.98}
    """
    request = start_run("detect-language", model, inputs, run_options)
    if not isinstance(top_k, int) or top_k < 1:
        raise ValueError(f"top_k is {top_k}; it must be at least 1")
    check_transcriber(request)
    transcriber = Transcriber(request.model, request.tokenizer, AudioProcessor.load(request.model.folder))

    def first_window(row: Row) -> torch.Tensor:
        return transcriber.open(row["audio"]).windows.take(0)[0]

    def finish(run: TaskRun, windows: list[torch.Tensor]) -> list[Any]:
        results: list[Any] = []
        _, chances = transcriber.start(torch.stack(windows))
        for row, tokens in zip(run.rows, transcriber.languages(chances), strict=True):
            best = [
                {**file_of(row), "language": code(token), "name": SPOKEN.get(code(token), code(token)), "score": score}
                for token, score in tokens[:top_k]
            ]
            results.append(best[0] if top_k == 1 else best)
        run.reader.progress(len(results), len(windows))
        return results

    return request.answer(first_window, finish, at_once=request.reader.batch)
