"""A recurrence reads a text step by step, attention reads it at once: dependent steps, operations and memory by length.

The depth is the longest chain of operations in which each needs the result of the one before: with enough processors a
pass takes that many steps. RWKV and Mamba read a text with one kernel each, so their chain is not counted. The memory
while writing is the cache of keys and values, or the state of the recurrence.
"""

from __future__ import annotations

from typing import Any

from anyformer.look.figures import new
from anyformer_course.shown import Shown, Table
from anyformer_course.words import split

KINDS = ("attention", "lstm", "gru", "rwkv", "mamba")
MOST = 128  # words; a pass is recorded operation by operation


def example(text: str = "the cat sat down", *, lengths: tuple[int, ...] = (16, 32), width: int = 64) -> Shown:
    """Count two layers of each kind on a text of as many tokens as `text` has words, and on longer texts."""
    import anyformer as af
    from anyformer_course.lab.forward_cost import forward_cost

    numbers = (len(split(text, MOST)), *lengths)
    if min(numbers) < 2:
        raise ValueError("a text needs at least two words, and lengths must be at least 2")
    specs = {kind: model(kind, width, max(numbers)) for kind in KINDS}
    costs = {kind: [forward_cost(spec, number) for number in numbers] for kind, spec in specs.items()}
    state = {kind: [af.count(spec).state(1, number) for number in numbers] for kind, spec in specs.items()}
    columns = tuple(f"{number} tokens" for number in numbers)
    figures = {
        "dependent steps of a pass": {kind: [cost.depth for cost in costs[kind]] for kind in KINDS[:3]},
        "FLOPs of a pass": {kind: [cost.flops for cost in costs[kind]] for kind in KINDS},
        "bytes kept while writing": state,
    }
    depth = figures["dependent steps of a pass"]

    def draw() -> Any:
        figure, axes = new(3, 1, 13, 4)
        for axis, (title, values) in zip(axes[0], figures.items(), strict=True):
            for kind, line in values.items():
                axis.loglog(numbers, line, marker="o", label=kind, base=2)
            axis.set_yscale("log", base=10)
            axis.set(title=title, xlabel="tokens")
            axis.grid(alpha=0.3)
        axes[0, 1].legend()
        return figure

    return Shown(
        f"A text of {numbers[-1]} tokens needs {depth['lstm'][-1]:,} dependent steps in an LSTM and "
        f"{depth['attention'][-1]} with attention, at any length.",
        [Table(title, ("kind", *columns), [[kind, *line] for kind, line in values.items()])
         for title, values in figures.items()],
        draw,
    )  # fmt: skip


def model(kind: str, width: int, length: int) -> Any:
    """Return a decoder of two layers that differs from GPT-2 only in the mixer, or RWKV or Mamba as published."""
    import anyformer as af
    from anyformer import families

    if kind in ("rwkv", "mamba"):
        architecture, more = {"rwkv": ("RwkvModel", {"context_length": 2**20}), "mamba": ("MambaModel", {})}[kind]
        shape = {"vocab_size": 100, "hidden_size": width, "num_hidden_layers": 2}
        return families.find(kind).read({**shape, "architectures": [architecture], **more})
    shape = {"vocab_size": 100, "n_embd": width, "n_layer": 2, "n_head": 4, "n_positions": length}
    spec = families.find("gpt2").read({**shape, "architectures": ["GPT2Model"]})
    if kind == "attention":
        return spec
    mixer = {"lstm": af.parts.LSTM, "gru": af.parts.GRU}[kind]()
    return af.override(spec, {"embedding.position": None, "decoder.layers.attention.op": mixer})
