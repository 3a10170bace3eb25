"""Records on disk: one flat, memory-mapped file per field and shard, and the sizes of the records.

    folder/index.json             fields, shards, parts of a mixture, problems, digest of all records
    folder/00000.input_ids        the concatenated numbers of all records, in the smallest integer type that fits
    folder/00000.input_ids.sizes  numbers per record; absent if the field is a scalar
    folder/rows.csv               every row of the data, and why it has no record

A folder is written under a temporary name and renamed at the end, so it is complete or absent.
"""

from __future__ import annotations

import bisect
import copy
import csv
import dataclasses
import functools
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.objectives.batches import Record
from anyformer.specs.messages import quote
from anyformer.specs.part import conform
from anyformer.weights.io import read_json, write_json

FORMAT = 1
ROWS = "rows.csv"
SHARD_BYTES = 64 * 2**20  # size of a shard before its integers are narrowed
SHOWN = 20  # problems stored; all are counted
NARROW = [np.dtype(kind) for kind in ("uint8", "uint16", "int16", "int32", "int64")]


@dataclasses.dataclass
class RecordColumn:
    """One field of all records, like one array."""

    name: str
    dtype: np.dtype  # dtype of the objective's arrays, also returned when reading
    scalar: bool
    starts: np.ndarray  # (shards + 1,) index of the first number of each shard
    parts: list[np.ndarray]  # one memory-mapped array per shard
    ends: np.ndarray  # (records + 1,) record i is [ends[i], ends[i + 1])

    def __post_init__(self) -> None:
        self.bounds: list[int] = self.starts.tolist()

    def part(self, first: int, last: int) -> RecordColumn:
        """Return only the records [first, last), renumbered from 0."""
        begin = self.ends[first]
        return dataclasses.replace(self, starts=self.starts - begin, ends=self.ends[first : last + 1] - begin)

    def read(self, start: int, stop: int, out: np.ndarray | None = None) -> np.ndarray:
        """Return the numbers [start, stop), which may be in several shards."""
        out = np.empty(stop - start, self.dtype) if out is None else out
        shard, done = bisect.bisect_right(self.bounds, start) - 1, 0
        while start + done < stop:
            first = start + done - self.bounds[shard]
            piece = self.parts[shard][first : first + stop - start - done]
            out[done : done + len(piece)] = piece
            done += len(piece)
            shard += 1
        return out

    def rows(self, starts: np.ndarray, out: np.ndarray) -> list[int]:
        """Fill `out` (B, T) with T numbers from each start. Return the rows that were not filled, because their numbers
        are in several shards."""
        T = out.shape[1]
        shards = np.searchsorted(self.starts, starts, side="right") - 1
        whole = starts + T <= self.starts[shards + 1]
        for shard in set(shards[whole].tolist()):
            here = np.flatnonzero(whole & (shards == shard))
            part = self.parts[shard]
            windows = np.lib.stride_tricks.as_strided(part, (len(part) - T + 1, T), part.strides * 2, writeable=False)
            out[here] = windows[starts[here] - self.starts[shard]]
        return np.flatnonzero(~whole).tolist()


class DataSplit:
    """The prepared records of one split."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        index = read_json(folder / "index.json")
        if index.get("format") != FORMAT:
            version = quote(index.get("format"))
            raise ValueError(f"{folder}: shards of format {version}, not {FORMAT}; delete the folder")
        try:
            self.digest = conform(index["digest"], str, "digest")  # of all records
            self.bad: int = conform(index["bad"], int, "bad")  # number of skipped rows
            self.problems = list(conform(index["problems"], tuple[str, ...], "problems"))  # "file:line: why"
            rows, tokens = conform(index.get("truncated", (0, 0)), tuple[int, ...], "truncated")
            self.truncated = (rows, tokens)  # number of truncated rows, and of tokens cut off in total
            self.counts = list(conform(index["shards"], tuple[int, ...], "shards"))
            self.parts = {name: conform(size, int, "parts") for name, size in index.get("parts", {}).items()}
            if self.parts and (sum(self.parts.values()) != len(self) or min(self.parts.values()) < 1):
                raise ValueError("the sizes of its parts do not add up to its size")
            self.fields = {name: self._field(name, **kind) for name, kind in index["fields"].items()}
        except (OSError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
            raise self._damage_error(str(error)) from None

    def _damage_error(self, why: str) -> ValueError:
        return ValueError(f"{self.folder} is damaged; delete it to prepare it again ({why})")

    def _field(self, name: str, dtype: str, scalar: bool, stored: list[str]) -> RecordColumn:
        parts, sizes = [], []
        if any(np.dtype(kind).kind not in "biuf" for kind in (dtype, *stored)) or os.sep in name:
            raise ValueError(f"field {name[:50]} does not contain numbers")
        for i, kind in enumerate(stored):
            path = self.folder / f"{i:05d}.{name}"
            # a plain array over the mapped file, because indexing np.memmap is slow
            parts.append(np.asarray(np.memmap(path, kind, "r")) if path.stat().st_size else np.empty(0, kind))
            sizes.append(np.ones(len(parts[i]), np.int64) if scalar else np.fromfile(f"{path}.sizes", np.int64))
        starts = np.cumsum([0, *map(len, parts)])
        ends = np.concatenate([np.zeros(1, np.int64), *sizes]).cumsum()
        if ends[-1] != starts[-1] or len(ends) != len(self) + 1 or (np.diff(ends) < 0).any():
            raise ValueError(f"{name} has {starts[-1]} numbers, not {ends[-1]}")
        return RecordColumn(name, np.dtype(dtype), scalar, starts, parts, ends)

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield the place of every row of the data, and why it has no record; nothing for an older folder."""
        if (self.folder / ROWS).is_file():
            with (self.folder / ROWS).open(encoding="utf-8", newline="") as file:
                yield from ((place, problem) for place, problem in csv.reader(file))

    def verify(self) -> None:
        """Raise ValueError if the digest of the records, computed shard by shard, is not the one in index.json."""
        digest = hashlib.sha256()
        for shard in range(len(self.counts)):
            first = sum(self.counts[:shard])
            for name, field in self.fields.items():
                sizes = np.diff(field.ends[first : first + self.counts[shard] + 1])
                _digest(digest, name, sizes, field.parts[shard].astype(field.dtype))
        if digest.hexdigest() != self.digest:
            raise self._damage_error("the digest of its records is not the one in index.json")

    def part(self, name: str) -> DataSplit:
        """Return a split with only the records of one source of a mixture."""
        names = list(self.parts)
        first = sum(self.parts[before] for before in names[: names.index(name)])
        part = copy.copy(self)
        part.counts, part.parts = [self.parts[name]], {}
        part.fields = {key: field.part(first, first + self.parts[name]) for key, field in self.fields.items()}
        part.__dict__.pop("sizes", None)
        return part

    def __len__(self) -> int:
        return sum(self.counts)

    def record(self, i: int) -> Record:
        out = {}
        for name, field in self.fields.items():
            start, stop = field.ends[i : i + 2].tolist()
            numbers = field.read(start, stop)
            out[name] = numbers.reshape(()) if field.scalar else numbers
        return out

    def records(self, items: np.ndarray) -> list[Record]:
        """Return several records. A field of equal size in all of them (such as images) is read at once."""
        columns: list[list[np.ndarray]] = []
        for field in self.fields.values():
            starts, stops = field.ends[items], field.ends[items + 1]
            sizes = stops - starts
            if len(items) == 0 or sizes.min() < max(sizes.max(), 1):
                columns.append([field.read(*bounds) for bounds in zip(starts.tolist(), stops.tolist())])
                continue
            numbers = np.empty((len(items), sizes[0]), field.dtype)
            for i in field.rows(starts, numbers):
                field.read(int(starts[i]), int(stops[i]), numbers[i])
            columns.append([row.reshape(()) for row in numbers] if field.scalar else list(numbers))
        return [dict(zip(self.fields, values)) for values in zip(*columns)]

    def __iter__(self) -> Iterator[Record]:
        return map(self.record, range(len(self)))

    @functools.cached_property
    def sizes(self) -> np.ndarray:
        """(records,) the size of the longest field of each record."""
        longest = np.ones(len(self), np.int64)
        for field in self.fields.values():
            np.maximum(longest, np.diff(field.ends), out=longest)
        return longest

    @property
    def tokens(self) -> int:
        """The sum of all sizes."""
        return int(self.sizes.sum())


class Writer:
    """Writes the files of a DataSplit. Use it in a `with` statement; only one Writer per folder at a time. Call `row`
    for each row of the data, and `add` for each of its records."""

    def __init__(self, folder: Path, shard_bytes: int = SHARD_BYTES) -> None:
        self.folder, self.shard_bytes = folder, shard_bytes
        self.work = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
        self.kinds: dict[str, dict[str, Any]] = {}
        self.buffer: list[tuple[Record, bool]] = []  # True: the record continues in the next item
        self.begun: dict[str, int] = {}  # size so far of a record that continues in the next shard
        self.bytes, self.bad = 0, 0
        self.counts: list[int] = []
        self.problems: list[str] = []
        self.truncated = (0, 0)
        self.parts: dict[str, int] = {}
        self.hash = hashlib.sha256()

    def __enter__(self) -> Writer:
        for abandoned in self.folder.parent.glob(f".{self.folder.name}.*.tmp"):  # left by killed processes
            shutil.rmtree(abandoned, ignore_errors=True)
        self.work.mkdir(parents=True)
        self.rows = (self.work / ROWS).open("w", encoding="utf-8", newline="")
        self.listed = csv.writer(self.rows, lineterminator="\n")
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        try:
            self.rows.close()
            if kind is None:
                self._finish()
        finally:
            shutil.rmtree(self.work, ignore_errors=True)

    def add(self, record: Record, more: bool = False) -> None:
        """Add a record. `more`: it continues in the next call, because it may be larger than memory."""
        arrays = {name: np.asarray(value) for name, value in record.items()}
        if not self.kinds:
            self.kinds = {
                name: {"dtype": a.dtype.str, "scalar": a.ndim == 0, "stored": []} for name, a in arrays.items()
            }
        if arrays.keys() != self.kinds.keys():
            raise TypeError(f"records have different fields: {sorted(arrays)} and {sorted(self.kinds)}")
        for name, array in arrays.items():
            kind = self.kinds[name]
            if array.ndim > 1 or (array.ndim == 0) != kind["scalar"] or array.dtype.kind not in "biuf":
                raise TypeError(f"field {quote(name)} is {array.dtype} {array.shape}; expected numbers, 0-D or 1-D")
            arrays[name] = array.astype(kind["dtype"], casting="same_kind")
            self.bytes += array.nbytes
        self.buffer.append((arrays, more))
        if self.bytes >= self.shard_bytes:
            self._flush()

    def part(self, name: str) -> None:
        """End a part: the records added since the end of the last part."""
        total = sum(self.counts) + sum(not more for _, more in self.buffer)
        self.parts[name] = total - sum(self.parts.values())

    def row(self, place: str, problem: str = "") -> None:
        """List a row of the data; `problem`: why it has no record."""
        self.listed.writerow((place, problem))
        self.bad += bool(problem)
        if problem and len(self.problems) < SHOWN:
            self.problems.append(f"{place}: {problem}")

    def truncate(self, tokens: int) -> None:
        """Count the tokens that were cut off the next row."""
        rows, total = self.truncated
        self.truncated = (rows + (tokens > 0), total + tokens)

    def _flush(self) -> None:
        for name, kind in self.kinds.items():
            path = self.work / f"{len(self.counts):05d}.{name}"
            flat = np.concatenate([record[name].reshape(-1) for record, _ in self.buffer])
            ends = self.begun.get(name, 0) + np.cumsum([record[name].size for record, _ in self.buffer])
            sizes = np.diff(ends[[not more for _, more in self.buffer]], prepend=0).astype(np.int64)
            self.begun[name] = int(ends[-1] - sizes.sum())
            _digest(self.hash, name, sizes, flat)
            flat = narrow(flat)
            kind["stored"].append(flat.dtype.str)
            flat.tofile(path)
            if not kind["scalar"]:
                sizes.tofile(f"{path}.sizes")
        self.counts.append(sum(not more for _, more in self.buffer))
        self.buffer, self.bytes = [], 0

    def _finish(self) -> None:
        if self.buffer:
            self._flush()
        for path in self.work.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        write_json(
            self.work / "index.json",
            {
                "format": FORMAT,
                "digest": self.hash.hexdigest(),
                "shards": self.counts,
                "fields": self.kinds,
                "bad": self.bad,
                "problems": self.problems,
                "truncated": self.truncated,
                **({"parts": self.parts} if self.parts else {}),
            },
        )
        shutil.rmtree(self.folder, ignore_errors=True)
        self.work.rename(self.folder)


def _digest(hash: hashlib._Hash, name: str, sizes: np.ndarray, flat: np.ndarray) -> None:
    """Update a hash with one field of one shard, in the objective's dtype."""
    hash.update(f"{name} {flat.dtype.str}".encode() + sizes.tobytes() + flat.tobytes())


def narrow(numbers: np.ndarray) -> np.ndarray:
    """Return integers in the smallest dtype that fits; other numbers unchanged."""
    if numbers.dtype.kind not in "iu" or not numbers.size:
        return numbers
    low, high = int(numbers.min()), int(numbers.max())
    for kind in NARROW:
        if kind.itemsize < numbers.itemsize and np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return numbers.astype(kind)
    return numbers
