"""A pretraining budget: tokens, epochs, FLOPs and days from the batch, the steps, the corpus and the model.

The defaults are BERT's: 256 sequences of 512 tokens, 1 million steps, 3.3 billion words. For the days we assume that a
device runs at 40 % of its peak. Fine-tuning reads the 392,702 pairs of MNLI three times, 128 tokens each.
"""

from __future__ import annotations

from typing import Any

import anyformer as af
from anyformer.look.figures import new
from anyformer.specs.messages import amount
from anyformer_course.shown import Shown, Table

WORDS = {"BookCorpus": 0.8e9, "English Wikipedia": 2.5e9}  # [Devlin et al. 2018]
USED = 0.4  # share of the peak
PAIRS, EPOCHS, PAIR_LENGTH = 392_702, 3, 128  # fine-tuning on MNLI
TPU = 45.0  # peak of a TPU v2 chip, teraflops; a 4 x 4 slice has 16 chips, an 8 x 8 slice 64


def example(
    names: str = "bert-base bert-large", *, sequences: int = 256, length: int = 512, steps: int = 1_000_000,
    teraflops: float = 312.0, devices: int = 1,
) -> Shown:  # fmt: skip
    """Compute the budget of the named models. `teraflops`: peak of a device (312: an A100 in bfloat16)."""
    if not names.split():
        raise ValueError("name at least one description, for example 'bert-base'")
    if min(sequences, length, steps, teraflops, devices) <= 0:
        raise ValueError("sequences, length, steps, teraflops and devices must be above 0")
    batch = sequences * length
    tokens, words = batch * steps, sum(WORDS.values())
    rows = []
    for name in names.split():
        counted = af.count(af.spec(name))
        flops = 3 * counted.flops(length) * sequences * steps  # forward 1, backward 2
        tuning = 3 * counted.flops(PAIR_LENGTH) * PAIRS * EPOCHS
        days = [total / (USED * peak * 1e12 * number) / 86400
                for total, peak, number in ((flops, teraflops, devices), (flops, TPU, 16), (flops, TPU, 64),
                                            (tuning, teraflops, devices))]  # fmt: skip
        rows.append([name, counted.parameters, f"{6 * counted.active * tokens:.2e}", f"{flops:.2e}", *days[:3],
                     24 * days[3]])  # fmt: skip

    def draw() -> Any:
        figure, axes = new(2, 1, 9, 2.8)
        axes[0, 0].barh(["one step", "corpus", "all steps"], [batch, words, tokens])
        axes[0, 0].set_xscale("log")
        axes[0, 0].set_title("words or tokens", fontsize=10)
        jobs = [("pretraining", 4, 24), ("fine-tuning", 7, 1)]
        labels = [f"{row[0]}, {job}" for row in rows for job, _, _ in jobs]
        axes[0, 1].barh(labels, [row[i] * unit for row in rows for _, i, unit in jobs], color=["C1", "C2"] * len(rows))
        axes[0, 1].set_xscale("log")
        axes[0, 1].set_title(f"hours on {amount(devices, 'device')} of {teraflops:g} teraflops", fontsize=10)
        return figure

    where = amount(devices, "device")
    return Shown(
        f"A batch has {batch:,} tokens, {steps:,} steps read {tokens:.3g} tokens: {tokens / words:.1f} epochs of "
        f"{words:.2g} words. {rows[-1][0]} takes {rows[-1][4]:.0f} days on {where} of {teraflops:g} teraflops, its "
        f"fine-tuning {rows[-1][7]:.1f} hours.",
        [
            Table("data", ("of", "words or tokens"), [*WORDS.items(), ["batch", batch], ["all steps", tokens],
                                                      ["epochs", tokens / words]]),
            Table("days of pretraining and hours of fine-tuning, at 40 % of the peak",
                  ("model", "parameters", "FLOPs, 6 N D", "counted",
                  f"days, {where}", "16 TPUs", "64 TPUs", "hours, fine-tuning"), rows),
        ],
        draw,
    )  # fmt: skip
