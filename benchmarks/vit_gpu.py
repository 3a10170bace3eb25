"""A training step of ViT-B/16 on one CUDA device, beside timm's and transformers', all three compiled.

Pictures that lie on the device, bf16 autocast, cross-entropy, fused AdamW: forward, backward and the optimiser's step.
Ours is the trainer's own step (`LossStep`, fused projections, the stream in bf16); theirs are compiled as they come.
All are in one process and take turns, a few steps each; the ratio is theirs / ours of the same turn, and above 1 we are
faster. Memory is the highest of a side's own steps, without what the others hold. Ours and transformers' start with the
same weights: their first losses must agree.

    python benchmarks/vit_gpu.py [--batch 128] [--turns 12] [--steps 10] [--minutes 5] [--out FILE.json]
    python benchmarks/vit_gpu.py --tiny     # a small one on the CPU, not compiled: does it run?
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import torch.nn.functional as F

import anyformer as af
from anyformer.objectives.images import ClassifyImage
from anyformer.train.optim import AdamW
from anyformer.train.step import LossStep
from anyformer.transforms.fuse import fuse
from anyformer.transforms.stream import narrow_stream

CONFIG = {"num_labels": 1000, "image_size": 224, "patch_size": 16}
TINY = {
    "num_labels": 10, "image_size": 32, "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 64,
}  # fmt: skip
RATE, DECAY = 1e-4, 0.05


def theirs(model: Any, logits: Callable[[Any], Any], options: argparse.Namespace) -> Callable[[Any, Any], Any]:
    """A step as it is usually written."""
    model = model.to(options.device).train()
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), fused=True)
    call = model if options.tiny else torch.compile(model)

    def step(pixels: Any, labels: Any) -> Any:
        with torch.autocast(options.device, torch.bfloat16):
            loss = F.cross_entropy(logits(call(pixels)), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def transformers_step(config: dict[str, Any], folder: Path, options: argparse.Namespace) -> Callable[[Any, Any], Any]:
    transformers = importlib.import_module("transformers")
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**config))
    model.save_pretrained(folder)
    return theirs(model, lambda out: out.logits, options)


def timm_step(config: dict[str, Any], folder: Path, options: argparse.Namespace) -> Callable[[Any, Any], Any]:
    timm = importlib.import_module("timm")
    more = {"img_size": config["image_size"], "patch_size": config["patch_size"], "embed_dim": config["hidden_size"],
            "depth": config["num_hidden_layers"], "num_heads": config["num_attention_heads"],
            "mlp_ratio": 2.0} if options.tiny else {}  # fmt: skip
    model = timm.create_model("vit_base_patch16_224", num_classes=config["num_labels"], **more)
    return theirs(model, lambda out: out, options)


def our_step(config: dict[str, Any], folder: Path, options: argparse.Namespace) -> Callable[[Any, Any], Any]:
    model = af.load(folder, device=options.device).train()
    size, labels = config["image_size"], tuple(map(str, range(config["num_labels"])))
    objective = ClassifyImage(labels=labels, image_size=(size, size))
    core = LossStep(objective, narrow_stream(fuse(objective.module(model), training=True)))
    optimizers = AdamW(lr=RATE, betas=(0.9, 0.95), weight_decay=DECAY).make(model)
    call: Any = core if options.tiny else torch.compile(core)
    divisors = {"loss": torch.tensor(float(options.batch), device=options.device)}

    def step(pixels: Any, labels: Any) -> Any:
        with torch.autocast(options.device, torch.bfloat16):
            loss = call({"pixel_values": pixels, "labels": labels}, divisors)["loss"]
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        optimizers.zero_grad()
        return loss.detach()

    return step


MAKERS = {"transformers": transformers_step, "timm": timm_step, "anyformer": our_step}  # ours starts with their weights


def allocated() -> int:
    return torch.cuda.memory_allocated() if torch.cuda.is_available() else 0


def measure(options: argparse.Namespace) -> dict[str, Any]:
    begin, config = time.perf_counter(), TINY if options.tiny else CONFIG
    size, device = config["image_size"], options.device
    pixels = torch.randn(options.batch, 3, size, size, device=device)
    labels = torch.randint(0, config["num_labels"], (options.batch,), device=device)
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    steps: dict[str, Any] = {}
    held: dict[str, int] = {}
    found: dict[str, Any] = {"torch": torch.__version__, "batch": options.batch, "first_loss": {}, "peak_GB": {}}
    with tempfile.TemporaryDirectory(prefix="anyformer-vit-") as folder:
        for name in options.sides:
            before = allocated()
            try:
                steps[name] = MAKERS[name](config, Path(folder), options)
            except ImportError as error:
                print(f"without {name}: {error}", flush=True)
                continue
            found["first_loss"][name] = float(steps[name](pixels, labels))
            for _ in range(3):
                steps[name](pixels, labels)
            wait()
            held[name] = allocated() - before
            print(f"{name} is ready after {time.perf_counter() - begin:.0f} s, first loss "
                  f"{found['first_loss'][name]:.4f}", flush=True)  # fmt: skip
    spans: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(options.turns):
        for name, step in steps.items():
            others = allocated() - held[name]
            if torch.cuda.is_available():
                torch.cuda.reset_peak_memory_stats()
            wait()
            start = time.perf_counter()
            for _ in range(options.steps):
                step(pixels, labels)
            wait()
            spans[name].append(1e3 * (time.perf_counter() - start) / options.steps)
            if torch.cuda.is_available():
                peak = torch.cuda.max_memory_allocated() - others
                found["peak_GB"][name] = round(max(peak / 1e9, found["peak_GB"].get(name, 0.0)), 3)
        print(", ".join(f"{name} {each[-1]:.2f} ms" for name, each in spans.items()), flush=True)
        found |= summary(spans)
        if options.out:
            options.out.write_text(json.dumps(found, indent=1))
        if time.perf_counter() - begin > 60 * options.minutes:
            print(f"time is over after {turn + 1} turns", flush=True)
            break
    return found


def summary(spans: dict[str, list[float]]) -> dict[str, Any]:
    found: dict[str, Any] = {"ms_a_step": {name: round(statistics.median(each), 2) for name, each in spans.items()}}
    found["spread_ms"] = {name: [round(min(each), 2), round(max(each), 2)] for name, each in spans.items()}
    if ours := spans.get("anyformer"):
        others = {name: each for name, each in spans.items() if name != "anyformer"}
        found["ratio"] = {
            name: round(statistics.median(a / b for a, b in zip(each, ours, strict=True)), 3)
            for name, each in others.items()
        }
    return {**found, "turns": min(map(len, spans.values()))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--sides", nargs="*", default=list(MAKERS), choices=list(MAKERS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    if options.tiny:
        options.device, options.batch, options.turns, options.steps = "cpu", 4, 2, 2
    torch.set_float32_matmul_precision("high")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
    print(json.dumps(measure(options)))


if __name__ == "__main__":
    main()
