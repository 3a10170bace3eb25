"""What every task shares: a model opened once with its tokenizer, inputs as people give them, batches.

A task is a function of a model, inputs, keywords of its own, and `How` it is run:

    def shout(model: Source, inputs: Inputs, *, loud: int = 1, truncate: bool = False, **how: Unpack[How]) -> Any:
        asked = ask("shout", model, inputs, how)
        records = asked.each(lambda row: asked.record(row["text"], truncate=truncate))
        found = asked.found(records, lambda said, record: float(said.logits.max()) * loud)
        return asked.give(found)
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor

from anyformer.checkpoint import COMPANION, load, read_spec
from anyformer.evaluate.predict import Predictor
from anyformer.inputs.image import Images, files
from anyformer.inputs.text import Tokenizer, belong
from anyformer.messages import quote
from anyformer.model import Output, TransformerModule, position_limit
from anyformer.objectives.examples import joined
from anyformer.objectives.objective import Batch, Objective, Record, padded_texts, taken
from anyformer.part import nearest
from anyformer.tasks.table import TASKS
from anyformer.weights import hub

Row = dict[str, Any]  # one input: its fields by name
Progress = Callable[[int, int], object]  # called with how many are done, of how many


class How(TypedDict, total=False):
    """The keywords that every task takes."""

    batch: int  # inputs (or windows over long ones) at once
    device: str | torch.device
    dtype: str | torch.dtype
    offline: bool
    progress: Progress


@dataclasses.dataclass(frozen=True)
class Reader:
    """A model with its tokenizer, or what makes pictures ready for it, for as many tasks as it can do."""

    model: TransformerModule
    tokenizer: Any  # a Tokenizer, or None where pictures are read
    batch: int = 8
    progress: Progress = lambda done, total: None
    images: Images | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.batch, int) or self.batch < 1:
            raise ValueError(f"batch is {self.batch}; it must be at least 1")


Source = str | Path | TransformerModule | Reader
Inputs = str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]]


def open_model(
    model: Source, *, device: str | torch.device | None = None, dtype: str | torch.dtype | None = None,
    offline: bool = False, **options: Any,
) -> Reader:  # fmt: skip
    """Of a folder, a hub id, or a model that came from one; `options` are a reader's batch and progress."""
    if isinstance(model, Reader | TransformerModule):
        for name, value in (("device", device), ("dtype", dtype)):
            if value is not None:
                raise ValueError(f"{name}={quote(value)}: the model is open already")
    if isinstance(model, Reader):
        return dataclasses.replace(model, **options)
    if isinstance(model, TransformerModule):
        if model.folder is None:
            raise ValueError("this model came from no folder, where its tokenizer would be; af.save and af.load it")
        return _checked(Reader(model, **_beside(model.spec, model.folder), **options))
    if not isinstance(model, str | Path):
        raise ValueError(f"a model is a folder, a hub id, or one that was loaded; got {type(model).__name__}")
    folder = hub.resolve(model, offline=offline)
    beside = _beside(read_spec(folder), folder)
    return _checked(Reader(load(folder, dtype=dtype or "auto", device=device or "cpu"), **beside, **options))


def _beside(spec: Any, folder: Path) -> dict[str, Any]:
    """What reads for a model, from the files beside it."""
    read = [part.embedding for part in spec.readers]
    drawn_in = (folder / COMPANION).is_dir()
    if drawn_in:  # that one reads pictures for what draws in its numbers or codes
        read = [each for each in read if "an image" not in each.gives]
        companion: Any = read_spec(folder / COMPANION)
        read.append(companion.embedding)
    tokenizer = Tokenizer.load(folder) if any("an image" not in each.gives for each in read) else None
    channels = next((each.channels for each in read if "an image" in each.gives), None)
    images = None
    if channels is not None and drawn_in and not Images.there(folder):  # pipelines of diffusers: from -1 to 1
        images = Images(image_mean=(0.5,) * channels, image_std=(0.5,) * channels, do_convert_rgb=channels == 3)
    elif channels is not None:
        images = Images.load(folder)
    if images is not None and images.channels not in (None, channels):
        raise ValueError(f"{folder}: pictures are read with {images.channels} channels; the model takes {channels}")
    return {"tokenizer": tokenizer, "images": images}


def _checked(reader: Reader) -> Reader:
    if reader.tokenizer is not None:
        belong(reader.model, reader.tokenizer)
    return reader


# -- inputs -----------------------------------------------------------------------------------------------------------


def row_of(task: str, given: Any) -> Row:
    """One input by its fields: a text alone is the first, where no other is needed."""
    about = TASKS[task]
    if isinstance(given, str) or (about.fields == ("image",) and not isinstance(given, Mapping)):
        given = {about.fields[0]: given}
    if not isinstance(given, Mapping):
        raise ValueError(f"an input is a text or {{{', '.join(about.all_fields)}}}, got {type(given).__name__}")
    for name in given:
        if name not in about.all_fields:
            raise ValueError(f"{task} reads no field {quote(name)}; {nearest(str(name), about.all_fields)}")
    for name in about.fields:
        if name not in given:
            raise ValueError(f"{task} needs {' and '.join(about.fields)}, and there is no {name}")
        if name in about.raw and not isinstance(given[name], str):
            continue
        if not isinstance(given[name], str):
            raise ValueError(f"{name} is {type(given[name]).__name__}, not text")
        if not given[name].strip():
            raise ValueError(f"{name} is empty")
    return dict(given)


class Texts(Objective):
    """Records that are read as they are."""

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        return padded_texts(records, pad)


@dataclasses.dataclass(frozen=True)
class TaskRun:
    """A task that was asked for: who reads, and what."""

    task: str
    reader: Reader
    rows: list[Row]
    one: bool  # a single input, not a list of one

    @property
    def model(self) -> Any:
        return self.reader.model

    @property
    def tokenizer(self) -> Tokenizer:
        return self.reader.tokenizer

    @property
    def limit(self) -> int | None:
        """The most tokens that the model reads, where there is a limit; of a pair of stacks the encoder's."""
        spec = self.model.spec
        own = getattr(getattr(spec.embedding, "position", None), "length", None)
        return own if own is not None else position_limit(spec)

    @property
    def pad(self) -> int:
        """What the model takes for padding, else the tokenizer does."""
        spec = self.model.spec
        known = (
            getattr(getattr(spec.head, "pool", None), "padding_token", None),
            getattr(getattr(spec.embedding, "numbering", None), "token", None),
            getattr(getattr(spec.embedding, "tokens", None), "padding_index", None),
        )
        return next((place for place in known if place is not None), self.tokenizer.filler)

    @property
    def job(self) -> Predictor:
        """The same for what `anyformer.evaluate.predict` can do."""
        return Predictor(self.model, self.tokenizer, self.pad, size=self.reader.batch, progress=self.reader.progress)

    # -- before the model

    def each(self, make: Callable[[Row], Any]) -> list[Any]:
        """make(row) of every row; what is wrong with one is told with its number."""
        made = []
        for number, row in enumerate(self.rows, 1):
            with blaming(None if self.one else number):
                made.append(make(row))
        return made

    def record(self, text: str, pair: str | None = None, *, truncate: bool = False) -> Record:
        """The numbers of a text or a pair: "input_ids" and "token_type_ids"; too long is an error, unless it is cut."""
        record = joined(self.tokenizer, text, pair, self.limit if truncate else None)
        self.fits(len(record["input_ids"]))
        return {"token_type_ids": np.zeros_like(record["input_ids"]), **record}  # a batch may have pairs and others

    def fits(self, size: int) -> None:
        if self.limit is not None and size > self.limit:
            hint = "; truncate cuts it" if "truncate" in TASKS[self.task].flags else ""
            raise ValueError(f"the text has {size:,} tokens, and this model takes at most {self.limit:,}{hint}")

    def windows(self, text: str, stride: int | None = None) -> list[Any]:
        """Encodings of the pieces of a text that the model can take, with `stride` tokens in common."""
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
        """Read in another way."""
        return dataclasses.replace(self, reader=dataclasses.replace(self.reader, **options))

    def batches(self, records: Sequence[Record]) -> Iterator[tuple[list[int], Batch]]:
        """(which, batch on the model's device), the longest first: what does not fit is told at once."""
        yield from self.job.batches(Texts(), records)

    def found(self, records: Sequence[Record], result: Callable[[Output, Record], Any]) -> list[Any]:
        """result(what the model says, record) of every record: outputs without the batch, pads at their end."""
        found: list[Any] = [None] * len(records)
        for which, batch in self.batches(records):
            out = self.run(batch)
            for row, i in enumerate(which):
                found[i] = result(Output({name: value[row] for name, value in out.items()}), records[i])
        return found

    def seen(self, interpolate: bool = False) -> Iterator[tuple[list[int], dict[str, Any]]]:
        """(which, batch on the model's device) of pictures, which are read as they are needed."""
        assert self.reader.images is not None
        asked = {"interpolate_pos_encoding": True} if interpolate else {}
        for start in range(0, len(self.rows), self.reader.batch):
            shapes: dict[tuple[int, ...], list[tuple[int, Tensor]]] = {}
            for i in range(start, min(start + self.reader.batch, len(self.rows))):
                with blaming(None if self.one else i + 1):
                    pixels = torch.from_numpy(self.reader.images.one(self.rows[i]["image"]))
                shapes.setdefault(tuple(pixels.shape), []).append((i, pixels))
            self.reader.progress(start, len(self.rows))
            for alike in shapes.values():
                batch = torch.stack([pixels for _, pixels in alike]).to(self.model.device, self.model.dtype)
                yield [i for i, _ in alike], {"pixel_values": batch, **asked}
        self.reader.progress(len(self.rows), len(self.rows))

    @torch.inference_mode()
    def run(self, batch: Batch) -> dict[str, Tensor]:
        """What the model says about a batch."""
        inputs = {**taken(self.model, batch), "return_dict": True}  # whatever the config says
        if "use_cache" in self.model.inputs:
            inputs["use_cache"] = False
        return {name: value for name, value in self.model(**inputs).items() if isinstance(value, Tensor)}

    # -- after it

    def give(self, found: list[Any]) -> Any:
        """One result for one input, a list for a list."""
        return found[0] if self.one else found


@contextlib.contextmanager
def blaming(number: int | None) -> Iterator[None]:
    """Puts the number of an input, where it is one of several, before what is wrong with it."""
    try:
        yield
    except ValueError as error:
        raise error if number is None else ValueError(f"input {number}: {error}") from None


def ask(task: str, model: Source, inputs: Inputs, how: How) -> TaskRun:
    """Inputs are looked at before a model is read: a mistake in them is told at once."""
    known = (*How.__annotations__, *TASKS[task].flags)
    for name in how:
        if name not in How.__annotations__:
            raise ValueError(f"{task} takes no {quote(name)}; {nearest(name, known)}")
    rows, one = checked_rows(task, inputs)
    reader = open_model(model, **how)
    read = {"pictures": reader.images is not None, "text": reader.tokenizer is not None}
    wanted = "pictures" if "image" in TASKS[task].fields else "text"
    if not read[wanted]:
        other = next(kind for kind in read if kind != wanted)
        raise ValueError(f"{task} needs a model that reads {wanted}; this one reads {other}")
    return TaskRun(task, reader, rows, one)


def checked_rows(task: str, inputs: Inputs) -> tuple[list[Row], bool]:
    """The inputs by their fields, and whether there is one alone, not a list."""
    if TASKS[task].fields == ("image",):
        return picture_rows(task, inputs)
    one = isinstance(inputs, str | Mapping)
    several: Any = [inputs] if one else inputs
    if not isinstance(several, Sequence) or isinstance(several, bytes):
        raise ValueError(f"inputs are a text, or a list of texts; got {type(inputs).__name__}")
    rows = []
    for number, given in enumerate(several, 1):
        with blaming(None if one else number):
            rows.append(row_of(task, given))
    return rows, one


def picture_rows(task: str, inputs: Any) -> tuple[list[Row], bool]:
    """The same of pictures: those of a folder stand for it, each under its name."""
    one, rows = not isinstance(inputs, list | tuple), []
    for number, given in enumerate([inputs] if one else inputs, 1):
        with blaming(None if one else number):
            row = row_of(task, given)
            folder = row["image"]
            if not isinstance(folder, str | Path) or not Path(folder).expanduser().is_dir():
                rows.append(row)
                continue
            rows += [{**row, "image": file, "file": str(file)} for file in files(Path(folder).expanduser())]
            one = False
    return rows, one


def labels_of(asked: TaskRun, number: int, given: Sequence[str] | None = None) -> list[str]:
    """The names of a model's labels: those given, else its config's, else numbers; as many as it tells apart."""
    if isinstance(given, str):
        raise ValueError("labels is a list of names")
    names = list(asked.model.spec.labels if given is None else given)
    names = names or [f"LABEL_{i}" for i in range(number)]
    if len(names) != number:
        whose = "given" if given is not None else "in the config"
        raise ValueError(f"{len(names)} labels {whose}, and the model tells {number} apart")
    return names
