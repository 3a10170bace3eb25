"""Quadratic cost: scores of all pairs (n^2 d) against a recurrence (n d^2) and the matrices of a layer, by length."""

from __future__ import annotations

from typing import Any

from anyformer.look.figures import new
from anyformer_course.shown import Shown, Table


def example(*lengths: int, width: int = 1000) -> Shown:
    """Count one layer of this `width` at these `lengths` (default: 30, 512 and 50,000 tokens)."""
    import anyformer as af
    from anyformer import families

    lengths = lengths or (30, 512, 50_000)
    if min(lengths) < 1 or max(lengths) > 10**6 or width % 10 or not 10 <= width <= 20_000:
        raise ValueError("lengths must be from 1 to 1,000,000 tokens, and width a multiple of 10 up to 20,000")
    shape = {"vocab_size": 2, "n_embd": width, "n_layer": 1, "n_head": 10, "n_positions": max(lengths)}
    spec = families.find("gpt2").read({**shape, "architectures": ["GPT2Model"]})
    counted = af.count(spec)
    lstm = af.count(af.override(spec, {"embedding.position": None, "decoder.layers.attention.op": af.parts.LSTM()}))
    matrices = sum(size for name, size in lstm.parts.items() if ".attention.op." in name and size >= width**2)
    rows = []
    for n in lengths:
        products = sum(counted.work(n).pairs.values())
        rows.append([n, n * n, products, counted.flops(n) - products, 2 * matrices * n, products / counted.flops(n)])
    equal = next(n for n in range(1, 10**7) if 4 * n * n * width >= 2 * matrices * n)

    def draw() -> Any:
        figure, axes = new(1, 1, 7, 4.5)
        xs = [2**i for i in range(3, 18)]
        axes[0, 0].loglog(xs, [4 * n * n * width for n in xs], label="attention: products of all pairs, 4 n^2 d")
        axes[0, 0].loglog(xs, [rows[0][3] / lengths[0] * n for n in xs], label="the layer's matrices, 24 n d^2")
        axes[0, 0].loglog(xs, [2 * matrices * n for n in xs], label="LSTM, 16 n d^2")
        axes[0, 0].axvline(equal, color="gray", linestyle=":")
        axes[0, 0].set(xlabel="tokens n", ylabel="FLOPs of one layer", title=f"width {width}")
        axes[0, 0].legend(fontsize=8)
        axes[0, 0].grid(alpha=0.3)
        return figure

    return Shown(
        f"At {lengths[-1]:,} tokens, all pairs take {rows[-1][-1]:.0%} of the layer's FLOPs; at {lengths[0]:,} tokens "
        f"{rows[0][-1]:.1%}. All pairs cost more than an LSTM from {equal:,} tokens on.",
        [Table(f"one layer of width {width}", ("tokens", "pairs", "FLOPs of pairs", "their share",
                                               "FLOPs of matrices", "FLOPs of LSTM"),
               [[*row[:3], row[5], *row[3:5]] for row in rows])],
        draw,
    )  # fmt: skip
