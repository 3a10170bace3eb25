"""The stored results of the experiments: one NAME.json per experiment.

docs/results/lab.md, docs/scoreboard.md, `anyformer lab` and `show("claim", NAME)` read these files, so that they cannot
contradict each other. A file has the claim as the lectures make it and the paper; its runs, the largest form first,
each with the claim as it was judged, the verdict (null: no verdict), the number of seeds, a sentence with figures, the
figures by name, time, machine and commit (null: not recorded); why a claim does not hold, as we think, or is not judged
yet; the plot of the judged run; notes; and what was changed after looking at results.

`python -m anyformer_course.results FOLDER ...` stores finished runs of `anyformer lab run`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from anyformer.lab.registry import StoredResult
from anyformer.specs.messages import amount, nearest, quote

HERE = Path(__file__).parent
CHECKOUT = HERE.parents[2]
PLOTS = (HERE / "plots", CHECKOUT / "docs" / "results" / "plots")  # of a wheel, of a checkout


def names() -> list[str]:
    return sorted(path.stem for path in HERE.glob("*.json"))


def read(name: str) -> dict[str, Any]:
    """Return the content of an experiment's file."""
    if name not in names():
        raise ValueError(f"no stored result of {quote(name)}; {nearest(name, names())}")
    return json.loads((HERE / f"{name}.json").read_text("utf-8"))


def judged_run(record: dict[str, Any]) -> dict[str, Any] | None:
    """Return the run that decides: the largest form with a verdict."""
    return next((run for run in record["runs"] if run["verdict"] is not None), None)


def seeds_of(run: dict[str, Any]) -> str:
    """Return the number of seeds in words."""
    return "counted, no seeds" if run.get("counted") else amount(run["seeds"], "seed")


def plot_of(record: dict[str, Any]) -> Path | None:
    """Return the file of the stored plot."""
    paths = (folder / record["plot"]["file"] for folder in PLOTS) if record["plot"] else ()
    return next((path for path in paths if path.is_file()), None)


def load_result(name: str) -> StoredResult | None:
    """Return the result that decides about an experiment, for `anyformer lab`."""
    if name not in names():
        return None
    record = read(name)
    if (run := judged_run(record)) is None:
        return StoredResult("not judged yet", record["lecture"], record["why"], "", None)
    figure = run["figure"].replace("**", "").partition(" ([")[0]
    what = f"{run['form']} form, {seeds_of(run)}, {run['machine']}"
    return StoredResult(run["verdict"], run["claim"], figure, what, plot_of(record))
