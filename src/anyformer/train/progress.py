"""Progress of training: metrics.jsonl, a progress bar, TensorBoard and Weights & Biases."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from anyformer.models import TransformerModule
from anyformer.train import parallel
from anyformer.train.device_specs import published_flops
from anyformer.train.trainer import DTYPES, PROGRESS_INTERVAL, Callback, StepResult, Trainer
from anyformer.weights.io import name_in_errors


class Metrics(Callback):
    """Writes metrics.jsonl: one object per step ("loss", ...), evaluation ("valid/loss", ...) or sample ("text").

    A resumed run drops the lines after its checkpoint, so that each step has one line."""

    def on_start(self, trainer: Trainer) -> None:
        path = trainer.folder / "metrics.jsonl"
        kept = [line for line in read_metrics(trainer.folder) if line["step"] <= trainer.step]
        temporary = path.with_name(".metrics.jsonl.tmp")
        temporary.write_text("".join(json.dumps(line) + "\n" for line in kept))
        os.replace(temporary, path)
        self.file = path.open("a", buffering=1)  # line-buffered, so that a killed run loses no line

    def write(self, values: dict[str, Any]) -> None:
        with name_in_errors(Path(self.file.name)):
            self.file.write(json.dumps(values) + "\n")

    def on_step(self, trainer: Trainer, result: StepResult) -> None:
        terms = result.terms if len(result.terms) > 1 else {}
        self.write(
            {
                "step": result.step,
                "loss": result.loss,
                **{f"loss/{name}": value for name, value in terms.items()},
                "norm": result.norm,
                "lr": result.lr,
                "examples": trainer.examples,
                "tokens": trainer.tokens,
                "seconds": round(trainer.seconds, 3),
            }
        )

    def on_evaluate(self, trainer: Trainer, scores: dict[str, float]) -> None:
        epochs = {f"epochs/{name}": value for name, value in trainer.epochs(trainer.step).items()}
        self.write({"step": trainer.step, **{f"valid/{name}": value for name, value in scores.items()}, **epochs})

    def on_sample(self, trainer: Trainer, text: str) -> None:
        self.write({"step": trainer.step, "text": text})

    def on_stop(self, trainer: Trainer) -> None:
        self.file.close()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Read the lines of a run's metrics.jsonl; an incomplete line of a killed run is skipped."""
    path, lines = folder / "metrics.jsonl", []
    for line in path.read_text().splitlines() if path.is_file() else ():
        try:
            values = json.loads(line)
        except ValueError:
            continue
        if isinstance(values, dict) and "step" in values:
            lines.append(values)
    return lines


class Screen(Callback):
    """A progress bar on a terminal, and a line for each evaluation. Without a terminal it also prints a line every
    `every` seconds, so that a log shows progress."""

    def __init__(self, every: float = PROGRESS_INTERVAL) -> None:
        self.every, self.speed = every, Speed()
        self.bar: Any = None
        self.last_line_at = time.monotonic()

    def on_start(self, trainer: Trainer) -> None:
        size = sum(p.numel() for p in trainer.module.parameters())
        trained = sum(p.numel() for p in trainer.module.parameters() if p.requires_grad)
        part = "" if trained == size else f", {trained:,} of them trained"
        where = f", from step {trainer.step:,}" if trainer.step else ""
        self.on_message(f"{trainer.run.name}: {size:,} parameters{part}, {trainer.steps:,} steps{where}")
        if not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.bar = Progress(
            TextColumn("{task.fields[loss]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self.task = self.bar.add_task("", total=trainer.steps, completed=trainer.step, loss="", speed="")
        self.bar.start()

    def on_message(self, line: str) -> None:
        if self.bar is not None:
            self.bar.console.print(line, markup=False, highlight=False)
        else:
            print(line, flush=True)

    def on_step(self, trainer: Trainer, result: StepResult) -> None:
        self.speed.add(trainer, result)
        if self.bar is not None:
            text = f"loss {result.loss:.3f}"
            self.bar.update(self.task, completed=result.step, total=trainer.steps, loss=text, speed=str(self.speed))
        elif time.monotonic() - self.last_line_at > self.every:
            self.last_line_at = time.monotonic()
            self.on_message(f"step {result.step:,} of {trainer.steps:,}: loss {result.loss:.3f}, {self.speed}")

    def on_evaluate(self, trainer: Trainer, scores: dict[str, float]) -> None:
        others = ", ".join(f"{name} {value:.4g}" for name, value in scores.items() if name != "loss")
        training = f"loss {trainer.last.loss:.3f}, " if trainer.last is not None else ""
        line = f"step {trainer.step:,}: {training}validation loss {scores['loss']:.3f}{others and ', '}{others}"
        self.on_message(f"{line}, {self.speed}")
        self.last_line_at = time.monotonic()

    def on_sample(self, trainer: Trainer, text: str) -> None:
        self.on_message("  | " + "\n  | ".join(text.splitlines()))

    def on_stop(self, trainer: Trainer) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
        if epochs := trainer.epochs(trainer.step):
            self.on_message(f"epochs after step {trainer.step:,}: {format_epochs(epochs)}")
        if trainer.reason:
            self.on_message(f"stopped after step {trainer.step:,}: {trainer.reason}")


def format_epochs(epochs: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g} times" for name, value in epochs.items())


class Samples(Callback):
    """Continues the prompt `evaluate.sample` at each evaluation, and passes the text to the other callbacks."""

    def __init__(self, length: int = 60) -> None:
        self.length = length

    def on_evaluate(self, trainer: Trainer, scores: dict[str, float]) -> None:
        prompt = trainer.run.evaluate.sample
        if prompt is None or trainer.tokenizer is None:
            return
        with trainer.eval_mode(), trainer.full_model():
            text = sample(trainer.model, trainer.tokenizer, prompt, self.length)
        trainer.notify("on_sample", text)


def sample(model: TransformerModule, tokenizer: Any, prompt: str, length: int, seed: int = 0) -> str:
    """Return the prompt and a sampled continuation, without terminal control characters."""
    from anyformer.generation import generate
    from anyformer.models import position_limit

    ids = torch.tensor([tokenizer.encode(prompt)], device=model.device)
    limit = position_limit(model.spec)
    if limit is not None and not model.spec.pair:
        length = max(min(length, limit + 1 - ids.shape[1]), 1)
    out: Any = generate(
        model, input_ids=ids, seed=seed, do_sample=True, temperature=0.8, top_k=50, max_new_tokens=length
    )
    text = tokenizer.decode(out[0], skip_special_tokens=True)
    return "".join(letter for letter in text if letter.isprintable() or letter in "\n\t")


# -- speed ------------------------------------------------------------------------------------------------------------


class Speed:
    """Tokens per second over the last steps, and the share of the machine's peak."""

    def __init__(self) -> None:
        # decayed sums over steps: a mean of rates would be infinite if two steps finish at once
        self.tokens = self.seconds = 0.0
        self.share: float | None = None
        self.flops: float | None = None  # per token
        self.peak = 0.0

    def add(self, trainer: Trainer, result: StepResult) -> None:
        self.tokens = 0.9 * self.tokens + result.tokens
        self.seconds = 0.9 * self.seconds + result.seconds
        if self.flops is None and result.step > 1:  # step 1 is slow already; do not add to it
            # with sharded parameters one process cannot run the model
            self.flops = 0.0 if trainer.layout.sharded else flops_per_token(trainer)
            self.peak = peak(trainer.device, trainer.run.precision) * parallel.world_size()
            trainer.clock = time.perf_counter()
        if self.flops and self.peak:
            reached = self.rate * self.flops
            self.peak = max(self.peak, reached)  # other work may have slowed down the measured peak
            self.share = reached / self.peak

    @property
    def rate(self) -> float:
        return self.tokens / max(self.seconds, 1e-9)

    def __str__(self) -> str:
        share = f", {100 * self.share:.0f} % of peak" if self.share is not None else ""
        return f"{self.rate:,.0f} tokens/s{share}"


def flops_per_token(trainer: Trainer) -> float:
    """FLOPs per token of forward and backward: three times the forward pass, counted by torch."""
    from torch.utils.flop_counter import FlopCounterMode

    with trainer.feed(trainer.step) as batches:
        ready = next(iter(batches))
    weights = {name: torch.ones((), device=trainer.device) for name in trainer.objective.weights(ready.batches[0])}
    with trainer.eval_mode(), FlopCounterMode(display=False) as counter:
        for batch in ready.batches:
            trainer.core(trainer.to_device(batch), weights)
    return 3 * counter.get_total_flops() * parallel.world_size() / max(ready.tokens, 1)


def peak(device: torch.device, precision: str) -> float:
    """Peak FLOPs per second: published for a known GPU in half precision, otherwise measured on a large product."""
    if device.type == "cuda" and precision != "fp32":
        known = published_flops(torch.cuda.get_device_name(device))
        if known is not None:
            return known
    size = 4096 if device.type == "cuda" else 768
    dtype = DTYPES.get(precision, torch.float32)
    a = torch.ones(size, size, dtype=dtype, device=device)
    best = float("inf")
    for _ in range(4):
        start = time.perf_counter()
        a @ a
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


# -- other services ---------------------------------------------------------------------------------------------------


class TensorBoard(Callback):
    """Writes losses and scores in TensorBoard's format to the run's folder."""

    def on_start(self, trainer: Trainer) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ValueError("--log tensorboard needs tensorboard: pip install tensorboard") from None
        self.writer = SummaryWriter(str(trainer.folder / "tensorboard"), purge_step=trainer.step + 1)

    def on_step(self, trainer: Trainer, result: StepResult) -> None:
        for name, value in (("loss", result.loss), ("norm", result.norm), ("lr", result.lr)):
            self.writer.add_scalar(f"train/{name}", value, result.step)

    def on_evaluate(self, trainer: Trainer, scores: dict[str, float]) -> None:
        for name, value in scores.items():
            self.writer.add_scalar(f"valid/{name}", value, trainer.step)

    def on_stop(self, trainer: Trainer) -> None:
        self.writer.close()


class WeightsAndBiases(Callback):
    """Logs losses and scores to Weights & Biases; a resumed run continues the same run there."""

    def on_start(self, trainer: Trainer) -> None:
        try:
            import wandb
        except ImportError:
            raise ValueError("--log wandb needs wandb: pip install wandb") from None
        from anyformer.specs.codec import encode

        name = trainer.folder.resolve().name
        self.run = wandb.init(
            project="anyformer", id=name, name=name, resume="allow", dir=str(trainer.folder), config=encode(trainer.run)
        )

    def on_step(self, trainer: Trainer, result: StepResult) -> None:
        self.run.log({"train/loss": result.loss, "train/norm": result.norm, "train/lr": result.lr}, step=result.step)

    def on_evaluate(self, trainer: Trainer, scores: dict[str, float]) -> None:
        self.run.log({f"valid/{name}": value for name, value in scores.items()}, step=trainer.step)

    def on_stop(self, trainer: Trainer) -> None:
        self.run.finish()


SERVICES = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}
