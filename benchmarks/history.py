"""The results of `make bench-gpu` and `make bench-cpu` (one line per run in history.jsonl) and the page made from them.

A row compares us with a peer: `ratio` is how many times as fast (or as small) we are, so higher is better; `low` and
`high` are the 10th and 90th percentile of the ratios of single turns. To compare with an absolute goal, the peer is the
goal (`peer_name="goal"`).

    python benchmarks/history.py                    # rewrite docs/results/speed.md
    python benchmarks/history.py --add FILE.json    # add a run of a different machine; exits with 1 if a ratio fell
    python benchmarks/history.py --accept           # claim the lower ratios of the last run
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
HISTORY = ROOT / "benchmarks" / "history.jsonl"
PAGE = ROOT / "docs" / "results" / "speed.md"
GROWTH = ("growth.json", "growth.svg")  # next to the page, from growth_gpu.py
NOISE = 0.05  # maximum relative difference between two runs of the same code


@dataclasses.dataclass(frozen=True)
class Row:
    """One comparison. `name` is "group: case". A row that was not run has no figures; its note gives the reason."""

    name: str
    unit: str
    ours: float | None
    peer: float | None
    peer_name: str
    ratio: float | None
    low: float | None
    high: float | None
    goal: float | None  # minimum ratio
    note: str = ""

    @property
    def missed(self) -> bool:
        return self.ratio is not None and self.goal is not None and self.ratio < self.goal

    @property
    def floor(self) -> float:
        """Minimum ratio of later runs: the low end of the spread, or 5 % below the ratio if that is lower."""
        assert self.ratio is not None
        return min(self.ratio if self.low is None else self.low, (1 - NOISE) * self.ratio)


def compare(
    name: str, unit: str, ours: list[float], peer: list[float], peer_name: str, goal: float | None,
    figure: Callable[[float], float] = lambda seconds: 1e3 * seconds, note: str = "",
) -> Row:  # fmt: skip
    """Return a row for the seconds of alternating turns; `figure` converts seconds (default: to milliseconds)."""
    ratios = [theirs / mine for mine, theirs in zip(ours, peer, strict=True)]
    shown = [round_off(figure(statistics.median(times))) for times in (ours, peer)]
    low, middle, high = (round(value, 3) for value in spread(ratios))
    return Row(name, unit, shown[0], shown[1], peer_name, middle, low, high, goal, note)


def spread(values: Iterable[float]) -> tuple[float, float, float]:
    """(10th percentile, median, 90th percentile)."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return ordered[round(0.1 * last)], statistics.median(ordered), ordered[round(0.9 * last)]


def round_off(value: float) -> float:
    """Round to four digits: more would be noise."""
    return float(f"{value:.4g}") if abs(value) < 10_000 else round(value)


# -- the file ---------------------------------------------------------------------------------------------------------


def lines() -> list[dict[str, Any]]:
    return [json.loads(text) for text in HISTORY.read_text().splitlines() if text] if HISTORY.exists() else []


def rows_of(line: dict[str, Any]) -> list[Row]:
    return [Row(**figures) for figures in line["figures"]]


def record(rows: list[Row], machine: str, torch_version: str | None = None, commit: str | None = None) -> None:
    """Append one line. It lists the rows that are lower than the page claims, so that they do not become the claim."""
    line = {
        "date": datetime.date.today().isoformat(), "commit": commit or this_commit(), "machine": machine,
        "torch": torch_version or installed_torch(), "fell": [row.name for row in fallen(rows, machine)],
        "figures": [dataclasses.asdict(row) for row in rows],
    }  # fmt: skip
    with HISTORY.open("a") as file:
        file.write(json.dumps(line) + "\n")


def installed_torch() -> str:
    import torch

    return torch.__version__


def this_commit() -> str:
    """The current commit, or "unknown" outside a repository."""
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def machines() -> list[str]:
    return list(dict.fromkeys(line["machine"] for line in lines()))


def latest(machine: str) -> dict[str, Row]:
    """Name -> newest row with figures, or a row without figures if it was never run."""
    found: dict[str, Row] = {}
    for line in lines():
        for row in rows_of(line) if line["machine"] == machine else ():
            if row.ours is not None or found.get(row.name, row).ours is None:
                found[row.name] = row
    return found


def claims(machine: str) -> dict[str, Row]:
    """Name -> the row that the page claims: the newest one whose ratio did not fall."""
    return {
        row.name: row
        for line in lines() if line["machine"] == machine
        for row in rows_of(line) if row.ratio is not None and row.name not in line["fell"]
    }  # fmt: skip


def fallen(rows: list[Row], machine: str) -> list[Row]:
    """Rows whose ratio is below the floor of the claim."""
    claimed = claims(machine)
    return [
        row for row in rows
        if row.ratio is not None and row.name in claimed and row.ratio < claimed[row.name].floor
    ]  # fmt: skip


def check(rows: list[Row], machine: str) -> None:
    """If ratios fell, exit with 1 and the names of the rows. Call it before or after `record`."""
    claimed = claims(machine)
    if found := fallen(rows, machine):
        parts = [f"{row.name}: {row.ratio:.2f}, claimed {claimed[row.name].ratio:.2f} "
                 f"(at least {claimed[row.name].floor:.2f})" for row in found]  # fmt: skip
        sys.exit("slower than docs/results/speed.md claims:\n  " + "\n  ".join(parts))


# -- the page ---------------------------------------------------------------------------------------------------------


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def table_line(row: Row, fell: bool) -> str:
    case = row.name.split(": ", 1)[-1]
    if row.ours is None:
        return f"| {case} | | **not run** | | | | {row.note} |"
    ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
    mark = " **missed**" if row.missed else ""
    mark += " **fell**" if fell else ""
    between = f"{row.low:.2f}-{row.high:.2f}" if row.low is not None and row.high is not None else "-"
    peer = f"{number(row.peer)} ({row.peer_name})" if row.peer is not None else row.peer_name
    goal = "-" if row.goal is None else f"{row.goal:.2f}"
    return f"| {case} | {goal} | {number(row.ours)} {row.unit} | {peer} | {ratio}{mark} | {between} | {row.note} |"


def tables(machine: str) -> list[str]:
    """Return the section of a machine, with one table per group."""
    rows, last = latest(machine), [line for line in lines() if line["machine"] == machine][-1]
    text = [f"## {machine}", "", f"torch {last['torch']}, last run {last['date']} at {last['commit']}."]
    for group in dict.fromkeys(name.split(": ")[0] for name in rows):
        text += ["", f"### {group.capitalize()}", "", "| case | goal | ours | peer | ratio | 10-90 % | notes |",
                 "|---|---|---|---|---|---|---|"]  # fmt: skip
        text += [table_line(row, name in last["fell"]) for name, row in rows.items() if name.split(": ")[0] == group]
    return [*text, ""]


METHOD = """\
## How it was measured

`make bench-gpu` and `make bench-cpu` run every case in a separate process. Processes compile at the same time; a lock
lets only one be timed. Within a case, anyformer and the peer run in the same process and take turns, so that other load
on the machine affects both. A ratio is peer time / our time in the same turn: above 1, we are faster. The tables show
medians, and the 10th and 90th percentile of the ratios. A row with the peer "goal" compares a figure with an absolute
goal. "Given" figures are quoted: that peer was not measured on this machine. Training: our residual stream is bf16, as
in our recipes; the peer's is fp32, the default of autocast. "recorded": the trainer captured the step in a CUDA graph,
which it does by default if this helps; memory is measured before the capture.

The command fails if a ratio is below the low end of the claimed spread and more than 5 % below the claimed ratio (two
runs of the same code can differ by 5 %). The row is marked **fell**, and the claim remains until a later run reaches it
or `python benchmarks/history.py --accept` lowers it. `benchmarks/history.jsonl` contains every run.
"""


def page() -> Path:
    """Write docs/results/speed.md and its plot from the history."""
    rows = [row for machine in machines() for row in latest(machine).values()]
    with_goal = [row for row in rows if row.ratio is not None and row.goal is not None]
    missed = [row for row in with_goal if row.missed]
    absent = [row for row in rows if row.ours is None]
    text = ["# Speed", "", "<!-- written by benchmarks/history.py -->", "",
            f"{len(with_goal) - len(missed)} of {len(with_goal)} goals reached, {len(missed)} missed, "
            f"{len(absent)} not run. Commands: `make bench-gpu`, `make bench-cpu`.", ""]  # fmt: skip
    for machine in machines():
        text += tables(machine)
    text += [METHOD]
    if plot(PAGE.with_suffix(".svg")):
        text += ["## Over time", "", "Ratios of every recorded run. Each line is one row of the tables.", "",
                 f"![ratios over time]({PAGE.stem}.svg)", ""]  # fmt: skip
    if (PAGE.parent / GROWTH[1]).exists():
        text += ["## How cost grows", "",
                 "Time and memory by length, batch, depth and number of experts, next to counted FLOPs and bytes "
                 f"(`make bench-gpu ARGS=--growth`; [figures]({GROWTH[0]})).", "",
                 f"![time and memory next to counted FLOPs and bytes]({GROWTH[1]})", ""]  # fmt: skip
    PAGE.write_text("\n".join(text).rstrip("\n") + "\n")
    return PAGE


def plot(file: Path) -> bool:
    """Plot the ratios over time, one panel per machine and group. Return whether the file exists."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        return file.exists()
    panels: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for i, line in enumerate(lines(), 1):
        for row in rows_of(line):
            if row.ratio is not None:
                title = f"{line['machine']}: {row.name.split(': ')[0]}"
                panels.setdefault(title, {}).setdefault(row.name, []).append((i, row.ratio))
    if not panels:
        return False
    matplotlib.rcParams["svg.hashsalt"] = "speed"  # reproducible ids
    columns = min(len(panels), 3)
    down = -(-len(panels) // columns)
    figure = Figure(figsize=(4.4 * columns, 3.2 * down), layout="constrained")
    cells = figure.subplots(down, columns, squeeze=False).flat
    commits = [line["commit"] for line in lines()]
    for axes, (title, series) in zip(cells, panels.items()):
        for points in series.values():
            axes.plot(*zip(*points), marker="o", markersize=3, linewidth=0.8, alpha=0.7)
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.set_title(title, fontsize=8)
        axes.set_yscale("log")
        runs = sorted({x for points in series.values() for x, _ in points})
        axes.set_xticks(runs, [commits[x - 1] for x in runs], rotation=45, fontsize=6)
        axes.set_ylabel("peer / ours", fontsize=7)
        axes.tick_params(axis="y", which="both", labelsize=6)
    for axes in cells:
        axes.remove()
    figure.savefig(file, metadata={"Date": None})
    return True


def finish(rows: list[Row], machine: str, torch_version: str | None = None, commit: str | None = None) -> None:
    """Append the rows to the history, write the page, and exit with 1 if a ratio fell."""
    record(rows, machine, torch_version, commit)
    print(f"wrote {page().relative_to(ROOT)}")
    check(rows, machine)


def accept() -> None:
    """Claim the ratios that fell in the last run."""
    every = lines()
    every[-1]["fell"] = []
    HISTORY.write_text("".join(json.dumps(line) + "\n" for line in every))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--add", type=Path, metavar="FILE.json", help="add a run of a different machine")
    parser.add_argument("--accept", action="store_true")
    options = parser.parse_args()
    if options.add:
        run = json.loads(options.add.read_text())
        finish([Row(**row) for row in run["rows"]], run["machine"], run["torch"], run.get("commit"))
    else:
        if options.accept:
            accept()
        print(f"wrote {page()}")


if __name__ == "__main__":
    main()
