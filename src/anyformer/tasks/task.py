"""The base of every task: opens a model with its tokenizer, checks the inputs and forms batches.

A task is a function of a model, inputs, its own options (`options.py`) and the `RunOptions` that all tasks have:

    def loudness(model: Source, inputs: Inputs, *, truncate: Truncate = None, **run_options: Unpack[RunOptions]) -> Any:
        request = start_run("loudness", model, inputs, run_options)

        def finish(run: TaskRun, records: list[Record]) -> list[Any]:
            return run.map_outputs(records, lambda output, record: float(output.logits.max()))

        return request.answer(lambda row: request.record(row["text"], truncate=truncate), finish)

There is one result per input, in order: {"error": message} if an input fails.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from anyformer.checkpoint import COMPANION, load, read_spec
from anyformer.inputs.image import Images
from anyformer.inputs.image import files as picture_files
from anyformer.inputs.recordings import streams
from anyformer.inputs.tokenizer import Tokenizer, check_vocabulary_size
from anyformer.models import Output, TransformerModule
from anyformer.models.model import input_limit
from anyformer.objectives.batches import Batch, Record, pad_texts
from anyformer.objectives.examples import array
from anyformer.objectives.heads import model_inputs
from anyformer.objectives.objective import Objective, Predictor
from anyformer.specs.messages import nearest, quote
from anyformer.tasks.long_audio import files as sound_files
from anyformer.tasks.options import Truncate
from anyformer.tasks.table import TASKS
from anyformer.weights import hub

Row = dict[str, Any]  # one input: its fields by name
Progress = Callable[[int, int], object]  # called with the number done and the total

READS = {"input_ids": "text", "input_values": "sound", "input_features": "sound"}
FAILURES = (ValueError, FloatingPointError, OSError)  # errors that one input can cause; other errors are bugs
AT_ONCE = 64  # batches of inputs that are prepared and sorted by length together


class Batches(TypedDict, total=False):
    """How a task runs an opened model."""

    batch: int  # inputs (or windows over long inputs) per batch
    progress: Progress


class RunOptions(Batches, total=False):
    """The keywords that every task takes."""

    device: str | torch.device
    dtype: str | torch.dtype
    offline: bool


@dataclasses.dataclass(frozen=True)
class TaskModel:
    """A model with its tokenizer and image processor, ready for tasks."""

    model: TransformerModule
    tokenizer: Tokenizer | None  # None if no text is read or written
    batch: int = 8
    progress: Progress = lambda done, total: None
    images: Images | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.batch, int) or self.batch < 1:
            raise ValueError(f"batch is {self.batch}; it must be at least 1")


Source = str | Path | TransformerModule | TaskModel
Inputs = str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]]


def open_model(
    model: Source,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    offline: bool = False,
    **options: Unpack[Batches],
) -> TaskModel:
    """Open a folder, a hub id, or a loaded model; `options` are `batch` and `progress`."""
    check_options("open_model", options, ())
    if isinstance(model, TaskModel | TransformerModule):
        for name, value in (("device", device), ("dtype", dtype)):
            if value is not None:
                raise ValueError(f"{name}={quote(value)}: the model is already loaded")
    if isinstance(model, TaskModel):
        return dataclasses.replace(model, **options)
    if isinstance(model, TransformerModule):
        if model.folder is None:
            raise ValueError("this model was not loaded from a folder, so it has no tokenizer; af.save and af.load it")
        return _check_tokenizer(TaskModel(model, **_read_processors(model.spec, model.folder), **options))
    if not isinstance(model, str | Path):
        raise ValueError(f"model must be a folder, a hub id or a loaded model; got {type(model).__name__}")
    folder = hub.resolve(model, offline=offline)
    loaded = _read_processors(read_spec(folder), folder)
    return _check_tokenizer(TaskModel(load(folder, dtype=dtype or "auto", device=device or "cpu"), **loaded, **options))


def _read_processors(spec: Any, folder: Path) -> dict[str, Any]:
    """Load the tokenizer and the image processor of a model from its folder."""
    read = [part.embedding for part in spec.readers]
    has_autoencoder = (folder / COMPANION).is_dir()
    if has_autoencoder:  # the autoencoder reads pictures for a model that draws its latents or codes
        read = [each for each in read if "an image" not in each.gives]
        companion: Any = read_spec(folder / COMPANION)
        read.append(companion.embedding)
    tokenizer = None
    if any("an image" not in each.gives for each in read):
        try:
            tokenizer = Tokenizer.load(folder)
        except FileNotFoundError:  # `TaskRun.tokenizer` raises if a task needs it
            if any("input_ids" in each.inputs for each in read):
                raise
    channels = next((each.channels for each in read if "an image" in each.gives), None)
    images = None
    if channels is not None and has_autoencoder and not Images.has_settings(folder):  # as in diffusers: -1 to 1
        images = Images(image_mean=(0.5,) * channels, image_std=(0.5,) * channels, do_convert_rgb=channels == 3)
    elif channels is not None:
        images = Images.load(folder)
    if images is not None and images.channels not in (None, channels):
        raise ValueError(f"{folder}: pictures are read with {images.channels} channels; the model takes {channels}")
    return {"tokenizer": tokenizer, "images": images}


def _check_tokenizer(reader: TaskModel) -> TaskModel:
    if reader.tokenizer is not None:
        check_vocabulary_size(reader.model, reader.tokenizer)
    return reader


# -- inputs -----------------------------------------------------------------------------------------------------------


def row_of(task: str, given: Any) -> Row:
    """Return an input as a dict of its fields; a text is the first field. Raises ValueError if it does not fit the
    task, and re-raises the error of an input that could not be read."""
    about = TASKS[task]
    if isinstance(given, FAILURES):
        raise given
    if isinstance(given, str) or (about.fields == ("image",) and not isinstance(given, Mapping)):
        given = {about.fields[0]: given}
    if not isinstance(given, Mapping):
        raise ValueError(f"an input must be a text or {{{', '.join(about.all_fields)}}}, got {type(given).__name__}")
    for name in given:
        if name not in about.all_fields:
            raise ValueError(f"{task} reads no field {quote(name)}; {nearest(str(name), about.all_fields)}")
    for name in about.fields:
        if name not in given:
            raise ValueError(f"{task} needs {' and '.join(about.fields)}, but {name} is missing")
        if name in about.raw and not isinstance(given[name], str):
            continue
        if not isinstance(given[name], str):
            raise ValueError(f"{name} is {type(given[name]).__name__}, not text")
        if not given[name].strip():
            raise ValueError(f"{name} is empty")
    return dict(given)


class Texts(Objective):
    """An objective that only pads records to batches."""

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        return pad_texts(records, pad)


@dataclasses.dataclass(frozen=True)
class TaskRun:
    """A task with its model and its inputs."""

    task: str
    reader: TaskModel
    rows: list[Any]  # one Row per input, or the error of an input
    one: bool  # whether there is a single input, not a list
    lost: list[int] = dataclasses.field(default_factory=list)  # number of tokens cut from each truncated text

    @property
    def model(self) -> Any:
        return self.reader.model

    @property
    def tokenizer(self) -> Tokenizer:
        if self.reader.tokenizer is None:
            raise ValueError(f"{self.model.folder}: no tokenizer, which {self.task} needs")
        return self.reader.tokenizer

    @property
    def limit(self) -> int | None:
        return input_limit(self.model.spec)

    @property
    def pad(self) -> int:
        """The padding token of the model, otherwise of the tokenizer."""
        spec = self.model.spec
        pool = None if spec.head is None else spec.head.pool
        known = (None if pool is None else pool.take.padding_token, spec.embedding.padding_token)
        return next((token for token in known if token is not None), self.tokenizer.filler)

    @property
    def job(self) -> Predictor:
        """This run as a `Predictor`."""
        return Predictor(self.model, self.tokenizer, self.pad, size=self.reader.batch, progress=self.reader.progress)

    # -- one result per input

    def answer(
        self,
        prepare: Callable[[Row], Any],
        finish: Callable[[TaskRun, list[Any]], Sequence[Any]],
        at_once: int | None = None,
    ) -> Any:
        """Return one result per input, in order; for a single input, only its result. `prepare(row)` is called for
        `at_once` rows at a time, and `finish(run, prepared)` returns one result per row of `run.rows`.

        If either function raises for an input, its result is {"error": message} and the other results do not change.
        The error is raised if there is a single input, or if all inputs fail with the same message."""
        results: list[Any] = []
        size, total = at_once or AT_ONCE * self.reader.batch, len(self.rows)
        if any(isinstance(row, dict) and streams(row.get("audio")) for row in self.rows):
            size = 1  # a stream can be read only once, so it cannot be retried
        for start in range(0, total, size):
            rows = self.rows[start : start + size]

            def advance(done: int, of: int, start: int = start, share: int = len(rows)) -> None:
                self.reader.progress(start + (share * done // of if of else share), total)

            part = dataclasses.replace(self, rows=rows).replace(progress=advance)
            results += part._results(prepare, finish)
        self.report_lost()
        errors = [result for result in results if isinstance(result, FAILURES)]
        if self.one and errors:
            raise errors[0]
        not_given = [error for error, row in zip(results, self.rows) if error is not row]
        if len(errors) == total > 1 and len(not_given) == total and len(set(map(message_of, errors))) == 1:
            raise errors[0]
        results = [
            {**file_of(row), "error": message_of(result)} if isinstance(result, FAILURES) else result
            for row, result in zip(self.rows, results, strict=True)
        ]
        return results[0] if self.one else results

    def _results(self, prepare: Callable[[Row], Any], finish: Callable[..., Sequence[Any]]) -> list[Any]:
        """Return a result or an error per row. If rows fail together, each half is tried separately."""
        results, ready, cut_before = list(self.rows), {}, len(self.lost)
        for i, row in enumerate(self.rows):
            if not isinstance(row, FAILURES):
                try:
                    ready[i] = prepare(row)
                except FAILURES as error:
                    results[i] = error
        run = dataclasses.replace(self, rows=[self.rows[i] for i in ready])
        try:
            answers = finish(run, list(ready.values())) if ready else []
        except FAILURES as error:
            answers = [error]
            if len(ready) > 1:
                del self.lost[cut_before:]  # the retries cut and count these texts again
                half = len(ready) // 2
                halves = (dataclasses.replace(run, rows=rows) for rows in (run.rows[:half], run.rows[half:]))
                answers = [result for part in halves for result in part._results(prepare, finish)]
        for i, result in zip(ready, answers, strict=True):
            results[i] = result
        return results

    def report_lost(self) -> None:
        """Warn in one line if texts were cut."""
        if self.lost:
            rows = f"{len(self.lost):,} of {len(self.rows):,} inputs ({sum(self.lost):,} tokens)"
            warnings.warn(f"too long, and cut: {rows}; the limit is {self.cut_length(True):,} tokens", stacklevel=3)

    # -- before the model

    def cut_length(self, truncate: Truncate) -> int | None:
        """Return the length to which texts are cut; None if they are not cut."""
        if truncate is False:
            return None
        lengths = (self.tokenizer.max_length, self.limit if truncate else None)
        return min((length for length in lengths if length), default=None)

    def encode(self, text: str, pair: str | None = None, *, truncate: Truncate = None) -> Any:
        """Encode a text or a pair; ValueError if it is too long and not cut."""
        encoding, length = self.tokenizer._encode(text, pair, None, True), self.cut_length(truncate)
        if length is not None and len(encoding.ids) > length:
            self.lost.append(len(encoding.ids) - length)
            encoding = self.tokenizer._encode(text, pair, length, True)
        self.fits(len(encoding.ids))
        if not encoding.ids:
            raise ValueError("the text has no tokens")
        return encoding

    def record(self, text: str, pair: str | None = None, *, truncate: Truncate = None) -> Record:
        """Encode a text or a pair as {"input_ids", "token_type_ids"}."""
        encoding = self.encode(text, pair, truncate=truncate)
        ids = array(self.tokenizer._ids(encoding))
        types = np.zeros_like(ids) if pair is None else array(encoding.type_ids)  # batches mix pairs and texts
        return {"input_ids": ids, "token_type_ids": types}

    def pixels(self, row: Row) -> Tensor:
        """Return the preprocessed picture (C, H, W) of a row."""
        assert self.reader.images is not None
        return torch.from_numpy(self.reader.images.one(row["image"]))

    def fits(self, size: int) -> None:
        if self.limit is not None and size > self.limit:
            hint = "; truncate cuts it" if "truncate" in TASKS[self.task].flags else ""
            raise ValueError(f"the text has {size:,} tokens, and this model takes at most {self.limit:,}{hint}")

    def windows(self, text: str, stride: int | None = None) -> list[Any]:
        """Encode a text as windows that fit the model and overlap by `stride` tokens."""
        encoding = self.tokenizer.plain(text)
        if not encoding.ids:
            raise ValueError("the text has no tokens")
        special = self.tokenizer.core.num_special_tokens_to_add(False)
        if self.limit is not None and len(encoding.ids) + special > self.limit:
            room = self.limit - special
            stride = room // 4 if stride is None else stride
            if not 0 <= stride < room:
                raise ValueError(f"stride is {stride}, and a window of this model has {room} tokens")
            encoding.truncate(room, stride=stride)
        return [self.tokenizer.core.post_process(piece) for piece in (encoding, *encoding.overflowing)]

    # -- the model

    def replace(self, **options: Any) -> TaskRun:
        """Return a copy with changed fields of the `TaskModel`, such as the batch size."""
        return dataclasses.replace(self, reader=dataclasses.replace(self.reader, **options))

    def batches(self, records: Sequence[Record]) -> Iterator[tuple[list[int], Batch]]:
        """Yield (indices, batch on the model's device), the longest first, so that lack of memory shows at once."""
        yield from self.job.batches(Texts(), records)

    def map_outputs(self, records: Sequence[Record], result: Callable[[Output, Record], Any]) -> list[Any]:
        """Return result(output, record) per record; outputs have no batch dimension and may end with padding."""
        results: list[Any] = [None] * len(records)
        for which, batch in self.batches(records):
            out = self.run(batch)
            for row, i in enumerate(which):
                results[i] = result(Output({name: value[row] for name, value in out.items()}), records[i])
        return results

    def media_batches(
        self, media: Sequence[Tensor], name: str = "pixel_values", interpolate: bool = False
    ) -> Iterator[tuple[list[int], dict[str, Any]]]:
        """Yield (indices, batch on the model's device), one batch per shape of the pictures or spectrograms."""
        options = {"interpolate_pos_encoding": True} if interpolate else {}
        shapes: dict[tuple[int, ...], list[int]] = {}
        for i, one in enumerate(media):
            shapes.setdefault(tuple(one.shape), []).append(i)
        self.reader.progress(0, len(media))
        for which in shapes.values():
            batch = torch.stack([media[i] for i in which]).to(self.model.device, self.model.dtype)
            yield which, {name: batch, **options}
        self.reader.progress(len(media), len(media))

    @torch.inference_mode()
    def run(self, batch: Batch) -> dict[str, Tensor]:
        """Return the model's output tensors for a batch."""
        inputs = {**model_inputs(self.model, batch), "return_dict": True}  # independent of the config
        if "use_cache" in self.model.inputs:
            inputs["use_cache"] = False
        return {name: value for name, value in self.model(**inputs).items() if isinstance(value, Tensor)}


def message_of(error: BaseException) -> str:
    """Return the error message in one line."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__


def file_of(row: Any) -> dict[str, str]:
    """Return {"file": name} if the row was found in a folder, otherwise {}."""
    return {"file": row["file"]} if isinstance(row, dict) and "file" in row else {}


def check_options(function: str, given: Iterable[str], own: Iterable[str]) -> None:
    """Raise ValueError if a keyword is not one of `RunOptions`; the message suggests one of them or of `own`."""
    for name in given:
        if name not in RunOptions.__annotations__:
            raise ValueError(f"{function} takes no {quote(name)}; {nearest(name, (*RunOptions.__annotations__, *own))}")


def start_run(task: str, model: Source, inputs: Inputs, run_options: RunOptions) -> TaskRun:
    """Check the inputs, then load the model, so that mistakes in inputs are reported at once."""
    check_options(task, run_options, TASKS[task].flags)
    rows, one = checked_rows(task, inputs)
    reader = open_model(model, **run_options)
    fields, reads = TASKS[task].fields, kinds_read(reader.model.spec)
    wanted = "pictures" if "image" in fields else "sound" if "audio" in fields else "text"
    if wanted not in reads:
        raise ValueError(f"{task} needs a model that reads {wanted}; this one reads {' and '.join(reads)}")
    return TaskRun(task, reader, rows, one)


def kinds_read(spec: Any) -> list[str]:
    """Return the kinds of input of a model: "text", "pictures", "sound", or the name of another input."""
    embeddings = [part.embedding for part in spec.readers]
    return [
        *dict.fromkeys(
            "pictures" if "an image" in each.gives else READS.get(each.inputs[0], each.inputs[0]) for each in embeddings
        )
    ]


def checked_rows(task: str, inputs: Any) -> tuple[list[Any], bool]:
    """Return one row (or error) per input, and whether there is a single input, not a list. A folder is replaced by one
    row per picture or recording in it."""
    raw = TASKS[task].raw
    one = isinstance(inputs, str | Mapping) or (raw == ("image",) and not isinstance(inputs, list | tuple))
    several: Any = [inputs] if one else inputs
    if not isinstance(several, Sequence) or isinstance(several, bytes):
        raise ValueError(f"inputs must be a text or a list of texts; got {type(inputs).__name__}")
    rows: list[Any] = []
    for given in several:
        try:
            row = row_of(task, given)
            files = files_in(given, raw[0]) if raw else None
        except FAILURES as error:
            if one:
                raise
            rows.append(error)
            continue
        one = one and files is None
        rows += [row] if files is None else [{**row, raw[0]: file, "file": str(file)} for file in files]
    return rows, one


def files_in(given: Any, field: str) -> list[Path] | None:
    """List the pictures or recordings in a folder; None if `given` is not a folder."""
    if not isinstance(given, str | Path) or not Path(given).expanduser().is_dir():
        return None
    return (picture_files if field == "image" else sound_files)(Path(given).expanduser())


def labels_of(request: TaskRun, number: int, given: Sequence[str] | None = None) -> list[str]:
    """Return the `number` names of a model's labels: `given`, else the config's, else LABEL_0, LABEL_1, ..."""
    if isinstance(given, str):
        raise ValueError("labels must be a list of names")
    names = list(request.model.spec.labels if given is None else given)
    names = names or [f"LABEL_{i}" for i in range(number)]
    if len(names) != number:
        whose = "given" if given is not None else "in the config"
        raise ValueError(f"{len(names)} labels {whose}, but the model has {number}")
    return names
