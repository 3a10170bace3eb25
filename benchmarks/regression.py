"""Train the recipe of in-context regression at full size for several noise levels and compare with classical methods.

    python benchmarks/regression.py [FOLDER] [--noise 0.25 0.5 1.0] [--minutes 9] [--set path=value ...]

All noise levels train at the same time. Writes FOLDER/regression.json (the mean squared error by number of pairs in the
context), regression.png, and the runs with their logs. `--minutes` limits the training; finished runs are reused.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyformer as af
from anyformer.cli.train import find_run, train
from anyformer.evaluate.regression import curves
from anyformer.objectives.regress import Regress
from anyformer.train.deadline import Deadline

GOAL = 1.05  # times the error of the Bayes-optimal prediction


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/regression"))
    parser.add_argument("--noise", type=float, nargs="+", default=[0.25, 0.5, 1.0])
    parser.add_argument("--minutes", type=float, help="time limit for all trainings together (default: none)")
    parser.add_argument("--count", type=int, default=2**18, help="test sequences")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--set", nargs="*", default=[], metavar="PATH=VALUE")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)  # this process trains one run
    options = parser.parse_args()
    if options.one:
        return fit(options)
    end = None if options.minutes is None else time.time() + 60 * options.minutes
    again = ["--device", options.device, "--set", *options.set]
    jobs = []
    options.folder.mkdir(parents=True, exist_ok=True)
    for noise in options.noise:
        folder = home(options.folder, noise)
        limit = [] if end is None else ["--minutes", str((end - time.time()) / 60)]
        command = [sys.executable, __file__, str(folder), "--one", "--noise", str(noise), *limit, *again]
        if not (folder / "done").exists():
            log = folder.with_name(f"{folder.name}.log").open("a")  # a new run needs an empty folder
            jobs.append((noise, subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)))
    for noise, job in jobs:
        print(f"noise {noise}: training ended with {job.wait()}", flush=True)
    found = {}
    for noise in options.noise:
        try:
            model = af.load(home(options.folder, noise), device=options.device)
        except (OSError, ValueError) as error:
            print(f"noise {noise}: no model ({error})")
            continue
        found[str(noise)] = scored(model, noise, options.count)
        (options.folder / "regression.json").write_text(json.dumps(found, indent=1) + "\n")
        draw(found, options.folder / "regression.png")
    sys.exit(0 if len(found) == len(options.noise) and all(max(f["ratio"][1:]) <= GOAL for f in found.values()) else 1)


def home(folder: Path, noise: float) -> Path:
    return folder / f"noise-{noise}"


def fit(options: argparse.Namespace) -> None:
    end = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    run, _ = find_run("regression", "", [f"objective.noise={options.noise[0]}", *options.set])
    trainer = train(run, options.folder, resume=(options.folder / "run.json").exists(), device=options.device,
                    watch=[] if end is None else [Deadline(end, 10.0, most=run.steps, slow=2)])  # fmt: skip
    done = f"{trainer.step} steps, {trainer.examples} sequences, {trainer.seconds:.0f} s"
    (options.folder / "done").write_text(f"{done}\n")
    print(done)


def scored(model: Any, noise: float, count: int) -> dict[str, Any]:
    spec = model.spec.embedding
    objective = Regress(width=spec.point_width, context=spec.position.length // 2 - 1, noise=noise)
    errors = curves(model, objective, count=count)
    ratio = [ours / bayes for ours, bayes in zip(errors["model"], errors["bayes"], strict=True)]
    at = max(range(1, len(ratio)), key=ratio.__getitem__)
    print(f"noise {noise}: at most {ratio[at]:.4f} x the error of Bayes, after {at} pairs", flush=True)
    excess = [(ours - noise**2) / (bayes - noise**2)
              for ours, bayes in zip(errors["model"], errors["bayes"], strict=True)]  # fmt: skip
    return {**errors, "ratio": ratio, "ratio without the noise": excess, "sequences": count}


def draw(found: dict[str, dict[str, Any]], path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return print("no plot: matplotlib is not installed")
    figure = Figure(figsize=(4.2 * len(found), 3.6), layout="constrained")
    styles = {"model": ("C0", "-"), "bayes": ("black", "--"), "least squares": ("C1", "-"), "neighbours": ("C2", "-")}
    for axes, (noise, errors) in zip(figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True):
        for name, (color, line) in styles.items():
            axes.plot(errors[name], line, color=color, label="Bayes (ridge)" if name == "bayes" else name)
        axes.set(title=f"noise {noise}", xlabel="pairs seen", yscale="log", ylim=(0.8 * min(errors["bayes"]), 4))
        axes.axhline(float(noise) ** 2, color="grey", linestyle=":", linewidth=1)
    figure.axes[0].set_ylabel("mean squared error")
    figure.axes[-1].legend(fontsize=8)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
