"""The second half of `make test-gpu`: compiled decoding and compiled training steps at full size on one CUDA GPU.

Six families train: the losses of three compiled steps must equal the losses of the plain model (no dropout, bf16
autocast). Llama-1B decodes with default settings and compiled; both must write the tokens of the plain path up to a
tie. Each case runs in a separate process; all compile at the same time, and a lock lets only one be timed. Figures are
printed next to the ones in docs/results/gpu.json (`--record` replaces them).

    PYTHONPATH=src python benchmarks/check_gpu.py [--cases gpt2 decode ...] [--out FILE.json] [--record]
    PYTHONPATH=src python benchmarks/check_gpu.py --tiny --cases gpt2 bert-base     # test the script on a CPU
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

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from _turns import exclusive
from memory_gpu import CASES, Case, tensors

import anyformer as af
from anyformer.data import Data, PythonDocs
from anyformer.data.loader import StepBatches
from anyformer.specs.codec import decode, encode, override
from anyformer.train.run import Batch, Run
from anyformer.train.trainer import Callback, StepResult, Trainer

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "gpu.json"
TRAINED = ("gpt2", "bert-base", "t5-base", "vit-b16", "llama3.2-1b", "mixtral-8x7b")
COMPARED, WARM, TIMED = 3, 5, 25  # steps whose losses are compared; steps before timing; steps timed
CLOSE = 5e-3  # relative tolerance of bf16 losses after updates that add in a different order
TIE = 0.02  # tokens whose bf16 scores differ by less (relative to the highest score) are a tie


def without_dropout(description: Any) -> Any:
    """Set every dropout of a description (as JSON) to 0: compiled and plain steps draw different random numbers."""
    if isinstance(description, dict):
        return {
            key: 0.0 if "dropout" in key and isinstance(value, float) else without_dropout(value)
            for key, value in description.items()
        }
    return [without_dropout(item) for item in description] if isinstance(description, list) else description


class StepTimes(Callback):
    """Collects the loss of every step and the time after it. The first timed step waits for the lock."""

    def __init__(self, lock: Path) -> None:
        self.losses: list[float] = []
        self.times: list[float] = []
        self.first = time.perf_counter()
        self.exit, self.lock = contextlib.ExitStack(), lock

    def on_step(self, trainer: Trainer, done: StepResult) -> None:
        if not self.losses:
            self.first = time.perf_counter() - self.first
        self.losses.append(done.loss)
        if done.step == WARM and trainer.run.compile:
            self.exit.enter_context(exclusive(self.lock))
        if done.step > WARM:
            self.times.append(time.perf_counter())


def train(case: Case, compiled: bool, options: argparse.Namespace) -> tuple[StepTimes, dict[str, Any]]:
    steps = WARM + TIMED + 1 if compiled else COMPARED
    spec = override(af.spec(case.name), {**case.changes, **(case.tiny if options.tiny else {})})
    spec = decode(without_dropout(encode(spec)))
    if options.tiny:
        case = dataclasses.replace(case, batch=2, length=16, source=case.source and 24)
    run = Run(
        name=case.name, model=spec, data=Data(train=PythonDocs()), objective=case.objective, steps=steps,
        batch=Batch(examples=case.batch), precision="bf16", compile=compiled and not options.tiny,
    )  # fmt: skip
    batch, tokens = tensors(case, spec), case.batch * case.length
    batches = [StepBatches(step, [batch], [True], case.batch, tokens) for step in range(steps)]
    model, clock = af.build(spec, seed=0, device=options.device), StepTimes(options.lock)
    with tempfile.TemporaryDirectory(prefix="anyformer-check-") as folder, clock.exit:
        trainer = Trainer(
            run, Path(folder), model=model, feed=lambda step: contextlib.nullcontext(batches), device=options.device,
            callbacks=[clock],
        )  # fmt: skip
        trainer.checkpoints.save = lambda *args, **kwargs: Path(folder)  # type: ignore[method-assign]
        trainer.fit()
    spans = [b - a for a, b in zip(clock.times, clock.times[1:])]
    unit, per_step = ("images/s", case.batch) if "pixel_values" in batch else ("tokens/s", tokens)
    figures = {
        "figure": round(per_step / statistics.median(spans)) if spans else None, "unit": f"{unit}, compiled training",
        "spread": [round(per_step / t) for t in (max(spans), min(spans))] if spans else None,
        "first_step_s": round(clock.first, 1),
        "peak_GB": round(torch.cuda.max_memory_allocated() / 1e9, 2) if torch.cuda.is_available() else None,
    }  # fmt: skip
    return clock, figures


def check_training(name: str, options: argparse.Namespace) -> dict[str, Any]:
    case = next(case for case in CASES if case.name == name)
    plain, _ = train(case, False, options)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    compiled, figures = train(case, True, options)
    pairs = list(zip(plain.losses, compiled.losses[:COMPARED], strict=True))
    figures["losses"] = [[round(a, 4), round(b, 4)] for a, b in pairs]
    if not all(abs(a - b) <= CLOSE * abs(a) for a, b in pairs):
        figures["error"] = f"compiled and plain losses differ: {figures['losses']}"
    return figures


@torch.no_grad()
def check_decoding(compiled: bool, options: argparse.Namespace) -> dict[str, Any]:
    """Time whole calls and compare tokens: batch 1, prompt of 128 tokens, 256 new tokens, bf16."""
    from anyformer.transforms.fuse import fuse
    from anyformer.transforms.pack import pack

    model = af.build(af.spec("llama3.2-1b"), seed=0, device=options.device, dtype=torch.bfloat16).eval()
    ids = torch.randint(0, 1000, (1, 128), generator=torch.Generator().manual_seed(0)).to(options.device)

    def write(fast: bool | None) -> torch.Tensor:
        return af.generate(model, ids, max_new_tokens=256, eos_token_id=[], compile=fast)

    plain = write(False)
    if compiled:
        pack(fuse(model))
    fast = True if compiled else None
    start = time.perf_counter()
    tokens = write(fast)
    first = time.perf_counter() - start
    times = []
    with exclusive(options.lock):
        for _ in range(6):
            torch.cuda.synchronize()
            start = time.perf_counter()
            write(fast)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
    same = int((plain == tokens)[0, 128:].long().cumprod(0).sum())
    if same < 256:  # the first token that differs must be a tie; later tokens depend on it
        scores = model(input_ids=plain[:, : 128 + same], logits_to_keep=1).logits[0, -1].float()
        gap = float((scores[plain[0, 128 + same]] - scores[tokens[0, 128 + same]]) / scores.abs().max())
    figures = {
        "figure": round(256 / statistics.median(times)), "unit": "tokens/s, decoding Llama-1B, batch 1",
        "spread": [round(256 / t) for t in (max(times), min(times))], "first_step_s": round(first, 1),
        "peak_GB": round(torch.cuda.max_memory_allocated() / 1e9, 2), "same_tokens": f"first {same} of 256",
    }  # fmt: skip
    if same < 256 and gap > TIE:
        figures["error"] = f"token {same} differs from the plain path, where its score is lower by {gap:.1%}"
    return figures


def check(name: str, options: argparse.Namespace) -> dict[str, Any]:
    if name in TRAINED:
        return check_training(name, options)
    return check_decoding(name == "decode-compiled", options)


def line(name: str, found: dict[str, Any], recorded: dict[str, Any]) -> str:
    if "figure" not in found:
        return f"{name:<16} FAILED  {found['error']}"
    before = recorded.get(name, {}).get("figure")
    ratio = f"{found['figure'] / before:5.2f} x the {before:,} in docs/results" if before and found["figure"] else ""
    more = f"first {found['first_step_s']} s, {found['peak_GB']} GB"
    text = f"{name:<16} {found['figure'] or 0:>9,} {found['unit']:<38} {ratio:<34} {more}"
    return f"{text}  FAILED  {found['error']}" if "error" in found else text


def main() -> None:
    names = ("decode", "decode-compiled", *TRAINED)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=names, choices=names, metavar="CASE", help=", ".join(names))
    parser.add_argument("--seconds", type=float, default=200.0, help="time limit for all cases (default: 200)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="also write the figures to this file")
    parser.add_argument("--record", action="store_true", help=f"replace the figures in {RESULTS.name}")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--lock", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    if options.tiny:
        options.device = "cpu"
    if options.child:
        print(json.dumps(check(options.child, options)))
        return

    begin, recorded = time.perf_counter(), json.loads(RESULTS.read_text())["figures"] if RESULTS.exists() else {}
    with tempfile.TemporaryDirectory(prefix="anyformer-check-") as folder:
        lock = Path(folder) / "lock"
        more = ["--lock", str(lock), "--device", options.device, *(["--tiny"] if options.tiny else [])]
        children = {}
        for name in options.cases:
            with (Path(folder) / name).open("w") as log:
                command = [sys.executable, __file__, "--child", name, *more]
                children[name] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        figures: dict[str, dict[str, Any]] = {}
        for name, child in children.items():
            try:
                output, _ = child.communicate(timeout=max(1.0, begin + options.seconds - time.perf_counter()))
                figures[name] = json.loads(output.strip().splitlines()[-1])
            except (subprocess.TimeoutExpired, IndexError, json.JSONDecodeError) as error:
                child.kill()
                last = (Path(folder) / name).read_text().strip()[-1500:]
                figures[name] = {"error": f"{type(error).__name__}\n{last}"}
            print(line(name, figures[name], recorded), flush=True)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    page = {"machine": f"{device}, torch {torch.__version__}", "command": "make test-gpu", "figures": figures}
    print(f"{page['machine']}: {time.perf_counter() - begin:.0f} s")
    for path in (options.out, RESULTS if options.record else None):
        if path is not None:
            path.write_text(json.dumps(page, indent=1) + "\n")
    if failed := [name for name, found in figures.items() if "error" in found]:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
