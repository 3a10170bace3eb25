"""Neurons of a feed-forward layer: which words make a neuron active, and which next words it makes more likely.

A neuron reads the stream with a row of the first matrix and writes a column of the second matrix times its activation.
So a feed-forward layer is a memory of keys and values [Geva et al. 2021]. The contributions add up exactly.
"""

from __future__ import annotations

from typing import Any

import torch

import anyformer as af
from anyformer.look.figures import new
from anyformer.specs.field_types import Count
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._tales import TALES, train_on_tales


def example(text: str = "once upon a time", *, layer: int = 2, top: Count = 5) -> Shown:
    """Explain the prediction after `text` by the `top` neurons of a layer (1 or 2) that add most to its score."""
    if layer not in (1, 2):
        raise ValueError(f"layer is {layer}; the small model has layers 1 and 2")
    small, words = train_on_tales(text)
    op = f"decoder.layers.{layer - 1}.feedforward"
    with torch.no_grad():
        run = af.trace(small.model, input_ids=torch.tensor([[1, *small.ids(" ".join(words))]]))
        answer = int(run.output.logits[0, -1].argmax())
        shares = af.look.neurons(run, token=answer)
        units = [each for each in shares.best(2 * 192) if each.address.startswith(op)][:top]
        feed = small.model.decoder.layers[layer - 1].feedforward
        writes = feed.op.down.weight.T @ small.model.head.out.weight.T  # (neurons, vocabulary)
        reads: dict[int, tuple[float, str]] = {}  # neuron -> (activation, text up to the word)
        for line in dict.fromkeys((*TALES.splitlines(), " ".join(words))):
            each = af.trace(small.model, keep=f"{op}.op.up", input_ids=torch.tensor([[1, *small.ids(line)]]))
            active = torch.nn.functional.gelu(each[f"{op}.op.up"][0, 1:], approximate="tanh")
            for unit in (each.unit for each in units):
                value, place = active[:, unit].max(0)
                reads[unit] = max(reads.get(unit, (-1.0, "")), (float(value), tail(line.split()[: int(place) + 1])))
    rows = [
        [each.unit, each.activation, each.share, *reads[each.unit],
         ", ".join(small.tokens[i] for i in writes[each.unit].mul(1 if each.activation > 0 else -1).topk(3).indices)]
        for each in units
    ]  # fmt: skip
    every = next(value[0] for address, value in shares.shares.items() if address.startswith(op))
    activations = next(value[0] for address, value in shares.activations.items() if address.startswith(op))

    def draw() -> Any:
        figure, axes = new(2, 1, 11, 3.6)
        axes[0, 0].bar(range(len(every)), activations.tolist(), width=1.0)
        axes[0, 0].set(xlabel="neuron", title=f"activations of layer {layer} at '{words[-1]}'")
        axes[0, 1].barh([f"neuron {row[0]}" for row in rows][::-1], [row[2] for row in rows][::-1])
        axes[0, 1].set_title(f"added to the score of '{small.tokens[answer]}'")
        return figure

    return Shown(
        f"after {' '.join(words)!r} the model predicts {small.tokens[answer]!r}; neuron {rows[0][0]} of layer {layer} "
        f"adds {rows[0][2]:.2f} to its score, all {len(every)} neurons together {float(every.sum()):.2f}.",
        [
            Table(f"the {len(rows)} neurons of layer {layer} with the largest share",
                  ("neuron", "activation here", "added to score", "largest", "... after the words",
                   "makes more likely"), rows),
            Table("all neurons of the layer", ("what", "number"), [
                ["neurons", len(every)], ["active (above 0.1)", int((activations > 0.1).sum())],
                ["sum of their shares of the score", float(every.sum())],
                ["parameters of the layer", sum(each.numel() for each in feed.op.parameters())],
            ]),
        ],
        draw,
    )  # fmt: skip


def tail(words: list[str]) -> str:
    return " ".join(words[-4:])
