"""What is seen of a training: metrics.jsonl always, a live bar on a terminal, other services only if asked."""

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
from anyformer.train.accelerators import published
from anyformer.train.trainer import DTYPES, EVERY, Callback, Done, Trainer
from anyformer.weights.io import naming


class Metrics(Callback):
    """metrics.jsonl: an object a line, of a step ("loss", ...), an evaluation ("valid", ...) or a sample ("text").

    After a resume the lines of steps that were done and lost are gone: the file reads as if nothing had happened."""

    def started(self, trainer: Trainer) -> None:
        path = trainer.folder / "metrics.jsonl"
        kept = [line for line in read_metrics(trainer.folder) if line["step"] <= trainer.step]
        temporary = path.with_name(".metrics.jsonl.tmp")
        temporary.write_text("".join(json.dumps(line) + "\n" for line in kept))
        os.replace(temporary, path)
        self.file = path.open("a", buffering=1)  # a line at a time, so that a kill loses none

    def write(self, values: dict[str, Any]) -> None:
        with naming(Path(self.file.name)):
            self.file.write(json.dumps(values) + "\n")

    def stepped(self, trainer: Trainer, done: Done) -> None:
        terms = done.terms if len(done.terms) > 1 else {}
        self.write(
            {
                "step": done.step,
                "loss": done.loss,
                **{f"loss/{name}": value for name, value in terms.items()},
                "norm": done.norm,
                "lr": done.lr,
                "examples": trainer.examples,
                "tokens": trainer.tokens,
                "seconds": round(trainer.seconds, 3),
            }
        )

    def evaluated(self, trainer: Trainer, scores: dict[str, float]) -> None:
        seen = {f"epochs/{name}": value for name, value in trainer.epochs(trainer.step).items()}
        self.write({"step": trainer.step, **{f"valid/{name}": value for name, value in scores.items()}, **seen})

    def sampled(self, trainer: Trainer, text: str) -> None:
        self.write({"step": trainer.step, "text": text})

    def stopped(self, trainer: Trainer) -> None:
        self.file.close()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl; one that a kill cut short is left out."""
    path, found = folder / "metrics.jsonl", []
    for line in path.read_text().splitlines() if path.is_file() else ():
        try:
            values = json.loads(line)
        except ValueError:
            continue
        if isinstance(values, dict) and "step" in values:
            found.append(values)
    return found


class Screen(Callback):
    """A live bar on a terminal, and a line for each evaluation anywhere. `every` seconds without a terminal a line says
    how far it is, so that a log shows a sign of life."""

    def __init__(self, every: float = EVERY) -> None:
        self.every, self.speed = every, Speed()
        self.bar: Any = None
        self.told_at = time.monotonic()

    def started(self, trainer: Trainer) -> None:
        size = sum(p.numel() for p in trainer.module.parameters())
        learnt = sum(p.numel() for p in trainer.module.parameters() if p.requires_grad)
        part = "" if learnt == size else f", {learnt:,} of them learnt"
        where = f", from step {trainer.step:,}" if trainer.step else ""
        self.announced(f"{trainer.run.name}: {size:,} parameters{part}, {trainer.steps:,} steps{where}")
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

    def announced(self, line: str) -> None:
        if self.bar is not None:
            self.bar.console.print(line, markup=False, highlight=False)
        else:
            print(line, flush=True)

    def stepped(self, trainer: Trainer, done: Done) -> None:
        self.speed.add(trainer, done)
        if self.bar is not None:
            text = f"loss {done.loss:.3f}"
            self.bar.update(self.task, completed=done.step, total=trainer.steps, loss=text, speed=str(self.speed))
        elif time.monotonic() - self.told_at > self.every:
            self.told_at = time.monotonic()
            self.announced(f"step {done.step:,} of {trainer.steps:,}: loss {done.loss:.3f}, {self.speed}")

    def evaluated(self, trainer: Trainer, scores: dict[str, float]) -> None:
        shown = ", ".join(f"{name} {value:.4g}" for name, value in scores.items() if name != "loss")
        learnt = f"loss {trainer.last.loss:.3f}, " if trainer.last is not None else ""
        line = f"step {trainer.step:,}: {learnt}validation loss {scores['loss']:.3f}{shown and ', '}{shown}"
        self.announced(f"{line}, {self.speed}")
        self.told_at = time.monotonic()

    def sampled(self, trainer: Trainer, text: str) -> None:
        self.announced("  | " + "\n  | ".join(text.splitlines()))

    def stopped(self, trainer: Trainer) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
        if epochs := trainer.epochs(trainer.step):
            self.announced(f"epochs after step {trainer.step:,}: {shown_epochs(epochs)}")
        if trainer.reason:
            self.announced(f"stopped after step {trainer.step:,}: {trainer.reason}")


def shown_epochs(epochs: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g} times" for name, value in epochs.items())


class Samples(Callback):
    """At each evaluation the model goes on from `evaluate.sample`; and hands the text to the other callbacks."""

    def __init__(self, length: int = 60) -> None:
        self.length = length

    def evaluated(self, trainer: Trainer, scores: dict[str, float]) -> None:
        prompt = trainer.run.evaluate.sample
        if prompt is None or trainer.tokenizer is None:
            return
        with trainer.evaluating(), trainer.whole():
            text = sample(trainer.model, trainer.tokenizer, prompt, self.length)
        trainer.notify("sampled", text)


def sample(model: TransformerModule, tokenizer: Any, prompt: str, length: int, seed: int = 0) -> str:
    """A drawn continuation, with its prompt; what could steer a terminal is left out."""
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


# -- how fast ---------------------------------------------------------------------------------------------------------


class Speed:
    """Tokens a second over the last steps, and the share of what the machine can do at best."""

    def __init__(self) -> None:
        # of the last steps, an older one counting less; never by a step's own rate: two may be read at once, and the
        # second then took no time
        self.tokens = self.seconds = 0.0
        self.share: float | None = None
        self.flops: float | None = None  # of one token
        self.peak = 0.0

    def add(self, trainer: Trainer, done: Done) -> None:
        self.tokens = 0.9 * self.tokens + done.tokens
        self.seconds = 0.9 * self.seconds + done.seconds
        if self.flops is None and done.step > 1:  # the first step is slow enough without
            # where parameters lie in pieces no process can run the model alone
            self.flops = 0.0 if trainer.layout.sharded else flops_per_token(trainer)
            self.peak = peak(trainer.device, trainer.run.precision) * parallel.world_size()
            trainer.clock = time.perf_counter()
        if self.flops and self.peak:
            reached = self.rate * self.flops
            self.peak = max(self.peak, reached)  # the product that was timed may have shared the machine with others
            self.share = reached / self.peak

    @property
    def rate(self) -> float:
        return self.tokens / max(self.seconds, 1e-9)

    def __str__(self) -> str:
        share = f", {100 * self.share:.0f} % of peak" if self.share is not None else ""
        return f"{self.rate:,.0f} tokens/s{share}"


def flops_per_token(trainer: Trainer) -> float:
    """Products and sums of one token forward and backward: three times the forward pass, counted by torch."""
    from torch.utils.flop_counter import FlopCounterMode

    with trainer.feed(trainer.step) as batches:
        ready = next(iter(batches))
    weights = {name: torch.ones((), device=trainer.device) for name in trainer.objective.weights(ready.batches[0])}
    with trainer.evaluating(), FlopCounterMode(display=False) as counter:
        for batch in ready.batches:
            trainer.core(trainer.moved(batch), weights)
    return 3 * counter.get_total_flops() * parallel.world_size() / max(ready.tokens, 1)


def peak(device: torch.device, precision: str) -> float:
    """Of a GPU what its maker publishes for half precision; otherwise what one large product reaches here."""
    if device.type == "cuda" and precision != "fp32":
        known = published(torch.cuda.get_device_name(device))
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
    """The same numbers for TensorBoard, in the run's folder."""

    def started(self, trainer: Trainer) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ValueError("--log tensorboard needs it: pip install tensorboard") from None
        self.writer = SummaryWriter(str(trainer.folder / "tensorboard"), purge_step=trainer.step + 1)

    def stepped(self, trainer: Trainer, done: Done) -> None:
        for name, value in (("loss", done.loss), ("norm", done.norm), ("lr", done.lr)):
            self.writer.add_scalar(f"train/{name}", value, done.step)

    def evaluated(self, trainer: Trainer, scores: dict[str, float]) -> None:
        for name, value in scores.items():
            self.writer.add_scalar(f"valid/{name}", value, trainer.step)

    def stopped(self, trainer: Trainer) -> None:
        self.writer.close()


class WeightsAndBiases(Callback):
    """The same numbers for Weights & Biases; a run that goes on is the same run there."""

    def started(self, trainer: Trainer) -> None:
        try:
            import wandb
        except ImportError:
            raise ValueError("--log wandb needs it: pip install wandb") from None
        from anyformer.specs.codec import encode

        name = trainer.folder.resolve().name
        self.run = wandb.init(
            project="anyformer", id=name, name=name, resume="allow", dir=str(trainer.folder), config=encode(trainer.run)
        )

    def stepped(self, trainer: Trainer, done: Done) -> None:
        self.run.log({"train/loss": done.loss, "train/norm": done.norm, "train/lr": done.lr}, step=done.step)

    def evaluated(self, trainer: Trainer, scores: dict[str, float]) -> None:
        self.run.log({f"valid/{name}": value for name, value in scores.items()}, step=trainer.step)

    def stopped(self, trainer: Trainer) -> None:
        self.run.finish()


SERVICES = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}
