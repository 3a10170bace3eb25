"""Where FLOPs go as models grow: the share outside the products of queries, keys and values, for GPT-3's sizes."""

from __future__ import annotations

from typing import Any

from anyformer.look.figures import new
from anyformer_course.shown import Shown, Table

SIZES = ("small", "medium", "large", "xl", "2.7b", "6.7b", "13b", "175b")


def example(*lengths: int) -> Shown:
    """Count GPT-3's sizes on texts of these `lengths` (default: 2,048, its own, and 512)."""
    import anyformer as af

    lengths = lengths or (512, 2048)
    if min(lengths) < 1 or max(lengths) > 10**6:
        raise ValueError("lengths must be from 1 to 1,000,000 tokens")
    rows = []
    for size in SIZES:
        spec = af.override(af.spec(f"gpt3-{size}"), {"embedding.position.length": max(*lengths, 2048)})
        counted = af.count(spec)
        shares = [1 - sum(counted.work(n).pairs.values()) / counted.flops(n) for n in lengths]
        rows.append([f"gpt3-{size}", spec.width, counted.parameters, *shares])

    def draw() -> Any:
        figure, axes = new(1, 1, 7, 4)
        for i, length in enumerate(lengths):
            axes[0, 0].semilogx(
                [row[2] for row in rows], [row[3 + i] for row in rows], marker="o", label=f"{length} tokens"
            )
        axes[0, 0].set(
            xlabel="parameters", ylabel="share of FLOPs", ylim=(0, 1.03), title="outside q k^T and weights v"
        )
        axes[0, 0].legend()
        axes[0, 0].grid(alpha=0.3)
        return figure

    return Shown(
        f"With {lengths[-1]:,} tokens, {rows[0][-1]:.1%} of the FLOPs of GPT-3 small and {rows[-1][-1]:.1%} of "
        "those of GPT-3 175B are outside the quadratic products.",
        [Table("share of FLOPs outside the products", (
            "model", "width", "parameters", *(f"{n} tokens" for n in lengths)), rows)],
        draw,
    )  # fmt: skip
