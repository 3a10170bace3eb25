"""Do Transformer modifications transfer? The table of 52 rows, and named rows as changes of one description.

Without names: the published figures of all rows, by final loss. With names: our count of parameters and operations of
these rows, next to the published ones [Narang et al. 2021].
"""

from __future__ import annotations

from typing import Any

from anyformer.look.figures import new
from anyformer_course.shown import Shown, Table

NOISE = 0.005  # standard deviation of the baseline's early loss over seeds, published


def example(*names: str) -> Shown:
    """Compare the rows `names` with the baseline, or all rows if no name is given: `example("SwiGLU", "Fixup")`."""
    from anyformer_course.lab.narang_table import ROWS, count_row, row_named
    from anyformer_course.lab.narang_tasks import FINE_TUNED

    base = ROWS[0]
    chosen = [base, *(row_named(name) for name in names if name != base.name)] if names else [*ROWS]
    chosen.sort(key=lambda row: row.final_loss)
    better = [row for row in chosen if row.final_loss < base.final_loss - 2 * NOISE]
    tables = [
        Table("published: loss and speed", ("row", "final loss", "early loss", "steps per second",
                                            "M parameters", "T operations"),
              [[row.name, row.final_loss, row.early_loss, row.steps, row.parameters, row.operations]
               for row in chosen]),
        Table("published: scores after fine-tuning", ("row", "SuperGLUE", "XSum", "WebQ", "WMT EnDe"),
              [[row.name, row.superglue, *FINE_TUNED[row.name]] for row in chosen])]  # fmt: skip
    if names:
        counted = []
        for row in chosen:
            parameters, operations = count_row(row)
            counted.append([row.name, parameters / 1e6, row.parameters, operations / 1e12, row.operations])
        tables.append(Table("counted from our description", ("row", "M parameters, ours", "published",
                                                             "T operations, ours", "published"), counted))  # fmt: skip
    cheap = [row for row in better if row.parameters <= 1.02 * base.parameters and row.steps >= 0.98 * base.steps]

    def draw() -> Any:
        figure, axes = new(2, 1, 10, 1.2 + 0.14 * len(chosen), sharey=True)
        names = [row.name for row in chosen]
        columns = (
            ("final loss minus the baseline's", [row.final_loss - base.final_loss for row in chosen], better),
            ("steps per second minus the baseline's", [row.steps - base.steps for row in chosen], cheap),
        )
        for axis, (title, values, good) in zip(axes[0], columns, strict=True):
            axis.barh(names, values, color=["C2" if row in good else "C0" for row in chosen])
            axis.axvline(0, color="black", linewidth=0.5)
            axis.set_title(title, fontsize=9)
            axis.tick_params(labelsize=6)
            axis.margins(y=0.01)
        axes[0, 0].invert_yaxis()
        figure.suptitle("green: lower loss by more than 0.01 (left), and as fast and as small (right)", fontsize=9)
        return figure

    return Shown(
        f"{len(better)} of {len(chosen) - 1} modifications have a final loss that is lower than the baseline's "
        f"{base.final_loss} by more than {2 * NOISE}; {len(cheap)} of them with as many parameters and as many "
        f"steps per second{': ' if cheap else ''}{', '.join(row.name for row in cheap)}.",
        tables,
        draw,
    )
