"""Train a ViT, a Swin and a ResNet on Fashion-MNIST from scratch, and the ViT and the ResNet also on fewer images.

Each training is a recipe. `--sizes` lists sizes of random subsets of the 60,000 training images; smaller subsets are
contained in larger ones. The result is the accuracy on the 10,000 test images after the last step; nothing is selected
by it. The file fashion-MODELS.json in `--out` is rewritten after every evaluation, so that several processes can run at
once. `--minutes` limits each training, and its schedule is shortened accordingly. `--plot` draws the results of all
files (needs matplotlib).

    python benchmarks/fashion.py --data data --out results [--models vit swin resnet] [--sizes 1000 5000 20000]
    python benchmarks/fashion.py --out results --plot docs/results
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from anyformer import count
from anyformer.cli.settings import setting
from anyformer.data import First
from anyformer.recipes import recipe
from anyformer.specs.codec import override
from anyformer.train.deadline import Deadline
from anyformer.train.start import setup
from anyformer.train.trainer import Callback, StepResult, Trainer

RECIPES = {"vit": "fashion-mnist", "swin": "fashion-mnist-swin", "resnet": "fashion-mnist-resnet"}
ALL = 60_000
STEPS = {1000: 1500, 5000: 3000, 20_000: 4000}  # number of images -> steps, for both models


class Curve(Callback):
    """Adds losses and accuracies to `row` and writes it. Computes accuracy here to avoid a dependency on metrics."""

    def __init__(self, row: dict[str, Any], write: Any) -> None:
        self.row, self.write, self.spans, self.loss = row, write, [0.0], float("nan")
        self.begin = time.perf_counter()

    def on_start(self, trainer: Trainer) -> None:
        records = list(trainer.splits.valid)
        self.test = [trainer.objective.collate(records[i : i + 1000], 0) for i in range(0, len(records), 1000)]

    def accuracy(self, trainer: Trainer) -> float:
        """Accuracy of the averaged weights (if the run averages) on all test images."""
        with trainer.eval_mode(), trainer.autocast():
            moved = map(trainer.to_device, self.test)
            right = [(trainer.model(b["pixel_values"]).logits.argmax(-1) == b["labels"]).float().mean() for b in moved]
        return float(torch.stack(right).mean())

    def on_message(self, line: str) -> None:
        print(line, flush=True)

    def on_step(self, trainer: Trainer, done: StepResult) -> None:
        self.loss = done.loss
        self.spans.append(done.seconds)

    def on_evaluate(self, trainer: Trainer, scores: dict[str, float]) -> None:
        seconds = time.perf_counter() - self.begin
        middle = sorted(self.spans)[len(self.spans) // 2]
        scores = {**scores, "accuracy": round(self.accuracy(trainer), 4)}
        point = {"step": trainer.step, "seconds": round(seconds, 1), "training_loss": self.loss, **scores}
        self.row["curve"].append(point)
        self.row |= {"accuracy": scores["accuracy"], "steps": trainer.step, "ms_a_step": round(1e3 * middle, 2)}
        print(f"{self.row['name']}: step {trainer.step} of {trainer.steps}, {seconds:.0f} s, loss {self.loss:.3f}, "
              f"accuracy {scores['accuracy']:.4f}", flush=True)  # fmt: skip
        self.write()


def train(model: str, size: int, options: argparse.Namespace, results: dict[str, Any], write: Any) -> None:
    run = recipe(RECIPES[model], options.data)
    changes: dict[str, Any] = {"keep.every": 10**6, "evaluate.metrics": (), "evaluate.best": "loss"}
    if size < ALL:
        changes |= {"data.train": First(source=run.data.train, count=size, seed=0), "steps": STEPS.get(size, 2000)}
    run = override(run, {**changes, **dict(setting(text) for text in options.set)})
    name = f"{model} {size}"
    row = results[name] = {
        "name": name, "model": model, "pictures": size, "parameters": count(run.model).parameters, "planned": run.steps,
        "curve": [],
    }  # fmt: skip
    begin = time.monotonic()
    end = Deadline(begin + 60 * options.minutes, most=run.steps, slow=20)
    with tempfile.TemporaryDirectory(prefix="anyformer-fashion-") as folder:
        watch = Curve(row, write)
        trainer = setup(run, Path(folder) / "run", device=options.device, callbacks=[watch, end], tell=print)
        trainer.fit()
    row |= {"seconds": round(time.monotonic() - begin, 1), "done": True}
    if torch.cuda.is_available():
        row["peak_GB"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
    write()


def plot(results: dict[str, Any], folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2))
    for model in RECIPES:
        if row := results.get(f"{model} {ALL}"):
            steps, scores = zip(*((point["step"], 100 * point["accuracy"]) for point in row["curve"]), strict=True)
            left.plot(steps, scores, marker=".", label=f"{model}, {row['parameters'] / 1e6:.1f}M: {scores[-1]:.2f} %")
        rows = sorted((r for r in results.values() if r["model"] == model), key=lambda r: r["pictures"])
        if len(rows) > 1:
            right.plot([r["pictures"] for r in rows], [100 * r["accuracy"] for r in rows], marker="o", label=model)
    left.set(xlabel="step", ylabel="accuracy on the 10,000 test images, %", ylim=(88, 96), title="60,000 images")
    right.set(xlabel="training images", xscale="log", title="fewer images")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.tight_layout()
    figure.savefig(folder / "fashion.svg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", nargs="*", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--sizes", nargs="*", type=int, default=[], help="also train ViT and ResNet on SIZES images")
    parser.add_argument("--without-all", action="store_true", help="train only on the sizes in --sizes")
    parser.add_argument("--minutes", type=float, default=5.0, help="time limit for each training (default: 5)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--set", nargs="*", default=[], metavar="PATH=VALUE")
    parser.add_argument("--plot", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"fashion-{'-'.join(options.models)}.json"
    if options.plot:
        found = [json.loads(each.read_text()) for each in sorted(options.out.glob("fashion*.json"))]
        return plot({name: row for each in found for name, row in each.items()}, options.plot)
    results: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}

    def write() -> None:
        file.with_suffix(".tmp").write_text(json.dumps(results, indent=1))
        file.with_suffix(".tmp").replace(file)

    for size in sorted({*options.sizes, *([] if options.without_all else [ALL])}, reverse=True):
        for model in options.models if size == ALL else [m for m in options.models if m != "swin"]:
            train(model, size, options, results, write)


if __name__ == "__main__":
    main()
