"""Train the recipe `fashion-dit` on one device, generate 1,000 images and classify them with a classifier that is
trained separately on real images (judge.py).

    python benchmarks/fashion_dit.py OUT --data data [--latents] [--seconds 240] [--judge-seconds 60] [--device cuda]

With --latents, the recipe is `fashion-latent-dit`, and its autoencoder (`fashion-kl`) is trained for a quarter of the
time. The images are kept and augmented on the device. Writes to OUT: figures.json (rewritten after each stage),
samples.npz (100 images per label), sheet.png, loss.png and metrics.jsonl.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import judge
import numpy as np
import torch
from torch import Tensor

import anyformer as af
from anyformer.cli.settings import setting
from anyformer.data import StepBatches
from anyformer.inputs.contact_sheet import to_bytes, write_sheet
from anyformer.objectives.diffuse import Diffuse
from anyformer.recipes import recipe
from anyformer.recipes.fashion_mnist import LABELS
from anyformer.specs.codec import override
from anyformer.tasks.task import TaskModel
from anyformer.train.deadline import Deadline
from anyformer.train.progress import Metrics, read_metrics
from anyformer.train.trainer import Callback, StepResult, Trainer


class PrintProgress(Callback):
    def on_message(self, line: str) -> None:
        print(line, flush=True)

    def on_step(self, trainer: Trainer, done: StepResult) -> None:
        if done.step % 200 == 0 or done.step < 4:
            steps, name = f"{done.step} of about {trainer.steps}", trainer.run.name
            print(f"{name}: step {steps}, loss {done.loss:.4f}, {done.seconds:.3f} s", flush=True)


def batches(run: Any, pictures: Tensor, labels: Tensor, step: int, device: Any) -> Iterator[StepBatches]:
    """Yield batches as the objective's `vary` and `collate` make them, but computed on the device."""
    objective, count = run.objective, run.batch.examples
    random = torch.Generator(device).manual_seed(run.seed + step)
    mean, std = objective.mean[0], objective.std[0]

    def chance(*shape: int) -> Tensor:
        return torch.rand(shape, device=device, generator=random)

    for number in itertools.count(step):
        rows = torch.randint(len(pictures), (count,), device=device, generator=random)
        x = pictures[rows][:, None].float().div(255).sub(mean).div(std)
        x = torch.where(chance(count, 1, 1, 1) < objective.flip, x.flip(-1), x)
        batch = {"pixel_values": x}
        if isinstance(objective, Diffuse):
            classes = torch.where(chance(count) < objective.unlabelled, len(objective.labels), labels[rows])
            noise = torch.randn(count, *objective.noise_shape, device=device, generator=random)
            batch |= {"noise": noise, "moment": chance(count), "class_labels": classes}
        yield StepBatches(number, [batch], [True], count, count)


def train(run: Any, folder: Path, data: tuple[Tensor, Tensor], seconds: float, device: Any) -> Any:
    folder.mkdir()
    pictures, labels = (each.to(device) for each in data)

    @contextlib.contextmanager
    def feed(step: int) -> Iterator[Iterator[StepBatches]]:
        yield batches(run, pictures, labels, step, device)

    watch = [Metrics(), PrintProgress(), Deadline(time.monotonic() + seconds, slow=10)]
    model = af.build(run.model, seed=run.seed)
    trainer = Trainer(run, folder, model=model, objective=run.objective, feed=feed, device=device, callbacks=watch)
    trainer.fit()
    with contextlib.nullcontext() if trainer.average is None else trainer.average.swap_in():
        af.save(trainer.model, folder / "model")
    run.objective.write_settings(folder / "model")
    return trainer


def last_loss(folder: Path) -> float:
    return float(np.mean([line["loss"] for line in read_metrics(folder) if "loss" in line][-200:]))


@torch.no_grad()
def reconstruct(vae: Any, images: Any, pictures: Tensor) -> Tensor:
    """Encode and decode images; return (N, 28, 28) bytes."""
    mean, std = images.image_mean[0], images.image_std[0]
    x = pictures[:, None].float().div(255).sub(mean).div(std)
    found = [vae.picture(vae.codes(part.to(vae.device))) for part in x.split(1000)]
    return torch.from_numpy(to_bytes(torch.cat(found), images)[..., 0])


def drawn(model: Any, images: Any, count: int, **how: Any) -> Tensor:
    """Draw `count` images per label; return (labels, count, 28, 28) bytes."""
    found = af.tasks.draw(TaskModel(model, None, batch=500, images=images), [*LABELS], out=None, count=count, **how)
    return torch.from_numpy(np.stack([each["pictures"][..., 0] for each in found]))


def plot(path: Path, folder: Path, title: str) -> None:
    from matplotlib.figure import Figure

    losses = np.asarray([line["loss"] for line in read_metrics(folder) if "loss" in line])
    window = max(len(losses) // 200, 1)
    means = losses[: len(losses) // window * window].reshape(-1, window).mean(1)
    figure = Figure(figsize=(8, 3.6), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    axes.plot(window * (1 + np.arange(len(means))), means, color="#2f5c9e")
    axes.set(xlabel="step", ylabel="mean squared error of the noise", yscale="log", title=title)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--latents", action="store_true", help="diffuse the latents of an autoencoder")
    parser.add_argument("--seconds", type=float, default=240.0, help="training time (default: 240)")
    parser.add_argument("--judge-seconds", type=float, default=60.0)
    parser.add_argument("--count", type=int, default=100, help="images per label (default: 100)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="change a field of the run")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    device, cuda = torch.device(options.device), options.device.startswith("cuda")
    fixed = {"batch.examples": 512, "keep.every": 1000, "steps": 100_000, "precision": "bf16" if cuda else "fp32"}
    name = "fashion-latent-dit" if options.latents else "fashion-dit"
    run: Any = override(recipe(name, str(options.data)), {**fixed, **dict(map(setting, options.set))})
    x, y, x_test, y_test = judge.fashion(options.data)
    figures: dict[str, Any] = {"device": torch.cuda.get_device_name() if cuda else "cpu", "torch": torch.__version__}

    def report(**more: Any) -> None:
        figures.update(more)
        (options.out / "figures.json").write_text(json.dumps(figures, indent=1))
        print(json.dumps(more), flush=True)

    copies = None
    with tempfile.TemporaryDirectory(prefix="anyformer-dit-") as temporary:
        folder, squeezes, seconds = Path(temporary) / "dit", Path(temporary) / "vae", options.seconds
        if options.latents:
            first = override(recipe("fashion-kl", str(options.data)), fixed)
            start = time.monotonic()
            trainer = train(first, squeezes, (x, y), seconds / 4, device)
            vae = af.load(squeezes / "model", device=device)
            copies = reconstruct(vae, first.objective.images, x_test)
            reached = {
                "parameters": af.count(first.model).parameters, "steps": trainer.step, "loss": last_loss(squeezes),
                "seconds": round(time.monotonic() - start, 1), "scale": float(vae.latent.scale()),
                "squared error of test pixels from 0 to 1": float((copies / 255 - x_test / 255).square().mean()),
            }  # fmt: skip
            report(autoencoder=reached)
            objective = run.objective.replace(vae=str(squeezes / "model")).ready(None)
            run, seconds = run.replace(objective=objective), 3 * seconds / 4
        start = time.monotonic()
        trainer = train(run, folder, (x, y), seconds, device)
        report(
            parameters=af.count(run.model).parameters, batch=run.batch.examples, steps=trainer.step,
            loss=last_loss(folder), training_seconds=round(time.monotonic() - start, 1),
        )  # fmt: skip
        shutil.copyfile(folder / "metrics.jsonl", options.out / "metrics.jsonl")
        model = af.load(folder / "model", device=device)
        with contextlib.suppress(ImportError):
            plot(options.out / "loss.png", options.out, run.name)
        right = judge.train(x, y, seconds=options.judge_seconds, device=device, seed=1)
        own = [(label, y_test == i) for i, label in enumerate(LABELS)]
        by_label = {label: judge.accuracy(right, x_test[rows], y_test[rows]) for label, rows in own}
        report(judge=judge.accuracy(right, x_test, y_test), judge_by_label=by_label)
        if copies is not None:
            report(**{"test pictures, squeezed and drawn again": judge.accuracy(right, copies, y_test)})
        numbers = torch.arange(len(LABELS)).repeat_interleave(options.count)
        ways = {"guidance 4": {}, "guidance 1": {"guidance": 1.0}, "guidance 2": {"guidance": 2.0}}
        ways["guidance 4, 100 steps of DDPM"] = {"steps": 100, "eta": 1.0}
        for way, how in ways.items():
            start = time.monotonic()
            found = drawn(model, run.objective.images, options.count, **how)
            pictures = found.flatten(0, 1)
            if way == "guidance 4":  # the default of `anyformer run draw`
                np.savez_compressed(options.out / "samples.npz", pictures=pictures.numpy(), labels=numbers.numpy())
                write_sheet(options.out / "sheet.png", [each[:16, ..., None].numpy() for each in found])
                report(drawn=len(numbers), drawing_seconds=round(time.monotonic() - start, 1))
            seen = judge.judged(right, pictures)
            each = (seen == numbers).view(len(LABELS), -1).float().mean(1)
            shares = {label: float(share) for label, share in zip(LABELS, each, strict=True)}
            report(**{way: {"as asked": float((seen == numbers).float().mean()), "by label": shares}})


if __name__ == "__main__":
    main()
