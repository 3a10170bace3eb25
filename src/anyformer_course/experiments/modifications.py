"""Modifications: do small models rank the modifications of a Transformer as the large models of the paper do?

Every row of Narang et al. (`lab/narang_table.py`) is trained as a small model on span corruption for the same number of
steps; the rows that are best in the paper are trained with several seeds. Held-out losses are compared with the paper's
pre-training losses by rank: early, after an eighth of the steps, and at the end.

Each row is then fine-tuned on one task: given the name and the body of a Python function, generate its parameters. Test
functions are from held-out texts. An answer is correct if all of its tokens are correct.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from anyformer.data import Data, Held, JSONLines, PythonDocs, Source, Stored, TextFiles, TrainedBPE, texts_of
from anyformer.kernels.loss import IGNORED
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.trials import Place, Row, Trial, Values, write
from anyformer.look import figures
from anyformer.objectives.span_corruption import SpanCorruption
from anyformer.objectives.translate import Translate
from anyformer.specs.codec import override
from anyformer.train.optim import AdamW, Cosine
from anyformer.train.progress import read_metrics
from anyformer.train.run import Batch, Evaluate, Keep, Pretrained, Run
from anyformer.train.trainer import Trainer
from anyformer_course.lab.narang_changes import TableSize
from anyformer_course.lab.narang_table import ROWS, row_named

CLAIM = "the rank correlation of our final losses with the paper's is above 0.3"
FEW = [  # rows of every group
    "Vanilla Transformer", "ELU", "SwiGLU", "RMS Norm", "Fixup", "Block sharing", "Untied embeddings",
    "Adaptive softmax", "Lightweight convolution", "Synthesizer (random)", "Switch Transformer", "Product key memory",
]  # fmt: skip
FORMS = {
    "tiny": Form(
        0.1, 0.1, {"width": 24, "depth": 1, "tokens": 320, "steps": 8, "tuning": 4, "batch": 2, "few": 3, "seeds": 1}
    ),
    "small": Form(
        3, 1,
        {"width": 48, "depth": 2, "tokens": 1024, "steps": 120, "tuning": 20, "batch": 16, "few": 12, "seeds": 1},
    ),
    "medium": Form(
        60, 5,
        {"width": 144, "depth": 3, "tokens": 4096, "steps": 400, "tuning": 150, "batch": 64, "few": None, "seeds": 1},
    ),
    "full": Form(
        600, 22,
        {"width": 192, "depth": 4, "tokens": 4096, "steps": 1500, "tuning": 300, "batch": 64, "few": None, "seeds": 3},
    ),
}  # fmt: skip
DIVERGES = True  # divergence is a result of this experiment
LENGTH, SENTINELS, LEADING = 128, 32, 1.825  # LEADING: rows with at most this final loss in the paper get more seeds
ANSWER = 12  # tokens of a function's parameters; the rest is cut off
# indentation, name, parameters (without brackets), body
FUNCTION = re.compile(r"^([ \t]*)def (\w+)\(([^()\[\]]+)\).*:[ \t]*\n((?:(?:\1[ \t]+.*|[ \t]*)\n)+)", re.M)


def trials(
    width: int, depth: int, tokens: int, steps: int, tuning: int, batch: int, few: int | None, seeds: int,
    data: str | None = None,
) -> list[Trial]:  # fmt: skip
    """Return a trial per row, then more seeds of the leading rows."""
    sizes = {"width": width, "depth": depth, "tokens": tokens}
    same = {**sizes, "steps": steps, "tuning": tuning, "batch": batch, "data": data}
    rows = [row for row in ROWS if few is None or row.name in FEW[:few]]
    leading = [row for row in rows if row.final_loss <= LEADING or row is ROWS[0]]
    every = [*((row, 0) for row in rows), *((row, seed) for seed in range(1, seeds) for row in leading)]
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
    trainer = place.train(run)
    evaluations = [line for line in read_metrics(trainer.folder) if "valid/loss" in line]
    row = {"early": evaluations[0]["valid/loss"], "final": evaluations[-1]["valid/loss"], "seconds": trainer.seconds}
    row["parameters"] = sum(p.numel() for p in trainer.model.parameters())
    return [{**row, **fine_tune(run, trainer.folder, values, place)}]


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


def functions(source: Source, train: int, valid: int, place: Place) -> Data:
    """Return at most `train` and `valid` examples {"source": a function without parameters, "target": these}."""

    def make(folder: Path) -> None:
        seen = set[tuple[str, str]]()
        for name, out, most in (("train", False, train), ("valid", True, valid)):
            every = texts_of(Held(source=source, out=out), ("text",))
            pairs = sorted({pair for text in every for pair in without_parameters(text)} - seen)  # no duplicates
            seen |= set(pairs)
            chosen = np.random.default_rng(0).permutation(len(pairs))[:most]
            lines = (json.dumps(dict(zip(("source", "target"), pairs[i]))) for i in chosen)
            write(folder / f"{name}.jsonl", "".join(f"{line}\n" for line in lines))

    folder = Path(place.data("functions", make)) / "functions"
    return Data(train=JSONLines(path=str(folder / "train.jsonl")), valid=JSONLines(path=str(folder / "valid.jsonl")))


def without_parameters(text: str) -> Iterator[tuple[str, str]]:
    """Yield (name and body, names of the parameters) of the functions in a text, without nested functions."""
    for _, name, parameters, body in FUNCTION.findall(f"{text}\n"):
        names = [re.split("[:=]", each)[0].strip() for each in parameters.split(",")]
        yield f"{name}\n{body.rstrip()}", ", ".join(filter(None, names))


def share_right(trainer: Trainer) -> float:
    """Return the share of validation examples with only correct tokens, which greedy decoding generates exactly."""
    assert trainer.valid is not None
    right: list[bool] = []
    with trainer.eval_mode(), trainer.autocast(), trainer.valid() as batches:
        for batch in (trainer.to_device(batch) for ready in batches for batch in ready.batches):
            labels = batch["labels"]
            predictions = trainer.model(**batch).logits.argmax(-1)
            right += ((predictions == labels) | (labels == IGNORED)).all(1).tolist()
    return float(np.mean(right))


def vocabulary(data: Data, tokens: int, place: Place) -> Stored:
    """Return the vocabulary of all trials, which the first trial trains."""
    folder = place.shared / "vocabulary"
    place.shared.mkdir(parents=True, exist_ok=True)
    with FileLock(place.shared / ".vocabulary.lock"):
        if not (folder / "tokenizer_config.json").is_file():  # the last file to be written
            special = {"pad_token": "<pad>", "eos_token": "</s>"}
            described = TrainedBPE(size=tokens, special=special, sentinels=SENTINELS)
            described.make(texts_of(data.train, ("text",)), folder)
    return Stored(path=str(folder))


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


def claim(rows: Sequence[Row]) -> Verdict:
    results: dict[str, Any] = {"rows": len(losses(rows, "final")), "trainings": len(rows)}
    for when in ("final", "early"):
        _, ours, theirs = zip(*compare_losses(rows, when), strict=True)
        results[f"rank correlation, {when}"] = correlation(ours, theirs)
    several = {name: each for name, each in losses(rows, "final").items() if len(each) > 1}
    if several:
        results["spread over seeds"] = float(np.mean([np.std(each, ddof=1) for each in several.values()]))
    results |= task_figures(rows)
    best = sorted(compare_losses(rows, "final"), key=lambda each: each[1])
    results["best"], results["failed"] = ", ".join(name for name, *_ in best[:5]), sum("failed" in row for row in rows)
    return Verdict(results["rank correlation, final"] > 0.3, results)


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
    """Draw ranks (1 is the best), because most losses are close together."""
    figure, axes = figures.new(2, 1, 15, 7)
    for axis, when in zip(axes[0], ("early", "final"), strict=True):
        names, ours, theirs = zip(*compare_losses(rows, when), strict=True)
        x, y = 1 + ranks(theirs), 1 + ranks(ours)
        for name, *at in zip(names, x, y, strict=True):
            axis.annotate(name, at, fontsize=5.5, xytext=(3, -2), textcoords="offset points")
        axis.scatter(x, y, s=12)
        title = f"{when} loss: rank correlation {correlation(ours, theirs):.2f}"
        axis.set(xlabel="rank in the paper", ylabel="rank here", title=title)
        axis.grid(alpha=0.3)
    return figure
