"""A pretraining budget: tokens, epochs, FLOPs and days from the batch, the steps, the corpus and the model.

The defaults are BERT's: 256 sequences of 512 tokens, 1 million steps, 3.3 billion words. For the days we assume that a
device runs at 40 % of its peak.
"""

from __future__ import annotations

from typing import Any

import anyformer as af
from anyformer.look.figures import new
from anyformer_course.shown import Shown, Table

WORDS = {"BookCorpus": 0.8e9, "English Wikipedia": 2.5e9}  # [Devlin et al. 2018]
USED = 0.4  # share of the peak


def example(
    names: str = "bert-base bert-large", *, sequences: int = 256, length: int = 512, steps: int = 1_000_000,
    teraflops: float = 312.0, devices: int = 1,
) -> Shown:  # fmt: skip
    """Compute the budget of the named models. `teraflops`: peak of a device (312: an A100 in bfloat16)."""
    if min(sequences, length, steps, teraflops, devices) <= 0 or not names.split():
        raise ValueError("sequences, length, steps, teraflops and devices must be above 0")
    batch = sequences * length
    tokens, words = batch * steps, sum(WORDS.values())
    rows = []
    for name in names.split():
        counted = af.count(af.spec(name))
        flops = 3 * counted.flops(length) * sequences * steps  # forward 1, backward 2
        days = flops / (USED * teraflops * 1e12 * devices) / 86400
        rows.append([name, counted.parameters, 6 * counted.active * tokens, flops, days])

    def draw() -> Any:
        figure, axes = new(2, 1, 9, 2.8)
        axes[0, 0].barh(["one step", "corpus", "all steps"], [batch, words, tokens])
        axes[0, 0].set_xscale("log")
        axes[0, 0].set_title("words or tokens", fontsize=10)
        axes[0, 1].barh([row[0] for row in rows], [row[4] for row in rows], color="C1")
        axes[0, 1].set_title(f"days on {devices} device(s) of {teraflops:g} teraflops", fontsize=10)
        return figure

    return Shown(
        f"A batch has {batch:,} tokens, {steps:,} steps read {tokens:.3g} tokens: {tokens / words:.1f} epochs of "
        f"{words:.2g} words. {rows[-1][0]} takes {rows[-1][4]:.0f} days on {devices} device(s).",
        [
            Table("data", ("of", "words or tokens"), [*WORDS.items(), ["batch", batch], ["all steps", tokens],
                                                      ["epochs", tokens / words]]),
            Table("training", ("model", "parameters", "FLOPs, 6 N D", "FLOPs, counted", "days"), rows),
        ],
        draw,
    )  # fmt: skip
