"""Writes raw data as records on disk, once: later runs and other processes find them by their fingerprint."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock

from anyformer.data.encode import Encoded, encode_rows
from anyformer.data.mixture import Mixture
from anyformer.data.shards import FORMAT, DataSplit, Writer
from anyformer.data.source import Held, Source
from anyformer.models import Model, position_limit
from anyformer.objectives.objective import Objective
from anyformer.specs.codec import encode
from anyformer.specs.messages import amount
from anyformer.specs.part import Part, walk

Progress = Callable[[str, int], object]  # ("train", examples so far)
NAMED = 3  # problems of skipped rows in a report; all rows are counted


class Data(Part):
    """The data of a run: training, validation and test sources.

    Unreadable rows are skipped, counted and reported. A row that is readable but not usable (too long, an unknown
    label) is an error, or with `unfit` "skip" is skipped, counted and reported as well.

    `splits` contains the sources that are read. If train and valid are parts of one source and one of them gets its own
    file (`data.valid.source.path=valid.csv`), every row of both files is used."""

    train: Source
    valid: Source | None = None
    test: Source | None = None
    unfit: Literal["error", "skip"] = "error"

    def check(self) -> None:
        if any(isinstance(part, Mixture) and path for path, part in walk(self.train)):
            raise ValueError("data.train: a Mixture must be the outermost source; select rows inside its shares")
        for name, other in (("valid", self.valid), ("test", self.test)):
            if isinstance(self.train, Held) and isinstance(other, Held) and other.source == self.train.source:
                if other.replace(out=self.train.out) != self.train:
                    fix = "give both the same one_in, seed and stratify"
                    raise ValueError(f"data.train and data.{name} split the same source differently; {fix}")

    @functools.cached_property
    def splits(self) -> dict[str, Source]:
        """The sources to read, by name of the split."""
        given = {name: getattr(self, name) for name in ("train", "valid", "test") if getattr(self, name) is not None}
        return {
            name: source.whole if has_own_files(source, [o for o in given.values() if o is not source]) else source
            for name, source in given.items()
        }


def has_own_files(source: Source, others: Sequence[Source]) -> bool:
    """Whether a part of a source has counterparts among the other splits, and none of them reads the same files."""
    parts = [other for other in others if source.is_counterpart(other)]
    return bool(parts) and all(
        other.whole != source.whole and other.whole.digest() != source.whole.digest() for other in parts
    )


@dataclasses.dataclass(frozen=True)
class Splits:
    train: DataSplit
    valid: DataSplit | None = None
    test: DataSplit | None = None

    def items(self) -> Iterator[tuple[str, DataSplit]]:
        for name in ("train", "valid", "test"):
            if getattr(self, name) is not None:
                yield name, getattr(self, name)

    @property
    def digest(self) -> str:
        """Digest of all splits. A run is resumed only if it is the same."""
        return hashlib.sha256(" ".join(f"{name} {split.digest}" for name, split in self.items()).encode()).hexdigest()

    def verify(self) -> None:
        """Raise ValueError if records on disk have changed."""
        for _, split in self.items():
            split.verify()

    def write_rows(self, path: Path) -> None:
        """Write a CSV with the split of every row, and why it was skipped if it was."""
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("split", "row", "problem"))
            for name, split in self.items():
                writer.writerows(("skipped" if problem else name, place, problem) for place, problem in split.rows())

    def report(self) -> list[str]:
        """Return one line about skipped rows and one about truncated rows, if there are any."""
        lines = report_skipped(dict(self.items()))
        cut = {name: split.truncated for name, split in self.items() if split.truncated[0]}
        if cut:
            each = ", ".join(f"{name} {rows:,} rows ({tokens:,} tokens)" for name, (rows, tokens) in cut.items())
            lines.append(f"truncated to objective.length: {each}")
        return lines


def report_skipped(splits: Mapping[str, DataSplit]) -> list[str]:
    """Return one line: skipped rows per split, and the first problems. Return [] if no row was skipped."""
    bad = {name: split.bad for name, split in splits.items() if split.bad}
    if not bad:
        return []
    total = sum(len(split) + split.bad for split in splits.values())
    problems = [problem for name in bad for problem in splits[name].problems][:NAMED]
    more = [f"and {sum(bad.values()) - len(problems):,} more"] if sum(bad.values()) > len(problems) else []
    each = ", ".join(f"{name} {count:,}" for name, count in bad.items())
    return [f"skipped {sum(bad.values()):,} of {total:,} rows ({each}): {'; '.join([*problems, *more])}"]


def prepare(
    data: Data,
    objective: Objective,
    tokenizer: Any,
    folder: Path | str,
    length: int | None = None,
    progress: Progress | None = None,
) -> Splits:
    """Return the records of all splits, written to `folder` unless it already contains them.

    `length` is the maximum length of a record; packed texts may have any length. Several processes may call this at
    once: one writes the records and the others wait.
    """
    folder, objective = Path(folder), objective.ready(tokenizer)
    splits = {
        name: prepare_split(name, source, data.unfit, objective, tokenizer, folder, length, progress)
        for name, source in data.splits.items()
    }
    return Splits(**splits)


def prepare_split(
    name: str,
    source: Source,
    unfit: str,
    objective: Objective,
    tokenizer: Any,
    folder: Path,
    length: int | None,
    progress: Progress | None,
) -> DataSplit:
    """Return the records of one split. `objective` must be ready (`objective.ready(tokenizer)`)."""
    limit = None if objective.packs else length
    place = folder / f"{name}-{fingerprint(source, objective, tokenizer, limit, unfit)[:16]}"
    if not (place / "index.json").is_file():
        with writable_folder(folder), FileLock(folder / ".lock"):
            if not (place / "index.json").is_file():  # another process may have written it meanwhile
                _write(name, source, unfit, objective, tokenizer, place, limit, progress)
    return DataSplit(place)


def _write(
    name: str,
    source: Source,
    unfit: str,
    objective: Objective,
    tokenizer: Any,
    place: Path,
    limit: int | None,
    progress: Progress | None,
) -> None:
    with Writer(place) as writer:
        for part, one in (source.parts() or {"": source}).items():
            what = f"{name}/{part}" if part else name
            rows = encode_rows(one.rows(objective.columns), objective, tokenizer)
            with contextlib.closing(rows):
                _write_rows(rows, what, unfit, objective, writer, limit, progress)
            if part:
                writer.part(part)


def _write_rows(
    rows: Iterable[Encoded],
    what: str,
    unfit: str,
    objective: Objective,
    writer: Writer,
    limit: int | None,
    progress: Progress | None,
) -> None:
    count, bad = 0, writer.bad
    for where, records, problem, unread, more, truncated in rows:
        size = max(map(objective.size, records), default=0)
        if limit is not None and size > limit:
            problem = f"{size:,} tokens; the limit is {limit:,} (batch.length)"
        if problem and not unread and unfit == "error":
            raise ValueError(f"{where}: {problem}; to skip such rows, set data.unfit='skip'")
        if not more:
            writer.row(where, problem)
        if problem:
            continue
        writer.truncate(truncated)
        for record in records:
            writer.add(record, more)
        count += not more
        if progress is not None and not more and count % 256 == 0:
            progress(what, count)
    if not count:
        first = f"; the first problem: {writer.problems[0]}" if writer.problems else ""
        why = f"{amount(writer.bad - bad, 'row')} skipped{first}" if writer.bad > bad else "it is empty"
        raise ValueError(f"the {what} data has no usable example: {why}")
    if progress is not None:
        progress(what, count)


def fingerprint(source: Source, objective: Objective, tokenizer: Any, limit: int | None, unfit: str) -> str:
    """Return a digest of everything that affects the records: the data, the vocabulary, the objective and its code."""
    parts = [
        FORMAT,
        encode(source),
        source.digest(),
        encode(objective),
        _code(objective),
        tokenizer_digest(tokenizer),
        limit,
        unfit,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def tokenizer_digest(tokenizer: Any) -> str:
    """Return a digest that is equal for tokenizers with the same behaviour; "" for None."""
    if tokenizer is None:
        return ""
    what = [tokenizer.core.to_str(), tokenizer.writer.to_str(), tokenizer.special]
    what += [] if tokenizer.target is None else [tokenizer.target.to_str()]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()


def _code(objective: Objective) -> str:
    """Return the source code of the objective's classes: if it changes, the data is prepared again."""
    with contextlib.suppress(OSError, TypeError):  # a class defined at a prompt has no source
        return "".join(inspect.getsource(kind) for kind in type(objective).__mro__ if kind is not object)
    return ""


@contextlib.contextmanager
def writable_folder(folder: Path | str) -> Iterator[None]:
    """Create a folder, and raise disk errors inside the `with` block as a one-line ValueError."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise ValueError(f"prepared data cannot be written to {folder}: {error.strerror or error}") from None


def length_limit(spec: Model, length: int | None, objective: Objective) -> int | None:
    """Return the maximum number of tokens in a packed row or a record; `length` is `batch.length` of a run."""
    limit = position_limit(spec)
    length = length or limit
    if length is None and objective.packs:
        raise ValueError("batch.length: this model has no length limit; set the length of a row")
    if limit is not None and length is not None and length > limit:
        raise ValueError(f"batch.length: {length} is more than the {limit} tokens that this model takes")
    return length
