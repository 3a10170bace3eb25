"""FlashAttention's idea: exact attention, block by block, without storing all scores.

For each block of keys only the largest score, the sum of exponentials and the sum of values are kept; a new block
rescales them. The result is the same, and the T x T scores never exist [Dao et al. 2022].
"""

from __future__ import annotations

import math
from typing import Any

import torch

from anyformer.look.figures import new
from anyformer_course.shown import Shown, Table
from anyformer_course.table import tiny
from anyformer_course.words import vectors

LENGTHS = (512, 1024, 2048, 4096)


@torch.no_grad()
def example(text: str = "the cat sat on the mat and the dog sat down too", *, block: int = 3, seed: int = 0) -> Shown:
    """Let the last word attend to the text in blocks of `block` keys; then count memory with and without scores."""
    from anyformer import families
    from anyformer_course.lab.forward_cost import forward_cost

    words, x = vectors(text, 4, seed)
    if not 1 <= block <= len(words):
        raise ValueError(f"block is {block}; it must be from 1 to the number of words, {len(words)}")
    draws = torch.Generator().manual_seed(seed)
    q, k, v = (x @ torch.randn(4, 4, generator=draws) / 2 for _ in range(3))
    scores = q[-1] @ k.T / 2
    exact = scores.softmax(-1) @ v
    largest, total, mixed = torch.tensor(-math.inf), torch.tensor(0.0), torch.zeros(4)
    rows: list[list[Any]] = []
    for i in range(0, len(words), block):
        part = scores[i : i + block]  # the only scores in memory
        new_largest = torch.maximum(largest, part.max())
        rescale, weights = (largest - new_largest).exp(), (part - new_largest).exp()
        total, mixed, largest = (
            total * rescale + weights.sum(),
            mixed * rescale + weights @ v[i : i + block],
            new_largest,
        )
        error = float((mixed / total - exact).abs().max())
        rows.append([" ".join(words[i : i + block]), *map(float, (largest, rescale, total)), error])
    shape = {"vocab_size": 100, "n_embd": 64, "n_layer": 1, "n_head": 4, "n_positions": max(LENGTHS)}
    spec = families.find("gpt2").read({**shape, "architectures": ["GPT2Model"]})
    memory = [[n, *(forward_cost(spec, n, fused=fused).bytes for fused in (False, True))] for n in LENGTHS]
    memory = [[*row, row[1] / row[2]] for row in memory]

    def draw() -> Any:
        figure, axes = new(2, 1, 11, 4)
        axes[0, 0].semilogy(range(1, len(rows) + 1), [max(row[-1], 1e-9) for row in rows], marker="o")
        axes[0, 0].set(xlabel="blocks read", title="difference from exact attention")
        axes[0, 0].locator_params(axis="x", integer=True)
        for column, name in ((1, "scores stored"), (2, "in blocks")):
            axes[0, 1].loglog(LENGTHS, [row[column] for row in memory], marker="o", label=name)
        axes[0, 1].set(xlabel="tokens", title="peak bytes of a layer (width 64, 4 heads)")
        axes[0, 1].set_xticks(LENGTHS, LENGTHS)
        axes[0, 1].set_xticks([], minor=True)
        axes[0, 1].legend()
        return figure

    return Shown(
        f"After the last block the result differs from exact attention by {tiny(rows[-1][-1])}; at {LENGTHS[-1]:,} "
        f"tokens stored scores need {memory[-1][-1]:.0f} times the memory.",
        [
            Table(f"{words[-1]!r} attends in blocks",
                  ("keys", "largest score", "factor for old sums", "sum of exp", "difference from exact"), rows),
            Table("peak bytes of one layer", ("tokens", "scores stored", "in blocks", "ratio"), memory),
        ],
        draw,
    )  # fmt: skip
