"""Training steps per second of every row of Narang et al.'s table at the paper's size, on one device.

A step is a trainer step: forward, loss, backward, clipping and AdamW in bf16, captured in a CUDA graph if possible.
Rows run one after another in one process. The first row is measured again after every ten rows, and ratios are relative
to the nearest of these measurements. The file is written after each row and contains the errors of rows that failed.

    PYTHONPATH=src python benchmarks/modifications_speed.py [--batch 16] [--rows NAME ...] [--out FILE.json]
    PYTHONPATH=src python benchmarks/modifications_speed.py --tiny --out FILE.json     # test the script on a CPU
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from _turns import empty_cache, seconds, warm_up

import anyformer as af
from anyformer.data import Data, PythonDocs
from anyformer.data.loader import StepBatches
from anyformer.objectives.span_corruption import SpanCorruption
from anyformer.train.optim import AdamW
from anyformer.train.run import Batch, Run
from anyformer.train.trainer import Callback, Trainer
from anyformer_course.lab.narang_changes import TableSize
from anyformer_course.lab.narang_table import READ, ROWS, WRITTEN, PaperRow, row_named

WARM, MOST, LONGEST = 6, 20, 1.0  # warm-up steps (the fourth is captured); timed steps; seconds of timing
AGAIN = 10  # rows between two measurements of the first row
TINY = TableSize(
    width=36, inner=96, heads=6, head_width=6, depth=2, vocabulary=100, length=READ, narrow=8, cutoffs=(20, 50),
    softmaxes=3, experts=2, keys=6, found=3, taps=5,
)  # fmt: skip


class Messages(Callback):
    """Collects the trainer's messages, such as why a step was not captured."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_message(self, line: str) -> None:
        self.lines.append(line)


def measure(row: PaperRow, options: argparse.Namespace) -> dict[str, Any]:
    size, read, written = (TINY, 24, 8) if options.tiny else (TableSize(), READ, WRITTEN)
    cuda = options.device.startswith("cuda")
    spec, draw = row.describe(size), torch.Generator().manual_seed(0)
    shapes = {"input_ids": (options.batch, read), "labels": (options.batch, written)}
    batch = {name: torch.randint(5, size.vocabulary, shape, generator=draw) for name, shape in shapes.items()}
    run = Run(
        name="speed", model=spec, data=Data(train=PythonDocs()), objective=SpanCorruption(), steps=10**6,
        batch=Batch(examples=options.batch), precision="bf16", record=cuda, optimizer=AdamW(lr=1e-4),
    )  # fmt: skip
    messages = Messages()
    with tempfile.TemporaryDirectory(prefix="anyformer-speed-") as folder:
        model = af.build(spec, seed=0, device=options.device)
        trainer = Trainer(
            run, Path(folder), model=model, feed=lambda step: None, device=options.device,  # type: ignore[arg-type,return-value]
            callbacks=[messages],
        )  # fmt: skip
        trainer.core.train()
        if cuda:
            torch.cuda.reset_peak_memory_stats()
            batch = {name: value.pin_memory() for name, value in batch.items()}

        def step() -> None:
            trainer.launch(StepBatches(trainer.step, [batch], [True], options.batch, options.batch * written))
            trainer.step += 1

        warm_up(step, 1 if options.tiny else WARM, most=60.0)
        spans: list[float] = []
        while len(spans) < (2 if options.tiny else MOST) and (len(spans) < 3 or sum(spans) < LONGEST):
            spans.append(seconds(step))
    found: dict[str, Any] = {
        "steps per second": round(1 / statistics.median(spans), 3),
        "slowest and fastest": [round(1 / span, 3) for span in (max(spans), min(spans))],
        "captured": trainer.recorder is not None and bool(trainer.recorder.captured),
    }
    if cuda:
        found["peak GB"] = round(torch.cuda.max_memory_allocated() / 1e9, 1)
    return {**found, **({"messages": messages.lines} if messages.lines else {})}


def try_row(row: PaperRow, options: argparse.Namespace) -> dict[str, Any]:
    """Measure a row, or return its error."""
    try:
        return measure(row, options)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:300]}


def with_ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add to each row its ratio to the nearest measurement of the first row."""
    first = {
        i: row["steps per second"] for i, row in enumerate(rows) if row["name"] == ROWS[0].name and "error" not in row
    }
    found = []
    for i, row in enumerate(rows):
        ratio = None
        if first and "error" not in row:
            ratio = round(row["steps per second"] / first[min(first, key=lambda j: abs(j - i))], 3)
        found.append({**row, "ratio": ratio})
    return found


def line(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"{row['name']:<48} FAILED  {row['error']}"
    how = "captured" if row["captured"] else "launched"
    return f"{row['name']:<48} {row['steps per second']:>8.2f} steps/s  {row['ratio'] or 0:>6.3f} x the first \
(paper {row['paper ratio']:.3f})  {how}  {row.get('peak GB', '')}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="*", default=[row.name for row in ROWS], metavar="NAME", help="default: all")
    parser.add_argument("--batch", type=int, default=16, help="examples per step (default: 16)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="default: steps.json in the folder $OUT")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    if options.tiny:
        options.device, options.batch = "cpu", 2
    out = options.out or Path(os.environ.get("OUT", ".")) / "steps.json"

    begin, machine = time.perf_counter(), "cpu" if options.device == "cpu" else torch.cuda.get_device_name()
    page = {"machine": f"{machine}, torch {torch.__version__}", "batch": [options.batch, READ, WRITTEN]}
    others = [name for name in options.rows if name != ROWS[0].name]
    order = [ROWS[0].name]
    for start in range(0, len(others), AGAIN):
        order += [*others[start : start + AGAIN], ROWS[0].name]
    done: list[dict[str, Any]] = []
    for name in order:
        row = row_named(name)
        found = try_row(row, options)
        empty_cache()
        paper = {"paper": row.steps, "paper ratio": round(row.steps / ROWS[0].steps, 3)}
        done.append({"name": name, "at": round(time.perf_counter() - begin, 1), **found, **paper})
        rows = with_ratios(done)
        print(line(rows[-1]), flush=True)
        out.write_text(json.dumps({**page, "rows": rows}, indent=1) + "\n")
    print(f"{page['machine']}: {time.perf_counter() - begin:.0f} s, in {out}")


if __name__ == "__main__":
    main()
