"""Encodes rows as records, in order: in this process, and on all cores if it takes more than a few seconds."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from typing import Any, NamedTuple

from anyformer.data.source import Row
from anyformer.inputs.long import LongText
from anyformer.inputs.truncation import counted_truncation
from anyformer.objectives.batches import Record
from anyformer.objectives.examples import array
from anyformer.objectives.objective import Objective
from anyformer.runtime.processes import end_with_parent

MOMENT = 3.0  # seconds before worker processes are started
CHUNK = 32  # rows per task of a worker


class Encoded(NamedTuple):
    place: str
    records: list[Record]
    problem: str = ""  # why there are no records
    unread: bool = False  # True: the source could not read the row; False: the objective rejected it
    more: bool = False  # the record continues in the next Encoded
    truncated: int = 0  # tokens cut off


def encode_row(row: Row, objective: Objective, tokenizer: Any) -> Encoded:
    if row.example is None:
        return Encoded(row.place, [], row.problem, unread=True)
    try:
        with counted_truncation() as cut:
            result = objective.encode(row.example, tokenizer)
    except ValueError as error:
        return Encoded(row.place, [], str(error))
    records = result if isinstance(result, list) else [result]
    if not any(value.size for record in records for value in record.values()):
        return Encoded(row.place, [], "the record is empty")
    return Encoded(row.place, records, truncated=cut.tokens)


def is_long(row: Row, objective: Objective) -> bool:
    return objective.packs and row.example is not None and isinstance(row.example.get("text"), LongText)


def encode_long(row: Row, objective: Objective, tokenizer: Any) -> Iterator[Encoded]:
    """Encode a text that is too long for memory, one part at a time."""
    assert row.example is not None
    for ids in objective.ids(row.example["text"], tokenizer):
        if ids:
            yield Encoded(row.place, [{"input_ids": array(ids)}], more=True)
    yield Encoded(row.place, [{"input_ids": array([])}])


def encode_rows(
    rows: Iterator[Row], objective: Objective, tokenizer: Any, workers: int | None = None, moment: float = MOMENT
) -> Generator[Encoded, None, None]:
    """Encode rows in order. After `moment` seconds, worker processes continue if there are several cores and processes
    can be forked."""
    workers = cores() if workers is None else workers
    in_process = workers < 2 or "fork" not in multiprocessing.get_all_start_methods()
    until = time.monotonic() + moment
    for row in rows:
        if not in_process and time.monotonic() >= until:
            yield from _encode_in_processes(chain([row], rows), objective, tokenizer, workers)
            return
        if is_long(row, objective):
            yield from encode_long(row, objective, tokenizer)
        else:
            yield encode_row(row, objective, tokenizer)


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_shared: tuple[Objective, Any]


def _begin(objective: Objective, tokenizer: Any, parent: int) -> None:
    """Initialize a worker: it ignores Ctrl-C, which the parent handles, and ends with the parent."""
    global _shared
    _shared = (objective, tokenizer)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent)


def _encode_chunk(rows: list[Row]) -> list[Encoded]:
    return [encode_row(row, *_shared) for row in rows]


def _chunks(rows: Iterable[Row], objective: Objective) -> Iterator[list[Row] | Row]:
    """Yield lists of CHUNK rows, and each long text as a single Row."""
    chunk: list[Row] = []
    for row in rows:
        if is_long(row, objective):
            yield from filter(None, (chunk, row))
            chunk = []
            continue
        chunk.append(row)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    yield from filter(None, (chunk,))


def _encode_in_processes(rows: Iterable[Row], objective: Objective, tokenizer: Any, workers: int) -> Iterator[Encoded]:
    pool = ProcessPoolExecutor(
        workers, multiprocessing.get_context("fork"), initializer=_begin, initargs=(objective, tokenizer, os.getpid())
    )
    waiting: deque[Future[list[Encoded]] | Row] = deque()
    together = _chunks(rows, objective)
    try:
        while True:
            for chunk in islice(together, max(4 * workers - len(waiting), 0)):
                waiting.append(chunk if isinstance(chunk, Row) else pool.submit(_encode_chunk, chunk))
            if not waiting:
                return
            first = waiting.popleft()
            if isinstance(first, Row):  # encoded here, because a worker would have to return the whole text at once
                yield from encode_long(first, objective, tokenizer)
            else:
                yield from first.result()
    except BrokenProcessPool:
        raise ValueError("a process that encodes examples was killed, possibly because memory ran out") from None
    finally:
        pool.shutdown(cancel_futures=True)
