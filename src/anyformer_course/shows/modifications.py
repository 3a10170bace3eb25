"""Do Transformer modifications transfer? The table of 52 rows, and named rows as changes of one description.

Without names: the published figures of all rows, by final loss. With names: our count of parameters and operations of
these rows, next to the published ones [Narang et al. 2021].
"""

from __future__ import annotations

from typing import Any

from anyformer.look.figures import new
from anyformer_course.pictures.points import name_points
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
        others = [row for row in chosen if row not in (base, *better)]
        groups = (("baseline", [base], "black"), ("no lower loss", others, "C7"),
                  ("lower loss, but slower or larger", [row for row in better if row not in cheap], "C1"),
                  ("lower loss, as fast and as small", cheap, "C2"))  # fmt: skip
        is_table = not names
        views = {"the chosen rows": chosen}  # title -> rows to name
        if is_table:
            far = [row for row in chosen[::-1] if row.final_loss > base.final_loss + 10 * NOISE]
            views = {"all rows": [base, *far], "the lowest losses": [base, *better]}
        figure, axes = new(len(views), 1, 11 if is_table else 7, 5)
        for axis, title in zip(axes[0], views, strict=True):
            for label, rows, color in groups:
                points = [row.steps for row in rows], [row.final_loss for row in rows]
                axis.scatter(*points, s=18, color=color, label=label)
            axis.axvline(base.steps, color="black", linewidth=0.5)
            axis.axhline(base.final_loss, color="black", linewidth=0.5)
            axis.set(xlabel="steps per second, published", ylabel="final loss, published", title=title)
            axis.margins(0.15)
        if is_table:
            axes[0, 0].margins(y=0.05)
            axes[0, 1].set_ylim(chosen[0].final_loss - 0.01, base.final_loss + 2 * NOISE)
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
        for axis, rows in zip(axes[0], views.values(), strict=True):
            name_points(axis, [(row.name, row.steps, row.final_loss) for row in rows])
        return figure

    return Shown(
        f"{len(better)} of {len(chosen) - 1} modifications have a final loss that is lower than the baseline's "
        f"{base.final_loss} by more than {2 * NOISE}; {len(cheap)} of them with as many parameters and as many "
        f"steps per second{': ' if cheap else ''}{', '.join(row.name for row in cheap)}.",
        tables,
        draw,
    )
