"""What all runs on your own data share: rows held out for validation, the name of the run, and skipped rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from anyformer.data import Data, Held, Source

Notify = Callable[[str], object]  # receives a line on how the data is read


def held_out(source: Source, stratify: str | None = None, group: str | None = None) -> Data:
    """Hold out one row in ten for validation, in each class if `stratify` names the label column. Rows with the same
    value in the column `group` stay together. Rows that cannot be used are skipped, counted and reported."""
    held = Held(source=source, one_in=10, out=True, stratify=stratify, group=group)
    return Data(train=held.replace(out=False), valid=held, unfit="skip")


def name_of(path: str) -> str:
    return Path(path).expanduser().resolve().name.partition(".")[0] or "own"


def skipped_reasons(skipped: Mapping[str, int]) -> str:
    """Describe the number of skipped rows by reason, the most common first."""
    reasons = sorted(skipped.items(), key=lambda item: -item[1])
    shown = ", ".join(f"{count:,} because {why}" for why, count in reasons[:3])
    more = f", and {sum(count for _, count in reasons[3:]):,} more" if len(reasons) > 3 else ""
    return f"{sum(skipped.values()):,} rows skipped: {shown}{more}" if skipped else "it has no rows"
