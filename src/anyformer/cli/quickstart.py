"""`make quickstart`: a small GPT and a small translator, from descriptions to results, in about three minutes.

It runs `anyformer train quickstart` and `anyformer generate`: it shows the parts of the description, trains a GPT on
the documentation and library of Python, and swaps a part. The size of the model and the number of steps follow from
the measured time of a step; with --set steps=N nothing is measured, and the recipe is used as it is. Then it runs
`anyformer train dates`: the encoder-decoder of 2017 learns to translate dates to ISO form, answers held-out examples,
and shows its attention."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyformer as af
from anyformer import cli
from anyformer.cli.settings import device_flag, setting
from anyformer.cli.train import train
from anyformer.recipes import recipe
from anyformer.specs.part import Part, walk

if TYPE_CHECKING:
    from anyformer.train.deadline import Deadline

GATED = {"decoder.layers.feedforward.op": {"kind": "GatedMLP", "width": 512, "activation": "silu"}}  # [Shazeer 2020]
PROMPT = "The following functions"
GPT_SHARE = 0.5  # of the time; the translator gets the rest
EXAMPLES = 5  # held-out dates to print
TRIAL_STEPS = 3  # steps to time a size; the first step is slow and not counted


def main(arguments: Sequence[str] = ()) -> None:
    """Run the quickstart; `--set PATH=VALUE` overrides the recipe, `--out` names the folder."""
    parser = cli.Parser(prog="python -m anyformer.cli.quickstart", description=__doc__)
    parser.add_argument("--set", metavar="PATH=VALUE", action="append", default=[])
    parser.add_argument("--out", metavar="DIR", default="runs/quickstart")
    parser.add_argument("--minutes", metavar="X", type=float, default=3.0, help="time limit in minutes (default: 3)")
    parser.add_argument("--dates-steps", metavar="N", type=int, help="steps of the translator (default: its recipe's)")
    device_flag(parser)
    options = parser.parse(arguments)
    if not options.minutes > 0:
        raise ValueError(f"--minutes is {options.minutes}; it must be above 0")
    start = time.monotonic()
    changes = dict(setting(text) for text in options.set)
    folder = unused_folder(Path(options.out))
    run, watch = recipe("quickstart"), []
    if "steps" not in changes:
        run, deadline = size_and_deadline(options.device, start, GPT_SHARE * 60 * options.minutes)
        watch.append(deadline)
    run = af.override(run, changes)
    show_parts(run.model)
    print(f"\n$ anyformer train quickstart --out {folder}", flush=True)
    trainer = train(run, folder, resume=False, device=options.device, watch=watch)
    print(f"\n$ anyformer generate {folder} '{PROMPT}' --do-sample --top-k 50 --seed 1", flush=True)
    cli.dispatch(["generate", str(folder), PROMPT, "--do-sample", "--top-k", "50", "--seed", "1"])
    swapped = af.count(af.override(trainer.model.spec, GATED)).parameters
    print(f"\nswap a part: with a gated feed-forward the model has {swapped:,} parameters; train it with")
    print("  anyformer train quickstart --out runs/gated \\")
    print('    --set \'model.decoder.layers.feedforward.op={"kind": "GatedMLP", "width": 512}\'')
    learn_dates(folder, options.device, start + 60 * options.minutes, options.dates_steps)
    print(f"\n{time.monotonic() - start:.0f} s in total; next: `anyformer train --list`, `anyformer zoo`, README.md")


def learn_dates(folder: Path, device: str, end: float, steps: int | None) -> None:
    """Train the recipe `dates` until `end` at the latest, answer held-out examples and draw the cross-attention."""
    from anyformer.recipes.shared.sources import fetch
    from anyformer.train.deadline import Deadline

    data = folder.with_name(f"{folder.name}-data")
    if not (data / "dates").is_dir():
        fetch("dates", data)
    run = recipe("dates", str(data))
    run = af.override(run, {"steps": steps or run.steps, "evaluate.every": steps or run.steps})
    folder = unused_folder(folder.with_name("dates"))
    described: Any = run.model
    print(f"\nthe encoder-decoder of 2017: {af.count(described).parameters:,} parameters, to write dates in ISO form")
    print(f"\n$ anyformer train dates --data {data} --out {folder}", flush=True)
    tail = 0.1 * (end - time.monotonic())  # for the examples and the picture
    train(run, folder, resume=False, device=device, watch=[Deadline(end, tail, most=run.steps)])
    model, read = af.load(folder), af.processor(folder)
    print(f"\n$ anyformer run translate {folder} DATE, on dates that were not in the training data")
    valid: Any = run.data.valid
    rows = [row.example for row, _ in zip(valid.rows(("source", "target")), range(EXAMPLES)) if row.example]
    for row in rows:
        inputs: dict[str, Any] = read(row["source"])
        written = read.decode(af.generate(model, **inputs, max_new_tokens=16)[0], skip_special_tokens=True)
        mark = "exact" if written == row["target"] else f"wrong: {row['target']}"
        print(f"{row['source']:32}{written:14}{mark}")
    picture = str(folder / "attention.png")
    print(f"\n$ anyformer look {folder} '{rows[0]['source']}' --picture alignment -o {picture}")
    cli.dispatch(["look", str(folder), rows[0]["source"], "--picture", "alignment", "-o", picture])


def size_and_deadline(device: str, start: float, seconds: float) -> tuple[Any, Deadline]:
    """Return the largest size that learns enough in the time, and a callback that ends the training in time."""
    from anyformer.recipes.quickstart import sizes
    from anyformer.train.deadline import Deadline

    tail = 0.6 * (time.monotonic() - start)  # estimated time after training, from the time of the imports
    end = start + seconds
    chosen, pace = sizes()[0], 0.0
    for size in sizes():
        trial_pace = step_seconds(size.run, device)
        if pace and (end - tail - time.monotonic()) / trial_pace < size.enough:
            break
        chosen, pace = size, trial_pace
    steps = max(int((end - tail - time.monotonic()) / pace), 1)
    batch: Any = chosen.run.batch
    tokens = batch.examples * batch.length / pace
    print(
        f"this machine trains the {chosen.name} size at {tokens:,.0f} tokens/s: about {steps:,} steps in "
        f"{seconds / 60:g} minutes\n",
        flush=True,
    )
    every = max(steps // 3, 1)
    changes = {"steps": steps, "evaluate.every": every, "keep.every": every, "schedule.warmup": min(20, steps // 10)}
    return af.override(chosen.run, changes), Deadline(end, tail)


def step_seconds(run: Any, device: str) -> float:
    """Return the seconds per training step, measured on random tokens."""
    import torch

    from anyformer.kernels import hardware

    model = af.build(run.model, device=hardware.device(device))
    optimizers = run.optimizer.make(model)
    ids = torch.arange(run.batch.examples * run.batch.length, device=model.device) % run.model.head.vocab_size
    ids = ids.view(run.batch.examples, -1)
    best = float("inf")
    for step in range(TRIAL_STEPS):
        begun = time.monotonic()
        model(input_ids=ids, labels=ids).loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        optimizers.zero_grad()
        if model.device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.monotonic() - begun) if step else best
    return best


def unused_folder(folder: Path) -> Path:
    """Return the folder, or the first FOLDER-2, FOLDER-3, ... that has no run."""
    names = (folder, *(folder.with_name(f"{folder.name}-{i}") for i in range(2, 10_000)))
    return next(name for name in names if not (name / "run.json").exists())


def show_parts(spec: Any) -> None:
    """Print the description as a tree: address, kind and number of parameters of each part."""
    sizes = af.count(spec)
    print(f"a small GPT: {sizes.parameters:,} parameters\n")
    totals = sizes.table(depth=99)

    def size(address: str) -> int:
        return sum(n for part, n in totals.items() if f"{part}.".startswith(f"{address}."))

    parts = [(address, part) for address, part in walk(spec) if address and size(address)]
    if not sys.stdout.isatty():
        for address, part in parts:
            print(f"{address:42}{kind(part):16}{size(address):>10,}")
        return
    from rich.console import Console
    from rich.tree import Tree

    tree = Tree(f"[bold]{type(spec).__name__}[/]")
    branches = {"": tree}
    for address, part in parts:
        parent = address.rpartition(".")[0]
        while parent not in branches:
            parent = parent.rpartition(".")[0]
        branches[address] = branches[parent].add(f"{address}  [cyan]{kind(part)}[/]  [bold]{size(address):,}[/]")
    Console().print(tree)


def kind(part: Part) -> str:
    from anyformer.stacks.stack import Stack

    return f"{type(part).__name__} x {part.depth}" if isinstance(part, Stack) else type(part).__name__


def command() -> int:
    """Run with the error handling of `anyformer`: a mistake is one line and exit code 2."""
    return cli.run_guarded(lambda: main(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(command())
