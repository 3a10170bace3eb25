"""The KV cache step by step: what each new token computes with it and without it.

A small GPT with random weights reads your text one word at a time. With a cache it computes keys and values of the new
word only; without a cache it reads the whole text again.
"""

from __future__ import annotations

from typing import Any

import torch

import anyformer as af
from anyformer.look.figures import new
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._trained import describe
from anyformer_course.table import tiny
from anyformer_course.words import split


def example(text: str = "the cat sat on the mat", *, kv_heads: int = 4, seed: int = 0) -> Shown:
    """Read the text token by token. `kv_heads` is the number of key and value heads: 4 (all), 2 or 1."""
    if kv_heads not in (1, 2, 4):
        raise ValueError(f"kv_heads is {kv_heads}; it must divide the 4 query heads: 1, 2 or 4")
    words = split(text)
    vocabulary = sorted({*words})
    spec = describe("gpt2", len(vocabulary), **{"decoder.layers.attention.op.num_kv_heads": kv_heads})
    model = af.build(spec, seed=seed).eval()
    ids = torch.tensor([[vocabulary.index(word) for word in words]])
    count = af.count(spec)
    rows, state, worst, totals = [], None, 0.0, [0, 0]
    for t in range(1, len(words) + 1):
        with torch.no_grad():
            step = model(input_ids=ids[:, t - 1 : t], past_key_values=state, use_cache=True)
            whole = model(input_ids=ids[:, :t])
        state = step.past_key_values
        worst = max(worst, float((step.logits[0, -1] - whole.logits[0, -1]).abs().max()))
        flops = count.decode(t).flops if t > 1 else count.flops(1), count.flops(t)
        totals = [total + each for total, each in zip(totals, flops, strict=True)]
        rows.append([t, words[t - 1], 1, t, state.nbytes, *flops])

    def draw() -> Any:
        figure, axes = new(1, 1, 6, 3.5)
        for column, label in ((5, "with a cache"), (6, "without")):
            axes[0, 0].plot([row[0] for row in rows], [row[column] for row in rows], marker="o", label=label)
        axes[0, 0].set_xticks(range(1, len(words) + 1), [f"{i + 1}\n{word}" for i, word in enumerate(words)])
        axes[0, 0].set_ylabel("FLOPs of the step")
        axes[0, 0].set_ylim(bottom=0)
        axes[0, 0].legend()
        return figure

    columns = (
        "step",
        "word",
        "tokens computed",
        "without cache",
        "bytes in the cache",
        "FLOPs",
        "FLOPs without",
    )
    return Shown(
        f"the scores are the same (largest difference {tiny(worst)}), for {totals[1] / totals[0]:.1f} times fewer "
        "FLOPs",
        [Table("reading word by word", columns, rows)],
        draw,
    )
