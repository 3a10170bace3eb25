"""Grids: one run for every combination of values and every seed."""

from __future__ import annotations

import itertools
import json
import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from anyformer.counting import count
from anyformer.data import Data, Held, PythonDocs
from anyformer.families import names
from anyformer.kernels.hardware import device as device_of
from anyformer.lab.experiment import default_jobs, draw
from anyformer.lab.trials import Place, Row, Trial, Trials, Values, write
from anyformer.look import figures
from anyformer.models import Model
from anyformer.recipes import recipe
from anyformer.recipes.shared.own_text import text_run
from anyformer.specs.codec import override, to_json
from anyformer.train.progress import read_metrics
from anyformer.train.run import Run, read_run
from anyformer.train.start import check_suits

BASE = "run.json"  # the run that every trial changes, in the grid's folder
MAX_TRAININGS = 100_000


def base_run(name: str, data: str = "data") -> Run:
    """Return the run of a recipe, a run.json or a run's folder. For a name from the zoo, return a training on the
    documentation and the library of the running Python."""
    path = Path(name).expanduser()
    if path.suffix == ".json" or path.is_dir():
        return read_run(path / "run.json" if path.is_dir() else path)
    if name in dict(names()):
        texts = PythonDocs()
        held = Data(train=Held(source=texts, one_in=100), valid=Held(source=texts, one_in=100, out=True))
        return text_run(held, name, 2**23, name, "")
    return recipe(name, data)


def values_of(text: str) -> tuple[str, list[Any]]:
    """Parse PATH=A,B,...; a value that is not JSON is a string."""
    path, equals, values = text.partition("=")
    if not path or not equals or not values:
        raise ValueError(f"--set takes PATH=VALUE,VALUE,..., got {text!r}")
    try:
        return path, json.loads(f"[{values}]")
    except ValueError:
        return path, [_json(value) for value in values.split(",")]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


class GridSearch:
    """The runs of a grid. An address that is not a field of the run belongs to its model: `decoder.depth`."""

    def __init__(
        self, base: Run, settings: Mapping[str, Sequence[Any]], seeds: int = 1, steps: int | None = None
    ) -> None:
        if seeds < 1:
            raise ValueError(f"--seeds: {seeds}; it must be at least 1")
        same_end = {"evaluate.patience": None}  # all runs train for the same number of steps
        self.base = override(base, same_end if steps is None else {**same_end, "steps": steps})
        self.settings, self.seeds = dict(settings), seeds
        if "seed" in settings:
            raise ValueError("--set seed: use --seeds N, which trains every combination with the seeds 0 to N - 1")
        number = math.prod(map(len, settings.values())) * seeds
        if number > MAX_TRAININGS:
            raise ValueError(f"these values and seeds give {number:,} trainings; a grid has at most {MAX_TRAININGS:,}")
        self.labels = {path: value_labels(path, values) for path, values in settings.items()}
        self.trials: list[Trial] = []
        for values in itertools.product(*settings.values()):
            changes = dict(zip(settings, values))
            name = (
                ",".join(f"{path.rpartition('.')[2]}={label}" for path, label in self.label_values(changes)) or "as-is"
            )
            run = apply_changes(self.base, {**changes, "seed": 0})  # raises before any training starts
            check_suits(run)
            size = count(run.model).parameters if isinstance(run.model, Model) else None
            for seed in range(seeds):
                self.trials.append(Trial(f"{name},seed={seed}", {**changes, "seed": seed, "parameters": size}))

    def label_values(self, values: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return each address with the label of its value."""
        return [(path, self.labels[path][json.dumps(values[path])]) for path in self.settings]

    def perform(
        self,
        folder: Path,
        device: str = "auto",
        jobs: int | None = None,
        on: str = "here",
        tell: Callable[[str], object] = lambda line: None,
    ) -> list[Row]:
        place = device_of(device)
        trials = Trials(self.trials, work, folder, str(place))
        text = to_json(self.base) + "\n"
        if (folder / BASE).is_file() and (folder / BASE).read_text("utf-8") != text:
            raise ValueError(f"{folder} contains the grid of a different run; choose another --out DIR")
        tell(f"{len(self.trials)} trainings in {folder}")
        write(folder / BASE, text)
        rows = trials.perform(default_jobs(place.type, jobs), on, math.inf, tell)
        draw(self.plot, rows, folder / "plot.png", tell)
        return rows

    def final(self, rows: Sequence[Row]) -> dict[tuple[str, ...], list[Row]]:
        """Return the last row of each successful training, grouped by the values of the grid."""
        last = {row["trial"]: row for row in rows if "failed" not in row}
        groups: dict[tuple[str, ...], list[Row]] = {}
        for row in last.values():
            groups.setdefault(tuple(label for _, label in self.label_values(row)), []).append(row)
        return groups

    def summary(self, rows: Sequence[Row]) -> list[list[Any]]:
        """Return a line per combination: its values, the number of successful seeds, parameters, and mean and standard
        deviation of the losses."""
        lines = []
        for values, each in self.final(rows).items():
            losses = [row["loss"] for row in each]
            spread = f"{statistics.stdev(losses):.4f}" if len(losses) > 1 else ""
            lines.append([*values, len(each), each[0]["parameters"], f"{statistics.mean(losses):.4f}", spread])
        return sorted(lines, key=lambda line: float(line[-2]))

    def plot(self, rows: Sequence[Row]) -> Any:
        figure, axes = figures.new(2, 1, 12, 4.5)
        for number, (values, each) in enumerate(self.final(rows).items()):
            name, color = figures.plain(", ".join(values)) or "unchanged", f"C{number % 10}"
            for row in each:
                points = [(p["step"], p["loss"]) for p in rows if p["trial"] == row["trial"] and "failed" not in p]
                label = name if row is each[0] and number < 12 else None
                axes[0, 0].plot(*zip(*points), color=color, linewidth=0.8, label=label)
            axes[0, 1].plot([number] * len(each), [row["loss"] for row in each], "o", color=color)
            axes[0, 1].plot([number], [statistics.mean(row["loss"] for row in each)], "_", color=color, markersize=18)
        labels = [figures.plain("\n".join(values)) for values in self.final(rows)]
        axes[0, 1].set_xticks(range(len(labels)), labels, fontsize=7)
        axes[0, 0].set(xlabel="step", ylabel="loss")
        axes[0, 1].set_title("at the end, one point per seed", fontsize=9)
        axes[0, 0].legend(frameon=False, fontsize=7)
        return figure


def apply_changes(base: Run, changes: Mapping[str, Any]) -> Run:
    fields = {name for name, _ in base.items()}
    return override(
        base, {path if path.partition(".")[0] in fields else f"model.{path}": value for path, value in changes.items()}
    )


def work(values: Values, place: Place) -> list[Row]:
    """Return a row per evaluation: step, tokens, and loss and metrics on held-out data. Without held-out data, return
    one row with the mean training loss over the last tenth of the steps."""
    changes = {path: value for path, value in values.items() if path != "parameters"}
    run = apply_changes(read_run(place.shared.parent / BASE), changes)
    trainer = place.train(run)
    lines = read_metrics(trainer.folder)
    steps = {line["step"]: line for line in lines if "loss" in line}
    rows: list[Row] = []
    for line in lines:
        if "valid/loss" in line:
            scores = {name.removeprefix("valid/"): value for name, value in line.items() if name.startswith("valid/")}
            rows.append({"step": line["step"], "tokens": steps[line["step"]]["tokens"], **scores})
    if not rows:
        last = list(steps.values())[-max(len(steps) // 10, 1) :]
        loss = statistics.mean(line["loss"] for line in last)
        rows.append({"step": last[-1]["step"], "tokens": last[-1]["tokens"], "loss": loss})
    return rows


def value_labels(path: str, values: Sequence[Any]) -> dict[str, str]:
    """Map the JSON of each value to a short label: the kind of a Part if it is unique, otherwise the whole value. Equal
    labels are numbered."""
    texts = [json.dumps(value) for value in values]
    if repeated := next((text for text in texts if texts.count(text) > 1), None):
        raise ValueError(f"--set {path}: {repeated} is given twice")
    kinds = [value["kind"] if isinstance(value, dict) and "kind" in value else value for value in values]
    full = [value if isinstance(value, str) else text for value, text in zip(values, texts)]
    labels: list[str] = []
    for kind, text in zip(kinds, full):
        label = kind if isinstance(kind, str) and kinds.count(kind) == 1 else text
        labels.append(re.sub(r"[^\w.+-]+", "_", label)[:60])
    return {
        text: label if labels.count(label) == 1 else f"{label}-{number}"
        for number, (text, label) in enumerate(zip(texts, labels), 1)
    }
