"""Training steps per second of small models on one GPU, with eager launches and with CUDA graphs (`Run.record`).

The runs come from `anyformer lab` in its full form: a causal model of bytes, a masked model and an encoder-decoder.
Both variants train in one process, in turns; their losses are compared step by step.

    python benchmarks/record_gpu.py [--steps 200] [--rounds 2] [--out FILE.json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from anyformer.data import Data, Held, PythonDocs
from anyformer.lab.training import training_run
from anyformer.lab.trials import Place
from anyformer.objectives.masked import Masked
from anyformer.objectives.span_corruption import SpanCorruption
from anyformer.specs.codec import override
from anyformer.train.progress import Metrics, read_metrics
from anyformer.train.run import Run
from anyformer.train.start import setup
from anyformer_course.experiments import modifications
from anyformer_course.lab import function_task
from anyformer_course.lab.narang_table import row_named
from anyformer_course.lab.runs import READER, reader, texts, writer

TOLERANCE = 1e-2  # relative: bf16, and sums in a different order


def runs(steps: int, batch: int, shared: Path, device: str) -> dict[str, Run]:
    """Name -> run of the lab."""
    data, sizes = texts(None, False), {"steps": steps, "batch": batch, "length": 128, "lr": 1e-3}
    found = {
        f"writer, width {width}": training_run("w", writer(width, depth, width // 32, 128), data, device, **sizes)
        for width, depth in ((64, 2), (128, 2), (256, 4))
    }
    masked = reader("bert", "BertForMaskedLM", 192, 4, 6, 128)
    found["reader, width 192"] = training_run(
        "r", masked, data, device, **sizes, objective=Masked(), vocabulary=READER,
    )  # fmt: skip
    source = PythonDocs(library=False)
    held = Data(train=Held(source=source), valid=Held(source=source, out=True))
    vocabulary = function_task.vocabulary(held, 4096, Place(shared, shared, device))
    for row in ("Vanilla Transformer", "Switch Transformer"):
        model = row_named(row).describe(modifications.size(192, 4, 4096))
        base = training_run("s", model, held, device, **sizes, objective=SpanCorruption())
        found[row] = override(base, {"vocabulary": vocabulary})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        every = runs(options.steps, options.batch, Path(folder) / "shared", options.device)
        report = [measured(name, run, Path(folder), options) for name, run in every.items()]
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


def measured(name: str, run: Run, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    rates: dict[bool, list[float]] = {False: [], True: []}
    losses: dict[bool, list[float]] = {}
    for number in range(options.rounds):
        for recorded in (False, True):
            where = folder / f"{name}-{recorded}-{number}".replace(" ", "-")
            one = override(run, {"record": recorded and options.device.startswith("cuda")})
            setup(one, where, device=options.device, callbacks=[Metrics()], records=folder / "records").fit()
            lines = [line for line in read_metrics(where) if "loss" in line]
            losses[recorded] = [line["loss"] for line in lines]
            first, last = lines[len(lines) // 2 - 1], lines[-1]  # the first half compiles, tunes kernels and captures
            rates[recorded].append((last["step"] - first["step"]) / (last["seconds"] - first["seconds"]))
    apart = max(abs(a - b) / abs(a) for a, b in zip(losses[False], losses[True], strict=True))
    eager, captured = (statistics.median(rates[recorded]) for recorded in (False, True))
    print(f"{name}: {eager:.0f} steps/s eager, {captured:.0f} captured ({captured / eager:.2f}); "
          f"losses differ by {apart:.1e}, {'ok' if apart < TOLERANCE else 'TOO MUCH'}", flush=True)  # fmt: skip
    return {"run": name, "one by one": rates[False], "recorded": rates[True], "apart": apart}


if __name__ == "__main__":
    main()
