"""The real training loop on one CUDA device: a recipe with its data loading, optimiser, clipping and metrics.

Prints tokens a second (median over the last steps, and the spread), the share of 989 TFLOP/s that the model's products
come to (6 FLOPs a parameter and token, attention added), and the highest memory. The texts are the documentation and
source of this machine's own Python.

    python benchmarks/train_gpu.py [--recipe gpt2_124m] [--steps 150] [--set path=value ...]
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch

from anyformer.cli.settings import setting
from anyformer.data import Data, PythonDocs
from anyformer.specs.codec import override
from anyformer.train.start import setup
from anyformer.train.trainer import Callback, StepResult, Trainer

PEAK = 989e12  # bf16, of an H100 or H200


class Clock(Callback):
    def __init__(self) -> None:
        self.times: list[float] = []
        self.losses: list[float] = []
        self.tokens = 0

    def on_step(self, trainer: Trainer, done: StepResult) -> None:
        self.times.append(time.perf_counter())
        self.losses.append(done.loss)
        self.tokens = done.tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="gpt2_124m")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--skip", type=int, default=50, help="steps at the start that are not measured")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--set", nargs="*", default=[], metavar="PATH=VALUE")
    options = parser.parse_args()
    run = importlib.import_module(f"anyformer.recipes.{options.recipe}").run()
    never = {"keep.every": 10**6, "evaluate.every": 10**6, "evaluate.sample": None}
    changes = {"steps": options.steps, **never, **dict(setting(text) for text in options.set)}
    run = override(run.replace(data=Data(train=PythonDocs())), changes)
    clock = Clock()
    with tempfile.TemporaryDirectory(prefix="anyformer-train-") as folder:
        start = time.perf_counter()
        trainer = setup(run, Path(folder) / "run", device=options.device, callbacks=[clock], tell=print)
        print(f"ready after {time.perf_counter() - start:.1f} s", flush=True)
        trainer.checkpoints.save = lambda *args, **kwargs: Path(folder)  # type: ignore[method-assign]
        trainer.fit()
    spans = [b - a for a, b in zip(clock.times[options.skip :], clock.times[options.skip + 1 :])]
    size = sum(p.numel() for p in {id(p): p for p in trainer.model.parameters()}.values())
    length, depth, width = run.batch.length, trainer.model.spec.decoder.depth, trainer.model.spec.width
    flops = 6 * size + 6 * depth * width * length  # causal: each token sees half of the row on average
    rates = sorted(clock.tokens / span for span in spans)
    whole = clock.tokens * len(spans) / sum(spans)
    print(json.dumps({
        "recipe": run.name, "tokens_a_step": clock.tokens, "tokens_s_median": round(statistics.median(rates)),
        "tokens_s_whole": round(whole), "10-90": [round(rates[len(rates) // 10]), round(rates[-len(rates) // 10])],
        "share_of_peak": round(whole * flops / PEAK, 3), "loss_first_last": [clock.losses[0], clock.losses[-1]],
        "peak_GB": round(torch.cuda.max_memory_allocated() / 1e9, 2) if torch.cuda.is_available() else None,
        "torch": torch.__version__,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
