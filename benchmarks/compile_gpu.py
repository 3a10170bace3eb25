"""Compare compiling block by block with compiling the whole graph: seconds of the first step, ms per step and memory.

Every case runs `compile=true` and `compile="whole"` in separate processes on one CUDA GPU. They compile at the same
time with empty caches; then they are timed in turns, one at a time (a lock). New processes repeat the first step with
the filled caches. Steps are trainer steps (bf16 autocast, fused AdamW, no dropout). Two cases take about 100 s.

    PYTHONPATH=src python benchmarks/compile_gpu.py --cases bert-base llama3.2-1b [--out FILE.json]
    PYTHONPATH=src python benchmarks/compile_gpu.py --cases vit-b16 gpt2
    PYTHONPATH=src python benchmarks/compile_gpu.py --tiny --cases gpt2     # test the script on a CPU
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from check_gpu import exclusive, without_dropout
from memory_gpu import CASES, tensors

import anyformer as af
from anyformer.data import Data, PythonDocs
from anyformer.data.loader import StepBatches
from anyformer.specs.codec import decode, encode, override
from anyformer.train.run import Batch, Run
from anyformer.train.trainer import Callback, StepResult, Trainer

HOWS = ("block", "whole")
LONGEST = 150.0  # seconds that a process waits until the other processes have compiled
WARM, ROUNDS, STEPS = 4, 4, 8  # steps before timing; turns; steps per turn (the first is not counted)


class Turns(Callback):
    """Measures the first step, then turns of STEPS steps, during which no other process uses the device."""

    def __init__(self, lock: Path, name: str, count: int) -> None:
        self.lock, self.count, self.exit = lock, count, contextlib.ExitStack()
        self.ready = lock.with_name(f"{name}.ready")
        self.begin, self.first, self.times = time.perf_counter(), 0.0, []
        self.last: float | None = None

    def on_step(self, trainer: Trainer, done: StepResult) -> None:
        now = time.perf_counter()
        self.first = self.first or now - self.begin
        if self.last is not None:
            self.times.append(now - self.last)
        self.last = now
        if done.step == WARM:  # start timing only when no process compiles
            self.ready.touch()
            while time.perf_counter() - self.begin < LONGEST and len([*self.lock.parent.glob("*.ready")]) < self.count:
                time.sleep(0.1)
        if done.step >= WARM and (done.step - WARM) % STEPS == 0:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.exit.close()
            time.sleep(0.05)  # let the other process take its turn
            self.exit.enter_context(exclusive(self.lock))
            self.last = None


def train(name: str, how: str, options: argparse.Namespace) -> dict[str, Any]:
    case = next(case for case in CASES if case.name == name)
    spec = override(af.spec(case.name), {**case.changes, **(case.tiny if options.tiny else {})})
    spec = decode(without_dropout(encode(spec)))
    if options.tiny:
        case = dataclasses.replace(case, batch=2, length=16, source=case.source and 24)
    steps = 1 if options.once else WARM + ROUNDS * STEPS
    run = Run(
        name=name, model=spec, data=Data(train=PythonDocs()), objective=case.objective, steps=steps,
        batch=Batch(examples=case.batch), precision="bf16", record=False,
        compile=True if how == "block" else "whole",
    )  # fmt: skip
    batch = tensors(case, spec)
    batches = [StepBatches(step, [batch], [True], case.batch, case.batch * case.length) for step in range(steps)]
    model, turns = af.build(spec, seed=0, device=options.device), Turns(options.lock, f"{name}-{how}", options.count)
    with tempfile.TemporaryDirectory(prefix="anyformer-compile-") as folder, turns.exit:
        trainer = Trainer(
            run, Path(folder), model=model, feed=lambda step: contextlib.nullcontext(batches), device=options.device,
            callbacks=[turns],
        )  # fmt: skip
        trainer.checkpoints.save = lambda *args, **kwargs: Path(folder)  # type: ignore[method-assign]
        turns.begin = time.perf_counter()
        trainer.fit()
    found: dict[str, Any] = {"first_s": round(turns.first, 1), "loss": trainer.last.loss if trainer.last else None}
    found["graphs"] = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    if not options.once:
        times = [1000 * t for t in turns.times[WARM:]]
        found |= {"ms": round(statistics.median(times), 2), "spread": [round(min(times), 2), round(max(times), 2)]}
        found["peak_GB"] = round(torch.cuda.max_memory_allocated() / 1e9, 2) if torch.cuda.is_available() else None
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=["bert-base", "llama3.2-1b", "vit-b16", "gpt2"])
    parser.add_argument("--seconds", type=float, default=200.0, help="time limit for each of the two passes")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--device", default="cuda")
    for name in ("--child", "--how", "--lock"):
        parser.add_argument(name, help=argparse.SUPPRESS, type=Path if name == "--lock" else str)
    parser.add_argument("--count", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    if options.tiny:
        options.device = "cpu"
    if options.child:
        print(json.dumps(train(options.child, options.how, options)))
        return
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="anyformer-compile-") as folder:
        for once in (False, True):
            children = {}
            for name in options.cases:
                for how in HOWS:
                    key = f"{name}-{how}"
                    caches = {
                        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/{key}",
                        "TRITON_CACHE_DIR": f"{folder}/{key}/triton",
                    }
                    command = [sys.executable, __file__, "--child", name, "--how", how, "--device", options.device]
                    command += [
                        "--lock",
                        f"{folder}/lock",
                        "--count",
                        str(len(HOWS) * len(options.cases)),
                        *["--once"] * once,
                        *["--tiny"] * options.tiny,
                    ]
                    with Path(f"{folder}/{key}.log").open("w") as log:
                        children[key] = subprocess.Popen(
                            command, stdout=subprocess.PIPE, stderr=log, text=True, env=os.environ | caches
                        )
            end = time.perf_counter() + options.seconds
            for key, child in children.items():
                try:
                    output, _ = child.communicate(timeout=max(1.0, end - time.perf_counter()))
                    found = json.loads(output.strip().splitlines()[-1])
                except (subprocess.TimeoutExpired, IndexError, json.JSONDecodeError) as error:
                    child.kill()
                    found = {"error": f"{type(error).__name__} {Path(f'{folder}/{key}.log').read_text()[-600:]}"}
                found = {"warm_" + name: value for name, value in found.items()} if once else found
                results.setdefault(key, {}).update(found)
                print(f"{key:<20} {found}", flush=True)
                if options.out:
                    options.out.write_text(json.dumps(results, indent=1) + "\n")
    for name in options.cases:
        block, whole = (results[f"{name}-{how}"] for how in HOWS)
        if "ms" in block and "ms" in whole:
            print(f"{name:<14} block / whole: {block['ms'] / whole['ms']:.3f} x time per step, first step "
                  f"{block['first_s']} / {whole['first_s']} s, warm {block.get('warm_first_s')} / "
                  f"{whole.get('warm_first_s')} s, {block['peak_GB']} / {whole['peak_GB']} GB")  # fmt: skip
    if failed := [name for name, found in results.items() if "error" in found]:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
