"""Modifications: most changes of a Transformer do not lower its loss by more than the loss varies with the seed.

Every row of Narang et al. (`lab/narang_table.py`) is trained as a small model on span corruption for the same number of
steps; the vanilla Transformer is trained with several seeds. As in the paper, a modification counts as better if its
held-out loss is lower than the vanilla Transformer's mean by more than twice the standard deviation over these seeds. A
training that diverges is not better. Steps per second are measured, relative to the vanilla Transformer, while other
trials may run. The losses are also compared with the paper's by rank, but this is not judged.

If `tuning` is not 0, each row is then fine-tuned on the task of `lab/function_task.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.data import Data, Held, PythonDocs, Source, TextFiles
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.training import LEARNED, guessing_loss
from anyformer.lab.trials import Place, Row, Trial, Values
from anyformer.look import figures
from anyformer.objectives.span_corruption import SpanCorruption
from anyformer.objectives.translate import Translate
from anyformer.specs.codec import override
from anyformer.train.optim import AdamW, Cosine
from anyformer.train.progress import read_metrics
from anyformer.train.run import Batch, Evaluate, Keep, Pretrained, Run
from anyformer_course.lab.function_task import ANSWER, functions, share_right, vocabulary
from anyformer_course.lab.narang_changes import TableSize
from anyformer_course.lab.narang_table import ROWS, row_named
from anyformer_course.lab.runs import StepTimes

CLAIM = (
    "after the same number of steps, fewer than half of the modifications have a held-out loss below the vanilla "
    "Transformer's mean by more than twice its standard deviation over seeds"
)
FEW = [  # rows of every group
    "Vanilla Transformer", "ELU", "SwiGLU", "RMS Norm", "Fixup", "Block sharing", "Untied embeddings",
    "Adaptive softmax", "Lightweight convolution", "Synthesizer (random)", "Switch Transformer", "Product key memory",
]  # fmt: skip
FORMS = {
    "tiny": Form(
        0.1, 0.1, {"width": 24, "depth": 1, "tokens": 320, "steps": 8, "tuning": 4, "batch": 2, "few": 3, "seeds": 2}
    ),
    "small": Form(
        3, 1,
        {"width": 48, "depth": 2, "tokens": 1024, "steps": 120, "tuning": 0, "batch": 16, "few": 12, "seeds": 4},
    ),
    "medium": Form(
        60, 10,
        {"width": 72, "depth": 2, "tokens": 1024, "steps": 1000, "tuning": 0, "batch": 16, "few": 12, "seeds": 4},
    ),
    "full": Form(
        150, 10,
        {"width": 144, "depth": 3, "tokens": 4096, "steps": 1000, "tuning": 0, "batch": 64, "few": None, "seeds": 5},
    ),
}  # fmt: skip
DIVERGES = True  # divergence is a result of this experiment
VANILLA = ROWS[0].name
LENGTH = 128


def trials(
    width: int, depth: int, tokens: int, steps: int, tuning: int, batch: int, few: int | None, seeds: int,
    data: str | None = None,
) -> list[Trial]:  # fmt: skip
    """Return a trial per row, then more seeds of the vanilla Transformer."""
    sizes = {"width": width, "depth": depth, "tokens": tokens}
    same = {**sizes, "steps": steps, "tuning": tuning, "batch": batch, "data": data}
    rows = [row for row in ROWS if few is None or row.name in FEW[:few]]
    every = [*((row, 0) for row in rows), *((ROWS[0], seed) for seed in range(1, seeds))]
    return [Trial(f"{slug(row.name)}-{seed}", {"row": row.name, "seed": seed, **same}) for row, seed in every]


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def size(width: int, depth: int, tokens: int) -> TableSize:
    """Return sizes in proportion to the paper's."""
    return TableSize(
        width=width, inner=4 * width, heads=6, head_width=width // 6, depth=depth, vocabulary=tokens, length=LENGTH,
        narrow=width // 6, cutoffs=(tokens // 8, 3 * tokens // 8), softmaxes=4, experts=8, keys=48, found=16, taps=15,
    )  # fmt: skip


def work(values: Values, place: Place) -> list[Row]:
    model = row_named(values["row"]).describe(size(values["width"], values["depth"], values["tokens"]))
    steps, large = values["steps"], values["tokens"] > 2000
    source = texts(values["data"], library=large)
    data = Data(train=Held(source=source), valid=Held(source=source, out=True))
    run = Run(
        name="modifications",
        model=model,
        data=data,
        vocabulary=vocabulary(data, values["tokens"], place),
        objective=SpanCorruption(),
        optimizer=AdamW(lr=2e-3, betas=(0.9, 0.98), weight_decay=0.0),
        schedule=Cosine(warmup=max(steps // 10, 1), floor=0.1),
        steps=steps,
        seed=values["seed"],
        batch=Batch(examples=values["batch"], length=LENGTH),
        precision="bf16" if place.device.startswith("cuda") else "fp32",
        record=place.device.startswith("cuda"),
        evaluate=Evaluate(every=max(steps // 8, 1), batches=8, patience=None),
        keep=Keep(every=steps, last=1, best=False),
    )
    times = StepTimes()
    trainer = place.train(run, times)
    evaluations = [line for line in read_metrics(trainer.folder) if "valid/loss" in line]
    row = {
        "early": evaluations[0]["valid/loss"],
        "final": evaluations[-1]["valid/loss"],
        "steps per second": times.per_second,
        "guessing": guessing_loss(trainer),
    }
    row["parameters"] = sum(p.numel() for p in trainer.model.parameters())
    return [row if not values["tuning"] else {**row, **fine_tune(run, trainer.folder, values, place)}]


def texts(path: str | None, library: bool = True) -> Source:
    return PythonDocs(library=library) if path is None else TextFiles(path=path, unit="paragraph")


def fine_tune(run: Run, trained: Path, values: Values, place: Place) -> Row:
    """Return the loss and accuracy of the task, or the error if the training diverges."""
    steps, batch = values["tuning"], values["batch"]
    tuning = override(run, {
        "name": "parameters", "model": Pretrained(path=str(trained)), "vocabulary": None, "steps": steps,
        "data": functions(texts(values["data"]), steps * batch, 8 * batch, place),
        "objective": Translate(smoothing=0.0, length=LENGTH, target_length=ANSWER),
        "optimizer.lr": 1e-3, "schedule.warmup": max(steps // 10, 1),
        "evaluate.every": steps, "evaluate.batches": None, "keep.every": steps,
    })  # fmt: skip
    try:
        trainer = place.train(tuning, name="task")
    except FloatingPointError as error:
        return {"task failed": str(error)}
    scores = [line for line in read_metrics(trainer.folder) if "valid/loss" in line]
    return {"task loss": scores[-1]["valid/loss"], "task accuracy": share_right(trainer)}


# -- results ----------------------------------------------------------------------------------------------------------


def losses(rows: Sequence[Row], when: str) -> dict[str, list[float]]:
    """Return row -> losses, one per seed, without trainings that diverged."""
    values: dict[str, list[float]] = {}
    for row in rows:
        if row.get(when) is not None:
            values.setdefault(row["row"], []).append(row[when])
    return values


def ranks(values: Sequence[float]) -> np.ndarray:
    """Return ranks from 0; equal values share their mean rank."""
    each = np.asarray(values)
    return np.array([(each < value).sum() + ((each == value).sum() - 1) / 2 for value in each])


def correlation(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return Spearman's rank correlation."""
    return float(np.corrcoef(ranks(ours), ranks(theirs))[0, 1])


def compare_losses(rows: Sequence[Row], when: str) -> list[tuple[str, float, float]]:
    """Return (row, our mean loss, the paper's loss); `when` is "early" or "final"."""
    means = {name: float(np.mean(each)) for name, each in losses(rows, when).items()}
    return [(name, mean, getattr(row_named(name), f"{when}_loss")) for name, mean in means.items()]


def better_rows(rows: Sequence[Row]) -> list[str]:
    """Return the modifications whose mean final loss is below the vanilla Transformer's by more than twice its standard
    deviation over seeds, the lowest loss first."""
    final = losses(rows, "final")
    base = final.pop(VANILLA)
    limit = float(np.mean(base) - 2 * np.std(base, ddof=1))
    means = {name: float(np.mean(each)) for name, each in final.items()}
    return sorted((name for name, loss in means.items() if loss < limit), key=lambda name: means[name])


def relative(rows: Sequence[Row], field: str) -> dict[str, float]:
    """Return row -> mean of a field as a multiple of the vanilla Transformer's."""
    means = {name: float(np.mean(each)) for name, each in losses(rows, field).items()}
    return {name: value / means[VANILLA] for name, value in means.items()}


def claim(rows: Sequence[Row]) -> Verdict:
    tried = {row["row"] for row in rows} - {VANILLA}
    base, better = losses(rows, "final")[VANILLA], better_rows(rows)
    speed, size = relative(rows, "steps per second"), relative(rows, "parameters")
    cheap = [name for name in better if size[name] <= 1.02 and speed[name] >= 0.98]
    _, ours, theirs = zip(*compare_losses(rows, "final"), strict=True)
    worst = max(base) / losses(rows, "guessing")[VANILLA][0]
    results: dict[str, Any] = {
        "modifications": len(tried),
        "better than vanilla": len(better),
        "vanilla, mean loss": float(np.mean(base)),
        "vanilla, standard deviation over seeds": float(np.std(base, ddof=1)),
        "better, as small and as fast": ", ".join(cheap) or "none",
        **{f"steps per second / vanilla's, {name}": speed[name] for name in better},
        "rank correlation with the paper's final losses": correlation(ours, theirs),
        "failed": sum("failed" in row for row in rows),
        "vanilla, largest loss / loss of guessing": worst,
        **task_figures(rows),
    }
    return Verdict(len(better) < len(tried) / 2, results, worst <= LEARNED)


def task_figures(rows: Sequence[Row]) -> dict[str, float]:
    """Compare the task's losses with our losses before fine-tuning and with the paper's SuperGLUE scores."""
    ours = {name: float(np.mean(each)) for name, each in losses(rows, "task loss").items()}
    if len(ours) < 2:
        return {}
    before = {name: mean for name, mean, _ in compare_losses(rows, "final")}
    results = {
        "rank correlation, task and our final loss": correlation([*ours.values()], [before[name] for name in ours]),
        "rank correlation, task and SuperGLUE": correlation(
            [*ours.values()], [-row_named(name).superglue for name in ours]
        ),
    }
    right = [each for several in losses(rows, "task accuracy").values() for each in several]
    return {**results, "task accuracy, lowest": min(right), "task accuracy, highest": max(right)}


def plot(rows: Sequence[Row]) -> Any:
    """Draw losses and speeds of all rows, and ranks (1 is the best), because most losses are close together. The
    better rows and the vanilla Transformer have their names."""
    compared = sorted(compare_losses(rows, "final"), key=lambda each: each[1])
    figure, axes = figures.new(3, 1, 20, max(4.5, 0.21 * len(compared)))
    names, ours, theirs = zip(*compared, strict=True)
    base, better = losses(rows, "final")[VANILLA], better_rows(rows)
    colors = ["C2" if name in better else "C0" for name in names]
    speed = relative(rows, "steps per second")
    columns = (
        ([loss - float(np.mean(base)) for loss in ours], "loss minus vanilla's (green: better by 2 deviations)"),
        ([speed[name] - 1 for name in names], "steps per second / vanilla's, minus 1"),
    )
    for axis, (values, title) in zip(axes[0], columns):
        axis.barh(names, values, color=colors)
        axis.axvline(0, color="black", linewidth=0.5)
        axis.set_title(title)
        axis.tick_params(labelsize=8)
        axis.invert_yaxis()
    x, y = 1 + ranks(theirs), 1 + ranks(ours)
    for name, *at in zip(names, x, y, strict=True):
        if name in (VANILLA, *better):
            axes[0, 2].annotate(name, at, fontsize=9, xytext=(5, -3), textcoords="offset points")
    axes[0, 2].scatter(x, y, s=12, color=colors)
    axes[0, 2].set(xlabel="rank in the paper", ylabel="rank here", title="final loss")
    axes[0, 2].grid(alpha=0.3)
    return figure
