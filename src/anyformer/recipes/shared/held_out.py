"""What all runs on your own data share: usable and skipped rows, rows held out for validation, steps, and the name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from anyformer.data import Data, Held, Source
from anyformer.specs.messages import amount
from anyformer.train.run import Keep, Run

T = TypeVar("T")
Notify = Callable[[str], object]  # receives a line on how the data is read


def held_out(source: Source, stratify: str | None = None, group: str | None = None) -> Data:
    """Hold out one row in ten for validation, in each class if `stratify` names the label column. Rows with the same
    value in the column `group` stay together. Rows that cannot be used are skipped, counted and reported."""
    held = Held(source=source, one_in=10, out=True, stratify=stratify, group=group)
    return Data(train=held.replace(out=False), valid=held, unfit="skip")


def divide_steps(run: Run, parts: int = 4) -> Run:
    """Return the run with a warmup of a tenth of its steps, and with a checkpoint and an evaluation after each of
    `parts` equal parts."""
    every = max(run.steps // parts, 1)
    schedule, evaluate = run.schedule.replace(warmup=run.steps // 10), run.evaluate.replace(every=every)
    return run.replace(schedule=schedule, evaluate=evaluate, keep=Keep(every=every))


def name_of(path: str) -> str:
    return Path(path).expanduser().resolve().name.partition(".")[0] or "own"


def usable(
    source: Source, columns: Sequence[str], read: Callable[[Mapping[str, Any]], T], skipped: Counter[str]
) -> Iterator[T]:
    """Yield `read(example)` of each row. Count the rows that cannot be read in `skipped`, by reason."""
    for row in source.rows(tuple(columns)):
        problem = row.problem
        if row.example is not None:
            try:
                value = read(row.example)
            except ValueError as error:
                problem = str(error)
            else:
                yield value
        if problem:
            skipped[problem] += 1


def skipped_reasons(skipped: Mapping[str, int]) -> str:
    """Describe the number of skipped rows by reason, the most common first."""
    reasons = sorted(skipped.items(), key=lambda item: -item[1])
    shown = ", ".join(f"{count:,} because {why}" for why, count in reasons[:3])
    more = f", and {sum(count for _, count in reasons[3:]):,} more" if len(reasons) > 3 else ""
    return f"{amount(sum(skipped.values()), 'row')} skipped: {shown}{more}" if skipped else "it has no rows"
