"""Dates as people write them, and the same dates as YYYY-MM-DD: a translation that a small model learns in a minute."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

FORMS = (
    "{date.day} {month} {date.year}",
    "{month} {date.day}, {date.year}",
    "{weekday}, {date.day} {month} {date.year}",
    "the {ordinal} of {month}, {date.year}",
    "{short} {date.day} {date.year}",
    "{date.day}.{date.month}.{date.year}",
)
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
          "December")  # fmt: skip
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
FIRST, LAST = datetime.date(1600, 1, 1), datetime.date(2099, 12, 31)
ENDINGS = {1: "st", 2: "nd", 3: "rd", 21: "st", 22: "nd", 23: "rd", 31: "st"}


def write_dates(folder: Path, seed: int, progress: Callable[[int, int], object], most: int = 20_000) -> None:
    """Write train.jsonl and valid.jsonl, one {"source", "target"} per line. No date is in both files."""
    random = np.random.default_rng(seed)
    days = random.choice((LAST - FIRST).days + 1, size=most, replace=False)
    held_out = most // 40
    for split, part in (("valid", days[:held_out]), ("train", days[held_out:])):
        with (folder / f"{split}.jsonl").open("w", encoding="utf-8", newline="\n") as out:
            for day in part:
                date = FIRST + datetime.timedelta(days=int(day))
                source = write_date(date, FORMS[random.integers(len(FORMS))])
                out.write(json.dumps({"source": source, "target": date.isoformat()}) + "\n")
        progress(held_out if split == "valid" else most, most)


def write_date(date: datetime.date, form: str) -> str:
    """Return a date in one of FORMS: "14 July 1789", "Tuesday, 14 July 1789". The result does not depend on locale."""
    month = MONTHS[date.month - 1]
    weekday = WEEKDAYS[date.weekday()]
    ordinal = f"{date.day}{ENDINGS.get(date.day, 'th')}"
    return form.format(date=date, month=month, short=month[:3], weekday=weekday, ordinal=ordinal)
