"""`make quickstart`: a small GPT from its description, its parts, one run, and one part swapped."""

from __future__ import annotations

import sys
import time
from typing import Any

import anyformer as af
from anyformer.spec import Part, walk

TEXT = "Anything you can tokenize, you can feed to a Transformer."
SMALL = {  # GPT-2's description, by address: bytes for tokens, four narrow layers
    "width": 128,
    "embedding.tokens.vocab_size": 256,
    "embedding.position.length": 256,
    "decoder.depth": 4,
    "decoder.layers.attention.op.num_heads": 4,
    "decoder.layers.attention.op.head_width": 32,
    "decoder.layers.feedforward.op.width": 512,
    "head.vocab_size": 256,
}
GATED = {"decoder.layers.feedforward.op": {"kind": "GatedMLP", "width": 341, "activation": "silu"}}  # [Shazeer 2020]


def main() -> None:
    spec = af.override(af.spec("gpt2"), SMALL)
    show_parts(spec)
    model = af.build(spec, seed=0).eval()
    print(f"\n{run(model)}")
    swapped = af.build(af.override(spec, GATED), seed=0).eval()
    print(f"the same with a gated feed-forward: {af.count(swapped.spec).parameters:,} parameters\n{run(swapped)}")
    print("\nnext: `anyformer zoo` lists what there is; `anyformer count gpt3-175b` counts it; README.md has the tour")


def run(model: Any) -> str:
    """One pass over some bytes, put in a line."""
    import torch

    ids = torch.tensor([list(TEXT.encode())])
    with torch.no_grad():
        model(input_ids=ids)  # the first pass warms up
        start = time.perf_counter()
        out = model(input_ids=ids, labels=ids)
    taken = 1e3 * (time.perf_counter() - start)
    shapes = f"input_ids {tuple(ids.shape)} -> logits {tuple(out.logits.shape)}"
    return f"{shapes}, loss {out.loss:.2f} (untrained: ln 256 = 5.55), {taken:.1f} ms"


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


if __name__ == "__main__":
    main()
