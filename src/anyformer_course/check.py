"""`python -m anyformer_course.check [N[.STOP] ...]`: run the demonstration and the change of every stop.

Prints the seconds of both and the sentence of the demonstration. Fails if a stop has the wrong form, raises an error,
quotes a number that its output does not have, or takes more than 5 seconds (of the processor or of the clock, whichever
is less). The picture counts, `import torch` does not.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
import time
from typing import Any

from anyformer_course import lesson
from anyformer_course.render import console, print_shown
from anyformer_course.shown import Shown

LIMIT = 5.0  # seconds per block, with its picture


def check_shown(shown: Shown) -> Any:
    """Raise a ValueError if a table or the sentence has the wrong form; return the picture."""
    if not shown.says.strip() or "\n" in shown.says:
        raise ValueError("`says` must be one line of text")
    if not shown.tables:
        raise ValueError("there is no table")
    for table in shown.tables:
        for row in table.rows:
            if len(row) != len(table.columns):
                raise ValueError(f"table {table.title!r}: a row has {len(row)} cells, {len(table.columns)} columns")
            for cell in row:
                if cell is not None and not isinstance(cell, (str, int, float)):
                    raise ValueError(f"table {table.title!r}: a cell is {type(cell).__name__}; use numbers and strings")
        if not table.rows:
            raise ValueError(f"table {table.title!r} has no rows")
    json.dumps(shown.json())
    figure = shown.figure()
    if not hasattr(figure, "savefig"):
        raise ValueError(f"`draw` returns {type(figure).__name__}, not a matplotlib figure")
    return figure


def measure(block: lesson.Block) -> tuple[Shown, float]:
    """Run a block and draw its picture; return its Shown and the seconds."""
    start, clock = processor_seconds(), time.perf_counter()
    try:
        shown = block.run()
        check_shown(shown)
    except Exception as error:
        if str(error).startswith(block.where):
            raise
        raise ValueError(f"{block.where}: {type(error).__name__}: {error}") from error
    return shown, min(processor_seconds() - start, time.perf_counter() - clock)


def processor_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def printed_text(shown: Shown) -> str:
    """Return the text that `anyformer course` prints: a column or a row that does not fit is not seen."""
    out = io.StringIO()
    print_shown(shown, console(out))
    return out.getvalue()


QUOTED = re.compile(r"(?<![\w.])(?<!\w-)-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?!\w|[.,]\d)(?: [mb]illion)?")
SCALES = {"": 1.0, "million": 1e6, "billion": 1e9}
DECIMALS, PERCENTAGES = 0.2, 0.03  # relative differences between x86 with AVX-512 and with SSE: at most 16 and 1.4 %
# such as (the slide: 4 days) and Stop 4.11
SOURCE = re.compile(r"\((?:the slide|the paper|published)\b[^)]*\)|\b[Ss]top \d+\.\d+")


def quoted_numbers(text: str) -> list[str]:
    """Return the numbers of a sentence that a result must contain: no years, no small integers, no names (GPT-2, stop
    4.11), and nothing in a parenthesis that names a source: (the slide: 4 days)."""
    found = [each.rstrip(",") for each in QUOTED.findall(SOURCE.sub("", text))]
    return [each for each in found if not each.isdecimal() or (int(each) >= 10 and not is_year(each))]


def is_year(text: str) -> bool:
    return text.isdecimal() and 1900 <= int(text) < 2100


def unseen_numbers(text: str, shown: Shown, given: str) -> list[str]:
    """Return the numbers of `See:` or `Try:` that are neither printed nor `given`: by the idea or the code."""
    seen = f"{printed_text(shown)} {given}"
    values = [abs(float(each.replace(",", ""))) for each in re.findall(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?", seen)]
    return [each for each in quoted_numbers(text) if not any(agrees(each, value) for value in values)]


def agrees(quoted: str, value: float) -> bool:
    """Whether `value` (or its percentage) rounds to the quoted number: 0.71 and 0.713, 2 million and 1,960,112.

    Decimals and percentages may differ as much as between processors, on which small models train differently."""
    plain, _, scale = quoted.replace(",", "").lstrip("-").partition(" ")
    digits, _, power = plain.partition("e")
    step = 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))
    varies = DECIMALS if "." in digits else PERCENTAGES if float(plain) <= 100 else 0.0
    varies = 0.0 if scale or power or "," in quoted else varies  # counts are exact
    allowed = max(0.5001 * step, varies * float(plain))
    return any(abs(value * unit - float(plain)) <= allowed for unit in (1, 100, 1 / SCALES[scale]))


def warm_up() -> None:
    import matplotlib.figure
    import torch  # noqa: F401

    import anyformer as af

    af.build(af.spec("gpt2"), device="meta")
    matplotlib.figure.Figure().savefig(os.devnull, format="svg")


def check_stop(stop: lesson.Stop) -> bool:
    """Run one stop and print a line about it; return whether it is fine."""
    try:
        results = [measure(block) for block in (stop.demonstration, stop.changed)]
    except Exception as error:
        print(f"{stop.name:5} FAILED  {stop.title}\n      {error}", flush=True)
        return False
    seconds = [second for _, second in results]
    slow = max(seconds) > LIMIT
    times = " + ".join(f"{second:.1f}" for second in seconds)
    print(
        f"{stop.name:5} {'TOO SLOW' if slow else 'ok'}  {times} s  {stop.title}\n      {results[0][0].says}", flush=True
    )
    unseen = check_numbers(stop, *(shown for shown, _ in results))
    for message in unseen:
        print(f"      FAILED: {message}")
    same = results[0][0].json() == results[1][0].json()
    if same:
        print("      FAILED: the change gives the same numbers as the demonstration")
    return not slow and not same and not unseen


def check_numbers(stop: lesson.Stop, demonstration: Shown, changed: Shown) -> list[str]:
    """Return one message per text of the stop that quotes numbers which its output does not have."""
    texts = (("See", stop.see, demonstration, stop.demonstration), ("Try", stop.change, changed, stop.changed))
    return [
        f"{name} names {', '.join(missing)}, which the output does not contain"
        for name, text, shown, block in texts
        if (missing := unseen_numbers(text, shown, f"{stop.idea} {block.code}"))
    ]


def main(names: list[str]) -> int:
    failed = count = 0
    warm = False
    for name in names or [str(number) for number in lesson.numbers()]:
        try:
            which, stop = lesson.find(name)
        except ValueError as error:
            print(error, file=sys.stderr)
            failed += 1
            continue
        if not warm:
            warm_up()
            warm = True
        for each in (stop,) if stop else which.stops:
            count += 1
            failed += not check_stop(each)
    print(f"{count} stops, {failed} failed" if failed else f"{count} stops, all fine")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
