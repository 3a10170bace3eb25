"""Transcribe recordings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Unpack

from anyformer.inputs.audio_features import AudioProcessor
from anyformer.parts.head.ctc import CTCHead
from anyformer.tasks.long_audio import Segment, Transcriber, Transcript, ctc_tokens, ctc_words, sentences
from anyformer.tasks.options import Beams
from anyformer.tasks.results import task
from anyformer.tasks.task import Inputs, RunOptions, Source, TaskRun, file_of, start_run

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
OPEN = 8  # batches of recordings that are open at once: when one ends, the next is started


@task
def transcribe(
    model: Source,
    inputs: Inputs,
    *,
    language: Annotated[str | None, "language of the recording, as a code or a name (default: detect it)"] = None,
    translate: Annotated[bool, "translate into English, if the model can"] = False,
    timestamps: Annotated[bool, "also give the times of each sentence"] = False,
    num_beams: Beams = None,
    max_new_tokens: Annotated[
        int | None, "longest text per window of half a minute, in tokens (default: the model's limit)"
    ] = None,
    temperatures: Annotated[
        Sequence[float] | None,
        "sampling temperature to try next if a text looks wrong; can be repeated (default: 0, 0.2, ... 1)",
    ] = None,
    **run_options: Unpack[RunOptions],
) -> str:
    """Return the text; for a folder, {"file", "text"} of each recording. With `timestamps`, the text is replaced by a
    list of {"start", "end", "text"}, in seconds: one per sentence, or one per word for a CTC model.

    A recording is a file (WAV, FLAC, OGG, ... at any rate) or {"audio": (samples, rate)}, where samples may also be an
    iterator of chunks, for example from a microphone. Long recordings are transcribed window by window. A multilingual
    model detects the language unless `language` is given, and can `translate` into English. If a text is repetitive or
    unlikely, it is sampled again at the next of the `temperatures`.

    >>> transcribe("openai/whisper-tiny", "jfk.flac")  # doctest: +SKIP
    'And so my fellow Americans, ask not what your country can do for you, ask what you can do for your country.'
    """
    request = start_run("transcribe", model, inputs, run_options)
    unsupported = {"language": language, "translate": translate, "temperatures": temperatures}
    if isinstance(request.model.spec.head, CTCHead):
        refuse(
            {**unsupported, "max_new_tokens": max_new_tokens},
            "transcribes letters (CTC): only num_beams and timestamps apply",
        )
        if timestamps and (num_beams or 1) > 1:
            raise ValueError("timestamps: not available with num_beams, since beams merge paths")
        return transcribe_each(request, ctc_text, beams=num_beams or 1, timestamps=timestamps)
    check_transcriber(request)
    if AudioProcessor.load(request.model.folder).kind != "mel":
        why = "writes only text: only num_beams and max_new_tokens apply"
        refuse({**unsupported, "timestamps": timestamps}, why)
        return transcribe_each(request, generated_text, **drop_none(num_beams=num_beams, max_new_tokens=max_new_tokens))
    transcriber = transcriber_of(request, translate, timestamps, num_beams, max_new_tokens, temperatures)
    transcriber.language_token(language)  # fails before any audio is read

    def finish(run: TaskRun, recordings: list[Transcript]) -> list[Any]:
        transcribe_all(run, transcriber, recordings)
        if timestamps:
            return with_files(run, [segment_rows(each.segments, transcriber.text) for each in recordings])
        tokens = [[token for part in each.segments for token in part.tokens] for each in recordings]
        return with_files(run, [transcriber.text(each).strip() for each in tokens])

    return request.answer(lambda row: transcriber.open(row["audio"], language), finish, OPEN * request.reader.batch)


def with_files(run: TaskRun, texts: list[Any]) -> list[Any]:
    """Return the texts, or {"file", "text"} for recordings of a folder."""
    files = map(file_of, run.rows)
    return [{**file, "text": text} if file else text for file, text in zip(files, texts, strict=True)]


def segment_rows(segments: Sequence[Segment], text: Callable[[list[int]], str]) -> list[dict[str, Any]]:
    parts = [(part.start, part.end, text(part.tokens).strip()) for part in segments]
    return [{"start": round(a, 2), "end": round(b, 2), "text": text} for a, b, text in parts]


def refuse(options: dict[str, Any], why: str) -> None:
    for name, value in options.items():
        if value:
            raise ValueError(f"{name}: this model {why}")


def drop_none(**options: Any) -> dict[str, Any]:
    """Return the options that are not None."""
    return {name: value for name, value in options.items() if value is not None}


def transcribe_each(request: TaskRun, transcribe_one: Callable[..., Any], **options: Any) -> Any:
    """Transcribe one recording after the other."""
    processor = AudioProcessor.load(request.model.folder)

    def finish(run: TaskRun, sources: list[Any]) -> list[Any]:
        texts = [transcribe_one(run, processor, source, **options) for source in sources]
        run.reader.progress(len(texts), len(texts))
        return with_files(run, texts)

    return request.answer(lambda row: row["audio"], finish, at_once=1)


def ctc_text(request: TaskRun, processor: AudioProcessor, source: Any, beams: int, timestamps: bool) -> Any:
    def text(ids: list[int]) -> str:
        return request.tokenizer.decode(ids, skip_special_tokens=True)

    if timestamps:
        return segment_rows(ctc_words(request.model, request.tokenizer, processor, source), text)
    return text(ctc_tokens(request.model, processor, source, beams))


def generated_text(request: TaskRun, processor: AudioProcessor, source: Any, **options: Any) -> str:
    return " ".join(sentences(request.model, request.tokenizer, processor, source, **options))


def transcriber_of(
    request: TaskRun,
    translate: bool,
    timestamps: bool,
    num_beams: int | None,
    max_new_tokens: int | None,
    temperatures: Sequence[float] | None,
) -> Transcriber:
    transcriber = Transcriber(
        request.model,
        request.tokenizer,
        AudioProcessor.load(request.model.folder),
        **drop_none(num_beams=num_beams, max_new_tokens=max_new_tokens),
        temperatures=TEMPERATURES if temperatures is None else tuple(temperatures),
    )
    known = transcriber.settings
    if translate and "translate" not in (known.task_to_id or {}):
        raise ValueError("translate: this model cannot translate")
    if known.task_to_id:
        transcriber.options["task"] = "translate" if translate else "transcribe"
    if known.no_timestamps_token_id is not None:
        transcriber.options["return_timestamps"] = True  # the windows of long recordings begin at timestamps
    elif timestamps:
        raise ValueError("timestamps: this model has no timestamp tokens")
    return transcriber


def check_transcriber(request: TaskRun) -> None:
    spec = request.model.spec
    if not spec.pair or "input_features" not in spec.embedding.inputs or not spec.writes:
        name = spec.architecture or "this model"
        raise ValueError(f"{request.task} needs a speech-to-text model; {name} is not one")


def transcribe_all(request: TaskRun, transcriber: Transcriber, recordings: list[Transcript]) -> None:
    """Transcribe every recording to its end, `batch` recordings at a time."""
    waiting, done = list(recordings), 0
    active: list[Transcript] = []
    while waiting or active:
        while waiting and len(active) < request.reader.batch:
            active.append(waiting.pop(0))
        transcriber.transcribe_next(active)
        done += sum(not each.has_more for each in active)
        active = [each for each in active if each.has_more]
        request.reader.progress(done, len(recordings))
