"""Store finished runs: `python -m anyformer_course.results FOLDER ... [--why TEXT]`, then `python docs/lab_pages.py`.

FOLDER is the folder of one `anyformer lab run`, with claim.json and plot.png. The run replaces the stored run of the
same form."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from anyformer.lab.experiment import TINY, TOO_SMALL
from anyformer.lab.registry import experiment
from anyformer_course.extension import register
from anyformer_course.results import CHECKOUT, HERE, PLOTS, judged_run, names, read


def store(folder: Path, why: str | None = None, commit: str | None = None) -> Path:
    """Add the run in `folder` to its experiment's file; return the file."""
    claim = json.loads((folder / "claim.json").read_text("utf-8"))
    name, form = claim["name"], claim["form"]
    if form == TINY or (claim["holds"] is None and claim["verdict"] != TOO_SMALL):
        raise ValueError(f"{folder}: the {form} form has no verdict ({claim['verdict']})")
    module = experiment(name)
    record = read(name) if name in names() else new_record(name, module)
    figures = {key: value for key, value in claim["figures"].items() if value is not None}
    short = {key: f"{value:.4g}" if isinstance(value, float) else str(value) for key, value in figures.items()}
    listed = "; ".join(f"{key} {value}" for key, value in short.items())
    verdict = None if claim["holds"] is None else claim["verdict"]
    sentence = {True: "holds", False: "**does not hold**", None: "no verdict, too small to judge"}[claim["holds"]]
    seconds = f"{claim['seconds']:.0f} s" if claim["device"] == "cuda" else f"{claim['cpu_seconds']:.0f} s of CPU time"
    run = {
        "form": form,
        "claim": claim["claim"],
        "verdict": verdict,
        "seeds": claim["seeds"],
        "figure": f"{sentence}: {listed}",
        "figures": figures,
        "time": seconds,
        "machine": claim["machine"],
        "commit": commit,
    }
    order = [*module.FORMS][::-1]
    others = [each for each in record["runs"] if each["form"] != form]
    record["runs"] = sorted([run, *others], key=lambda each: order.index(each["form"]) if each["form"] in order else 0)
    if judged_run(record) in (None, run):
        record["why"] = None if claim["holds"] else why
        if not claim["holds"] and not why:
            raise ValueError(f"{name} {verdict or 'is not judged'}: say why you think so with --why TEXT")
    if judged_run(record) is run:
        if (folder / "plot.png").is_file():
            shutil.copyfile(folder / "plot.png", PLOTS[1] / f"{name}.png")
            record["plot"] = {"file": f"{name}.png", "shows": (record["plot"] or {}).get("shows", record["lecture"])}
    path = HERE / f"{name}.json"
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return path


def new_record(name: str, module: Any) -> dict[str, Any]:
    lecture = module.__doc__.partition("\n")[0]
    return {
        "experiment": name, "lecture": lecture, "paper": "", "runs": [], "why": None, "plot": None, "notes": [],
        "changes": [],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="+")
    parser.add_argument("--why", help="why we think that the claim does not hold, or why it is not judged")
    options = parser.parse_args()
    register()
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=CHECKOUT, capture_output=True, text=True)
    for folder in options.folder:
        print(store(folder, options.why, git.stdout.strip() or None))


if __name__ == "__main__":
    main()
