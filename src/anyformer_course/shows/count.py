"""Parameters, operations and memory of named models, by part.

The numbers are computed from the description; no weights are allocated, so any size is quick.
"""

from __future__ import annotations

from typing import Any

import torch

import anyformer as af
from anyformer.look import figures
from anyformer.parts.grid.convolution import Convolution
from anyformer.parts.op import Op
from anyformer.specs.addresses import value_at
from anyformer.specs.part import walk
from anyformer.stacks.stack import Stack
from anyformer_course.shown import Shown, Table

ROLES = ("attention", "convolution or recurrence", "feed-forward", "embedding", "head", "norms and the rest")


def example(names: str = "gpt2 bert-base t5-small", *, length: int = 128, dtype: str = "bfloat16") -> Shown:
    """Count the named models (separated by spaces) on a text of `length` tokens."""
    if not names.split():
        raise ValueError("give the names of one or more models, such as 'gpt2 bert-base'")
    if not isinstance(kind := getattr(torch, dtype, None), torch.dtype):
        raise ValueError(f"dtype is {dtype!r}; give a type such as bfloat16 or float32")
    counts = {name: af.count(af.spec(name)) for name in names.split()}
    shares = {name: by_role(count) for name, count in counts.items()}
    totals: list[list[Any]] = []
    for name, count in counts.items():
        flops = count.flops(length)
        tokens = count.positions(length)  # patches of an image, frames of a recording
        spec = count.spec
        assert spec is not None
        cache = count.state(1, length, kind, length if spec.pair else 0) if spec.writes else None
        totals.append(
            [
                name,
                count.parameters,
                count.active,
                count.parameters * kind.itemsize / 1e6,
                flops,
                tokens,
                3 * flops,
                cache,
            ]
        )

    def draw() -> Any:
        figure, axes = figures.new(1, 1, 8.5, 1.2 + 0.5 * len(counts))
        start = [0.0] * len(counts)
        for i, role in enumerate(ROLES):
            parts = [100 * shares[name][role] / counts[name].parameters for name in counts]
            axes[0, 0].barh(list(counts), parts, left=start, label=role, color=f"C{i}")
            start = [a + b for a, b in zip(start, parts, strict=True)]
        axes[0, 0].invert_yaxis()
        axes[0, 0].set(xlabel="share of the parameters in %", xlim=(0, 100))
        figure.legend(loc="outside upper center", ncols=len(ROLES), frameon=False, fontsize=8)
        return figure

    shapes = [[name, *row] for name, count in counts.items() if (row := shape(count.spec))]
    best = max(totals, key=lambda row: row[1])
    largest = max(shares[best[0]], key=lambda role: shares[best[0]][role])
    return Shown(
        f"{best[0]} has {best[1]:,} parameters, {100 * shares[best[0]][largest] / best[1]:.0f} % of them in "
        f"{largest}.",
        [
            Table("parameters", ("part", *counts), [[each, *(by[each] for by in shares.values())] for each in ROLES]),
            Table(
                f"totals for one text of {length} tokens, one picture or one recording, {dtype}",
                ("model", "parameters", "used by a token", "megabytes", "FLOPs of a pass", "tokens of a pass",
                 "FLOPs of a training step", "bytes of the cache"),
                totals,
            ),
            *([Table("sizes", ("model", "layers", "width", "feed-forward width", "heads"), shapes)] if shapes else []),
        ],
        draw,
    )  # fmt: skip


def shape(spec: Any) -> list[Any] | None:
    """Return layers ("6 + 6" for two stacks), width, feed-forward width and heads; None for other kinds of layers."""
    stacks = [part for name, part in spec.items() if name in ("encoder", "decoder") and isinstance(part, Stack)]
    layers = " + ".join(str(len(stack.order or range(stack.depth))) for stack in stacks)
    ops = {path: part for path, part in walk(spec) if path.startswith(("encoder.layers", "decoder.layers"))}
    heads, inner = (
        next((getattr(ops[path], field) for path in ops if path.endswith(step) and hasattr(ops[path], field)), None)
        for step, field in ((".attention.op", "num_heads"), (".feedforward.op", "width"))
    )
    return [layers, spec.width, inner, heads] if layers and heads else None


def by_role(count: Any) -> dict[str, int]:
    """Return the number of parameters by role. Ops that do not mix tokens are feed-forward."""
    sums = dict.fromkeys(ROLES, 0)
    for address, size in count.parts.items():
        sums[role(count.spec, address)] += size
    return sums


def role(spec: Any, address: str) -> str:
    names = address.split(".")
    if "head" in (names[0], names[min(1, len(names) - 1)]):
        return "head"
    if any(name.endswith("embedding") for name in names[:2]):
        return "embedding"
    for end in range(len(names), 0, -1):
        try:
            found = value_at(spec, ".".join(names[:end]))
        except ValueError:
            continue
        if isinstance(found, Convolution):
            return "convolution or recurrence"
        if isinstance(found, Op):
            if found.declared_sees == "itself":
                return "feed-forward"
            is_attention = any("attention" in word.lower() for word in (type(found).__name__, *found.called))
            return "attention" if is_attention else "convolution or recurrence"
    return "norms and the rest"
