"""`make quickstart`: a small GPT, from its description to text that it writes, in minutes on a CPU.

What happens is `anyformer train quickstart` and `anyformer generate`: the parts of the description are shown, the model
is trained on what every machine with Python has, and a part is swapped in the end.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyformer as af
from anyformer import cli
from anyformer.cli.settings import setting
from anyformer.cli.train import train
from anyformer.recipes import recipe
from anyformer.spec import Part, walk

GATED = {"decoder.layers.feedforward.op": {"kind": "GatedMLP", "width": 512, "activation": "silu"}}  # [Shazeer 2020]
PROMPT = "The following functions"


def main(arguments: Sequence[str] = ()) -> None:
    """Arguments are PATH=VALUE of the recipe, and a folder with --out."""
    parser = cli.Parser(prog="python -m anyformer.quickstart", description=__doc__)
    parser.add_argument("--set", metavar="PATH=VALUE", action="append", default=[])
    parser.add_argument("--out", metavar="DIR", default="runs/quickstart")
    options = parser.parse(arguments)
    start = time.perf_counter()
    run = af.override(recipe("quickstart"), dict(setting(text) for text in options.set))
    folder = unused(Path(options.out))
    show_parts(run.model)
    print(f"\n$ anyformer train quickstart --out {folder}", flush=True)
    trainer = train(run, folder, resume=False)
    print(f"\n$ anyformer generate {folder} '{PROMPT}' --do-sample --top-k 50 --seed 1", flush=True)
    cli.dispatch(["generate", str(folder), PROMPT, "--do-sample", "--top-k", "50", "--seed", "1"])
    swapped = af.count(af.override(trainer.model.spec, GATED)).parameters
    print(f"\na part swapped: with a gated feed-forward it has {swapped:,} parameters and trains as it is, by")
    print("  anyformer train quickstart --out runs/gated \\")
    print("    --set 'model.decoder.layers.feedforward.op={\"kind\": \"GatedMLP\", \"width\": 512}'")
    print(f"\n{time.perf_counter() - start:.0f} s in all; next: `anyformer train --list`, `anyformer zoo`, README.md")


def unused(folder: Path) -> Path:
    """The folder, or the first of its name with a number that holds no run."""
    names = (folder, *(folder.with_name(f"{folder.name}-{i}") for i in range(2, 10_000)))
    return next(name for name in names if not (name / "run.json").exists())


def show_parts(spec: Any) -> None:
    """The description as a tree: address, kind, parameters of each part that has some."""
    sizes = af.count(spec)
    print(f"a small GPT: {sizes.parameters:,} parameters\n")
    totals = sizes.table(depth=99)

    def size(address: str) -> int:
        return sum(n for part, n in totals.items() if f"{part}.".startswith(f"{address}."))

    found = [(address, part) for address, part in walk(spec) if address and size(address)]
    if not sys.stdout.isatty():
        for address, part in found:
            print(f"{address:42}{kind(part):16}{size(address):>10,}")
        return
    from rich.console import Console
    from rich.tree import Tree

    tree = Tree(f"[bold]{type(spec).__name__}[/]")
    branches = {"": tree}
    for address, part in found:
        parent = address.rpartition(".")[0]
        while parent not in branches:
            parent = parent.rpartition(".")[0]
        branches[address] = branches[parent].add(f"{address}  [cyan]{kind(part)}[/]  [bold]{size(address):,}[/]")
    Console().print(tree)


def kind(part: Part) -> str:
    depth = getattr(part, "depth", None)
    return f"{type(part).__name__} x {depth}" if depth else type(part).__name__


def command() -> int:
    """As `anyformer` does it: a mistake is one line and exit code 2."""
    return cli.guarded(lambda: main(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(command())
