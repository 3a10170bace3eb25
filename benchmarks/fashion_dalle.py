"""Garments asked for in words, drawn code by code: the recipes `fashion-vae` and `fashion-dalle`, and a judge.

    python benchmarks/fashion_dalle.py data OUT [--minutes 6] [--device cuda] [--small]

The judge (judge.py) learns by itself and says of 100 pictures of each of ten captions what they show. OUT gets
figures.json (written anew after each part), samples.npz, sheet.png and the folders of both runs. `--small` is a form of
seconds that shows that it runs.
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


class Told(Callback):
    def on_step(self, trainer: Trainer, done: StepResult) -> None:
        if done.step % 250 == 0 or done.step == trainer.steps:
            print(f"{trainer.run.name}: step {done.step}, {trainer.seconds:.0f} s, loss {done.loss:.4f}", flush=True)

    def on_evaluate(self, trainer: Trainer, scores: dict[str, float]) -> None:
        print(f"{trainer.run.name}: {', '.join(f'{name} {value:.4f}' for name, value in scores.items())}", flush=True)


def trained(run: Run, folder: Path, device: str, seconds: float) -> dict[str, Any]:
    """What a run has come to, in its folder."""
    made = setup(run, folder, device=device, tell=print, callbacks=[Metrics(), Told()])
    made.callbacks.append(Deadline(time.monotonic() + seconds, most=run.steps, slow=2))
    start = time.monotonic()
    made.fit()
    count = af.count(made.model.spec).parameters
    seconds = time.monotonic() - start
    return {"steps": made.step, "of": run.steps, "seconds": seconds, "parameters": count, **made.scores}


def pixels(pictures: torch.Tensor, device: str) -> torch.Tensor:
    return ((pictures.to(device).float() / 255 - MEAN[0]) / STD[0])[:, None]


@torch.no_grad()
def squeezed(folder: Path, pictures: torch.Tensor, labels: torch.Tensor, says: Any, device: str) -> dict[str, Any]:
    """How much of pictures that it has not seen an autoencoder keeps, and how many of its codes it uses."""
    model = af.load(folder, device=device)
    codes = torch.cat([model.codes(pixels(part, device)) for part in pictures.split(1000)])
    again = torch.cat([model.picture(part)[:, 0] for part in codes.split(1000)])
    error = (again - pixels(pictures, device)[:, 0]).square().mean()
    share = codes.flatten().bincount(minlength=model.spec.latent.codes).double() / codes.numel()
    drawn = ((again * STD[0] + MEAN[0]) * 255).round().clamp(0, 255).byte().cpu()
    return {
        "squared error, of pixels from 0 to 1": float(error) * STD[0] ** 2, "codes": model.spec.latent.codes,
        "codes in use": int((share > 0).sum()), "perplexity": float(torch.exp(-torch.xlogy(share, share).sum())),
        "judged right": judge.accuracy(says, drawn, labels),
    }  # fmt: skip


def asked(folder: Path, captions: list[str], count: int, device: str, seed: int, **how: Any) -> np.ndarray:
    """(captions, count, 28, 28) bytes."""
    rows = af.tasks.draw(folder, captions, out=None, count=count, seed=seed, device=device, batch=500, **how)
    return np.stack([row["pictures"][..., 0] for row in rows])


def judged(samples: np.ndarray, says: Any) -> dict[str, Any]:
    told = judge.judged(says, torch.from_numpy(samples.reshape(-1, 28, 28))).view(len(LABELS), -1)
    right = (told == torch.arange(len(LABELS))[:, None]).double().mean(1)
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

    def tell(name: str, value: Any) -> None:
        figures[name] = value
        figures["seconds"] = time.monotonic() - start
        (out / "figures.json").write_text(json.dumps(figures, indent=1))
        print(name, json.dumps(value), flush=True)

    x, y, x_test, y_test = judge.fashion(options.data)
    tell("pictures", {"to learn from": len(x), "to be tested by": len(x_test)})
    says = judge.train(x, y, seconds=0.15 * budget, batch=32 if options.small else 1024, device=device)
    if options.small:
        x_test, y_test = x_test[:64], y_test[:64]
    tell("judge", judge.accuracy(says, x_test, y_test))

    run = recipe("fashion-vae", str(options.data))
    if options.small:  # of the part of the pictures that is at hand
        file = str(options.data / "fashion_mnist_part" / "fashion_mnist_12k_2k.npz")
        part = {name: Arrays(path=file, fields={"image": f"x_{split}", "label": f"y_{split}"})
                for name, split in (("data.train", "train"), ("data.valid", "test"))}  # fmt: skip
        run = override(run, SMALL | part)
    tell("fashion-vae", trained(run, out / "vae", device, 0.15 * budget))
    tell("fashion-vae, test pictures", squeezed(out / "vae", x_test, y_test, says, device))

    draw = recipe("fashion-dalle", str(options.data))
    draw = override(draw, {"objective.vae": str(out / "vae")})
    if options.small:
        draw = override(draw, SMALL | {f"{name}.source": source for name, source in part.items()})
    tell("fashion-dalle", trained(draw, out / "dalle", device, 0.42 * budget))
    kept = {}
    for temperature in (1.0, 0.8, 0.6, 0.4):
        kept[f"{temperature}"] = asked(out / "dalle", ARTICLES, 4 if options.small else 100, device, 0,
                                       temperature=temperature)  # fmt: skip
        tell(f"drawn at temperature {temperature}", judged(kept[f"{temperature}"], says))
        np.savez_compressed(out / "samples.npz", **kept)
    plain = asked(out / "dalle", [*LABELS], 4 if options.small else 100, device, 1000, temperature=0.8)
    tell("drawn at temperature 0.8, by the name alone", judged(plain, says))
    write_sheet(out / "sheet.png", [row[:16, ..., None] for row in kept["0.8"]])

    left = budget - (time.monotonic() - start)
    if options.small or left > 40:
        changes = {"name": "fashion-vae-gumbel", "model.latent": GumbelCodes(codes=512), "objective.price": 0.02}
        tell("with DALL-E's codes", trained(override(run, changes), out / "vae-gumbel", device, max(left, 20)))
        tell("with DALL-E's codes, test pictures", squeezed(out / "vae-gumbel", x_test, y_test, says, device))


if __name__ == "__main__":
    main()
