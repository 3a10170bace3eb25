"""Generate images of clothes from captions with the recipes `fashion-vae` and `fashion-dalle`, and classify them.

    python benchmarks/fashion_dalle.py data OUT [--minutes 6] [--device cuda] [--small]

A separately trained classifier (judge.py) classifies 100 images for each of ten captions. Writes to OUT: figures.json
(rewritten after each stage), samples.npz, sheet.png and the folders of both runs. `--small` tests the script in
seconds.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import judge
import numpy as np
import torch

import anyformer as af
from anyformer.data import Arrays
from anyformer.inputs.contact_sheet import write_sheet
from anyformer.parts.grid.dvae import GumbelCodes
from anyformer.recipes import recipe
from anyformer.recipes.fashion_mnist import LABELS
from anyformer.recipes.fashion_vae import MEAN, STD
from anyformer.specs.codec import override
from anyformer.train.deadline import Deadline
from anyformer.train.progress import Metrics
from anyformer.train.run import Run
from anyformer.train.start import setup
from anyformer.train.trainer import Callback, StepResult, Trainer

SMALL = {"steps": 8, "batch.examples": 16, "evaluate.every": 8, "evaluate.batches": 1, "keep.every": 8,
         "schedule.warmup": 2, "precision": "fp32"}  # fmt: skip
ARTICLES = [f"a picture of {'an' if name[0] in 'aeiou' else 'a'} {name}" for name in LABELS]


class PrintProgress(Callback):
    def on_step(self, trainer: Trainer, done: StepResult) -> None:
        if done.step % 250 == 0 or done.step == trainer.steps:
            print(f"{trainer.run.name}: step {done.step}, {trainer.seconds:.0f} s, loss {done.loss:.4f}", flush=True)

    def on_evaluate(self, trainer: Trainer, scores: dict[str, float]) -> None:
        print(f"{trainer.run.name}: {', '.join(f'{name} {value:.4f}' for name, value in scores.items())}", flush=True)


def trained(run: Run, folder: Path, device: str, seconds: float) -> dict[str, Any]:
    """Train a run for at most `seconds` in `folder`; return steps, time, parameters and scores."""
    trainer = setup(run, folder, device=device, tell=print, callbacks=[Metrics(), PrintProgress()])
    trainer.callbacks.append(Deadline(time.monotonic() + seconds, most=run.steps, slow=2))
    start = time.monotonic()
    trainer.fit()
    count = af.count(trainer.model.spec).parameters
    seconds = time.monotonic() - start
    return {"steps": trainer.step, "of": run.steps, "seconds": seconds, "parameters": count, **trainer.scores}


def pixels(pictures: torch.Tensor, device: str) -> torch.Tensor:
    return ((pictures.to(device).float() / 255 - MEAN[0]) / STD[0])[:, None]


@torch.no_grad()
def reconstructed(
    folder: Path, pictures: torch.Tensor, labels: torch.Tensor, classifier: Any, device: str
) -> dict[str, Any]:
    """Return an autoencoder's reconstruction error on test images and the number of codes it uses."""
    model = af.load(folder, device=device)
    codes = torch.cat([model.codes(pixels(part, device)) for part in pictures.split(1000)])
    again = torch.cat([model.picture(part)[:, 0] for part in codes.split(1000)])
    error = (again - pixels(pictures, device)[:, 0]).square().mean()
    share = codes.flatten().bincount(minlength=model.spec.latent.codes).double() / codes.numel()
    drawn = ((again * STD[0] + MEAN[0]) * 255).round().clamp(0, 255).byte().cpu()
    return {
        "squared error, of pixels from 0 to 1": float(error) * STD[0] ** 2, "codes": model.spec.latent.codes,
        "codes in use": int((share > 0).sum()), "perplexity": float(torch.exp(-torch.xlogy(share, share).sum())),
        "judged right": judge.accuracy(classifier, drawn, labels),
    }  # fmt: skip


def draw_captions(folder: Path, captions: list[str], count: int, device: str, seed: int, **how: Any) -> np.ndarray:
    """Draw `count` images per caption; return (captions, count, 28, 28) bytes."""
    rows = af.tasks.draw(folder, captions, out=None, count=count, seed=seed, device=device, batch=500, **how)
    return np.stack([row["pictures"][..., 0] for row in rows])


def judged(samples: np.ndarray, classifier: Any) -> dict[str, Any]:
    classes = judge.judged(classifier, torch.from_numpy(samples.reshape(-1, 28, 28))).view(len(LABELS), -1)
    right = (classes == torch.arange(len(LABELS))[:, None]).double().mean(1)
    return {"right": float(right.mean()), "of each": dict(zip(LABELS, right.tolist()))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    out, device, budget = options.out, options.device, 60 * options.minutes
    out.mkdir(parents=True, exist_ok=True)
    figures: dict[str, Any] = {"device": torch.cuda.get_device_name() if device.startswith("cuda") else "cpu"}
    start = time.monotonic()

    def report(name: str, value: Any) -> None:
        figures[name] = value
        figures["seconds"] = time.monotonic() - start
        (out / "figures.json").write_text(json.dumps(figures, indent=1))
        print(name, json.dumps(value), flush=True)

    x, y, x_test, y_test = judge.fashion(options.data)
    report("pictures", {"to learn from": len(x), "to be tested by": len(x_test)})
    classifier = judge.train(x, y, seconds=0.15 * budget, batch=32 if options.small else 1024, device=device)
    if options.small:
        x_test, y_test = x_test[:64], y_test[:64]
    report("judge", judge.accuracy(classifier, x_test, y_test))

    run = recipe("fashion-vae", str(options.data))
    if options.small:  # read only the small part of the data set
        file = str(options.data / "fashion_mnist_part" / "fashion_mnist_12k_2k.npz")
        part = {name: Arrays(path=file, fields={"image": f"x_{split}", "label": f"y_{split}"})
                for name, split in (("data.train", "train"), ("data.valid", "test"))}  # fmt: skip
        run = override(run, SMALL | part)
    report("fashion-vae", trained(run, out / "vae", device, 0.15 * budget))
    report("fashion-vae, test pictures", reconstructed(out / "vae", x_test, y_test, classifier, device))

    draw = recipe("fashion-dalle", str(options.data))
    draw = override(draw, {"objective.vae": str(out / "vae")})
    if options.small:
        draw = override(draw, SMALL | {f"{name}.source": source for name, source in part.items()})
    report("fashion-dalle", trained(draw, out / "dalle", device, 0.42 * budget))
    kept = {}
    for temperature in (1.0, 0.8, 0.6, 0.4):
        kept[f"{temperature}"] = draw_captions(out / "dalle", ARTICLES, 4 if options.small else 100, device, 0,
                                       temperature=temperature)  # fmt: skip
        report(f"drawn at temperature {temperature}", judged(kept[f"{temperature}"], classifier))
        np.savez_compressed(out / "samples.npz", **kept)
    plain = draw_captions(out / "dalle", [*LABELS], 4 if options.small else 100, device, 1000, temperature=0.8)
    report("drawn at temperature 0.8, by the name alone", judged(plain, classifier))
    write_sheet(out / "sheet.png", [row[:16, ..., None] for row in kept["0.8"]])

    left = budget - (time.monotonic() - start)
    if options.small or left > 40:
        changes = {"name": "fashion-vae-gumbel", "model.latent": GumbelCodes(codes=512), "objective.price": 0.02}
        report("with DALL-E's codes", trained(override(run, changes), out / "vae-gumbel", device, max(left, 20)))
        report(
            "with DALL-E's codes, test pictures", reconstructed(out / "vae-gumbel", x_test, y_test, classifier, device)
        )


if __name__ == "__main__":
    main()
