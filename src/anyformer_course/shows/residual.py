"""Residual connections: with x + f(x) deep stacks learn, with f(x) they do not.

The same decoder learns a text by heart, with the skip connection and without it. Without it the words become alike
layer by layer, and the loss stays high.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

import anyformer as af
from anyformer.look import figures
from anyformer.specs.field_types import Count
from anyformer.specs.messages import amount
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._small import decoder

TEXT = "The detective investigated the case."


def example(text: str = TEXT, *, depth: int = 8, width: Count = 32, steps: int = 40, seed: int = 0) -> Shown:
    """Train on the text for `steps` steps with and without skip connections; compare words, gradients and losses."""
    data = text.encode()[:48]
    if len(data) < 2:
        raise ValueError("the text is too short; write at least two letters")
    if not (1 <= depth <= 32 and 0 <= steps <= 200):
        raise ValueError("depth must be from 1 to 32 and steps from 0 to 200")
    ids = torch.tensor([list(data)])
    runs = {name: learn(skip, ids, depth, width, steps, seed) for name, skip in (("x + f(x)", 1.0), ("f(x)", 0.0))}
    with_skip, without = runs.values()

    def draw() -> Any:
        figure, axes = figures.new(2, 1, 9, 3.4)
        for name, run in runs.items():
            axes[0, 0].plot(range(depth + 1), run["alike"], "o-", label=name, markersize=4)
            axes[0, 1].plot(run["loss"], label=name)
        axes[0, 0].set(xlabel="layer", title="mean cosine of two words, before training")
        axes[0, 0].locator_params(axis="x", integer=True)
        axes[0, 1].set(xlabel="step", title="loss, nats per letter", ylim=(0, None))
        for axis in axes[0]:
            axis.legend(frameon=False)
        return figure

    return Shown(
        f"After {amount(steps, 'step')} with {amount(depth, 'layer')} the loss is {with_skip['loss'][-1]:.2f} with "
        "skip connections and "
        f"{without['loss'][-1]:.2f} without.",
        [
            Table(
                "the same decoder",
                ("layers compute", "loss before", "loss after", "gradient of layer 1", "gradient of the last layer",
                 "cosine of two words after the last layer"),
                [
                    [name, run["loss"][0], run["loss"][-1], run["gradients"][0], run["gradients"][-1], run["alike"][-1]]
                    for name, run in runs.items()
                ],
            ),
            Table(
                "mean cosine of two words, before training", ("after layer", *runs),
                [[i, *row] for i, row in enumerate(zip(*(run["alike"] for run in runs.values())))],
            ),
        ],
        draw,
    )  # fmt: skip


def learn(skip: float, ids: torch.Tensor, depth: int, width: int, steps: int, seed: int) -> dict[str, list[float]]:
    """Return the loss by step, and before training the gradient and the similarity of words by layer."""
    steps_of_layer = ("attention", "feedforward")
    changes = {f"decoder.layers.{step}.residual": af.parts.Scaled(skip=skip) for step in steps_of_layer}
    model = af.build(decoder(256, width=width, depth=depth, changes=changes), seed=seed)
    with torch.no_grad():
        run = af.trace(model, keep=["embedding", "decoder.layers.*"], input_ids=ids)
    streams = [run["embedding"][0], *(run[f"decoder.layers.{i}"][0] for i in range(depth))]
    alike = [similarity(stream) for stream in streams]
    optimizer, losses, gradients = torch.optim.Adam(model.parameters(), lr=1e-2, fused=True), [], []
    for step in range(steps + 1):
        loss = F.cross_entropy(model(input_ids=ids).logits[0, :-1], ids[0, 1:])
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            named: dict[str, Any] = dict(model.named_parameters())
            names = [f"decoder.layers.{i}.feedforward.op.down.weight" for i in range(depth)]
            gradients = [float(named[name].grad.norm()) for name in names]
        optimizer.step()
    return {"loss": losses, "gradients": gradients, "alike": alike}


def similarity(x: torch.Tensor) -> float:
    """Return the mean cosine of two different rows."""
    unit = F.normalize(x.reshape(-1, x.shape[-1]), dim=-1)
    T = len(unit)
    return float(((unit @ unit.T).sum() - T) / (T * (T - 1)))
