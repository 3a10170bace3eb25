"""A claim of the lectures: the stored verdict of its experiment, the figures, and the plot.

The results are from the largest form that was judged (`anyformer_course/results`). `anyformer lab run NAME` repeats
the experiment.
"""

from __future__ import annotations

from textwrap import fill
from typing import Any

from anyformer.look.figures import new
from anyformer_course.results import judged_run, plot_of, read, seeds_of
from anyformer_course.shown import Shown, Table

COLUMNS = ("form", "verdict", "seeds", "machine", "time", "commit")


def example(name: str = "low-rank") -> Shown:
    """Return the stored result of an experiment of `anyformer lab list`."""
    record = read(name)
    run = judged_run(record)
    if run is None:
        return unjudged(name, record)
    paper = f" [{record['paper']}]" if record["paper"] else ""
    why = f" Why, we think: {record['why']}" if record["why"] else ""
    figures = Table("figures of the judged run", ("figure", "value"), list((run["figures"] or {}).items()))
    runs = [(each["form"], each["verdict"] or "no verdict", seeds_of(each), *(each[key] for key in COLUMNS[3:]))
            for each in record["runs"]]  # fmt: skip

    def draw() -> Any:
        return stored_plot(record) or bars(record, run)

    return Shown(
        f"{record['lecture']}{paper}: {run['verdict']} ({run['form']} form, {seeds_of(run)}).{why}",
        [
            Table("claim, fixed before the run", ("form", "claim"), [(run["form"], run["claim"])]),
            figures,
            Table("runs, the largest form first", COLUMNS, runs),
        ],
        draw,
    )


def unjudged(name: str, record: dict[str, Any]) -> Shown:
    """Return the claim of an experiment that has no judged run."""
    from anyformer.lab.registry import experiment  # imports torch

    module = experiment(name)
    forms = [(form, each.cpu, each.cuda) for form, each in module.FORMS.items()]
    command = f"anyformer lab run {name} --form full"
    says = f"{record['lecture']}: not judged yet. {record['why']} Run it with `{command}`."

    def draw() -> Any:
        figure, axes = new(1, 1, 9, 3)
        for column, device in ((1, "two CPU cores"), (2, "one GPU")):
            axes[0, 0].plot([form[0] for form in forms], [form[column] for form in forms], marker="o", label=device)
        axes[0, 0].set(yscale="log", ylabel="minutes", title=fill(f"{record['lecture']}: not judged yet", 90))
        axes[0, 0].legend(frameon=False)
        return figure

    return Shown(
        says,
        [
            Table("claim, fixed before the run", ("form", "claim"), [("full", module.CLAIM)]),
            Table("minutes of each form", ("form", "two CPU cores", "one GPU"), forms),
        ],
        draw,
    )


def stored_plot(record: dict[str, Any]) -> Any:
    """Return the stored plot as a figure, or None."""
    if (path := plot_of(record)) is None:
        return None
    from matplotlib.pyplot import imread

    pixels = imread(path)
    figure, axes = new(1, 1, pixels.shape[1] / 110, pixels.shape[0] / 110)
    axes[0, 0].imshow(pixels)
    axes[0, 0].set_axis_off()
    return figure


def bars(record: dict[str, Any], run: dict[str, Any]) -> Any:
    """Draw the figures of a run without a stored plot."""
    figures = {key: value for key, value in (run["figures"] or {}).items() if isinstance(value, int | float)}
    figure, axes = new(1, 1, 9, 1.2 + 0.3 * len(figures))
    axis = axes[0, 0]
    axis.barh([*figures], [*figures.values()])
    for y, value in enumerate(figures.values()):
        axis.annotate(f"{value:g}", (value, y), (3, 0), textcoords="offset points", va="center", fontsize=8)
    axis.invert_yaxis()
    axis.tick_params(labelsize=8)
    axis.set_title(fill(f"{record['lecture']}: {run['verdict']}", 100), fontsize=9)
    return figure
