"""Write docs/results/lab.md and docs/scoreboard.md from the stored results: `python docs/lab_pages.py`.

The results are src/anyformer_course/results/NAME.json. tests/course/test_results.py checks that the pages are up to
date.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from anyformer_course.results import judged_run, names, read, seeds_of

DOCS = Path(__file__).resolve().parent
Record = dict[str, Any]

LAB = """\
# The lab

Each experiment of `anyformer lab` checks a claim of the lectures. Show one with `anyformer lab show NAME` and
run it with `anyformer lab run NAME`. The [scoreboard](../scoreboard.md) has every claim and its verdict. A file
per experiment, `src/anyformer_course/results/NAME.json`, has all results; `python docs/lab_pages.py` writes
these pages from the files.

## Full forms

Run by `bash benchmarks/lab_gpu.sh FOLDER SECONDS NAME ...` on one H200 with captured steps (`Run.record`),
except where another command is named.
"""
METHOD = """\
Method: `anyformer lab run` continues after a trial that fails. If values become infinite, it names the trial
and does not judge the claim, except where divergence is a result (norm placement, modifications, scaling laws).
The time of masking-rate was measured with up to 23 trainings on the card. The ten runs at f2723f9f shared
the card, with four trainings at once; others ran one experiment at a time, with at most eight trainings.
Times of efficient attention are in [families.md](families.md), in-context regression in
[regression.md](regression.md).

A grid of 8 trainings gives the same `results.jsonl` and the same weights, bit for bit, one after another, in
two processes, and on two workers of Ray 2.60. A killed process, local or Ray's, is replaced and its run starts
again (`python -m pytest tests/lab/test_lab.py -m slow`).

## Small forms

Run by `anyformer lab run NAME --form small` on two CPU cores. The time is the CPU time of the trials. A form that takes
more than three minutes on two cores is called medium. A control in the code decides whether a form is large enough
for a verdict: its models must have learned the task.
"""
SMALL = """\
The small forms learn from a synthetic language with a few dozen words, four kinds of words and topics. Weights
start with a standard deviation of 1 / sqrt(width) instead of GPT-2's 0.02; in positions and norm-placement,
embeddings are multiplied by sqrt(width). The bounds of windows-and-pixels, words-and-pictures
and speech-from-few-labels were set before the runs, the bounds of return-asked-and-reached after the results of one
training.

## Notes, plots, and changes after the first results
"""
SCORES = """\
# Scoreboard

Every claim of the lectures that an experiment of `anyformer lab` checks. The verdict is from the largest
form that was judged. Run an experiment yourself with `anyformer lab run NAME`; [the lab](results/lab.md) has
all figures, methods and changes.
"""


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def table(columns: str, rows: list[str]) -> list[str]:
    return [row(*columns.split(", ")), "|" + "---|" * len(columns.split(", ")), *rows, ""]


def lab(records: list[Record]) -> Iterator[str]:
    yield LAB
    for is_small, text in ((False, METHOD), (True, SMALL)):
        rows = [
            row(
                record["experiment"] + (" (medium)" if run["form"] == "medium" else ""),
                run["claim"],
                run["figure"],
                seeds_of(run),
                run["machine"],
                run["time"] or "",
            )
            for record in records
            for run in record["runs"]
            if (run["form"] in ("small", "medium")) == is_small
        ]
        yield from table("experiment, claim, figure, seeds, machine, time", rows)
        yield text
    for record in records:
        reason = "It is not judged yet." if judged_run(record) is None else "It does not hold. Why, we think:"
        parts = [f"{reason} {why(record)}"] if record["why"] else []
        parts = [wrap(part) for part in (*record["notes"], *parts)]
        if record["plot"]:
            parts.append(f"![{record['plot']['shows']}](plots/{record['plot']['file']})")
        if record["changes"]:
            changes = "\n".join(wrap(f"- {change}") for change in record["changes"])
            parts.append(f"Changed after the first results:\n\n{changes}")
        if parts:
            yield f"### {record['experiment']}\n"
            yield "\n\n".join(parts) + "\n"


def why(record: Record) -> str:
    """Return why a claim does not hold, or why it is not judged yet and the command that judges it."""
    if judged_run(record) is not None:
        return str(record["why"])
    return f"{record['why']} To judge it: `anyformer lab run {record['experiment']} --form full`."


def wrap(text: str) -> str:
    indent = "  " if text.startswith("- ") else ""
    text = re.sub("`[^`]+`", lambda code: code[0].replace(" ", "\0"), text)  # commands stay on one line
    text = textwrap.fill(text, 130, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return text.replace("\0", " ")


def scoreboard(records: list[Record]) -> Iterator[str]:
    judged = {record["experiment"]: judged_run(record) for record in records}
    verdicts = [run["verdict"] for run in judged.values() if run is not None]
    yield SCORES
    hold, fail = verdicts.count("holds"), verdicts.count("does not hold")
    rest = len(records) - hold - fail
    waiting = "1 is" if rest == 1 else f"{rest} are"
    yield f"Of {len(records)} claims {hold} hold, {fail} do not, and {waiting} not judged yet.\n"
    rows = []
    for record in records:
        name, run = record["experiment"], judged[record["experiment"]]
        paper = f" [{record['paper']}]" if record["paper"] else ""
        picture = f"plots/{record['plot']['file']}" if record["plot"] else ""
        rows.append(
            row(
                f"{record['lecture']}{paper}",
                f"**{run['verdict']}**" if run else "not judged yet: needs a GPU",
                f"{run['form']}, {seeds_of(run)}" if run else "",
                f"[{name}](results/lab.md)",
                f"[![{record['plot']['shows']}](results/{picture})](results/{picture})" if picture else "",
            )
        )
    yield from table("claim, verdict, form and seeds, experiment, plot", rows)
    for title, is_judged in (("do not hold, and why we think so", True), ("are not judged yet, and why", False)):
        reasons = [
            wrap(f"- **{record['lecture']}** (`{record['experiment']}`). {why(record)}")
            for record in records
            if record["why"] and is_judged == (judged[record["experiment"]] is not None)
        ]
        if reasons:
            yield "\n".join([f"## Claims that {title}\n", *reasons, ""])


def pages() -> dict[Path, str]:
    """Return the pages and their text."""
    records = [read(name) for name in names()]
    makers = {DOCS / "results" / "lab.md": lab, DOCS / "scoreboard.md": scoreboard}
    return {path: "\n".join(make(records)).rstrip() + "\n" for path, make in makers.items()}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, "utf-8")
