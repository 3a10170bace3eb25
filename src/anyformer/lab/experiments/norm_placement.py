"""Norm placement: where the norms stand decides how large gradients are in each layer, and whether warm-up is needed.

The same decoder with norms after the add (post), before the branch (pre), around the branch (sandwich), and after the
add with a scaled skip (DeepNorm). Gradients by layer before the first step [Xiong et al. 2020], and the loss after a
training with warm-up and without.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import torch

from anyformer.construct import build
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.experiments._runs import SIZE, each_loss, texts, training, writer
from anyformer.lab.trials import Place, Row, Trial, Values
from anyformer.look import figures
from anyformer.model import Model
from anyformer.parts.init import Normal
from anyformer.parts.init import deepnorm as scaled_down
from anyformer.parts.norm import LayerNorm
from anyformer.parts.residual import Scaled, deepnorm
from anyformer.train.progress import read_metrics

CLAIM = (
    "before the first step the last layer's gradient is largest in post-norm, 1.5 times that of pre-norm or more, and "
    "without warm-up post-norm loses more than pre-norm does"
)
FORMS = {
    "tiny": Form(0.1, 0.1, {"depth": 2, "width": 16, "steps": 3, "batch": 2, "lr": 3e-3, "text": "made-up"}),
    "small": Form(2, 0.5, {"depth": 6, "width": 32, "steps": 200, "batch": 8, "lr": 3e-3, "text": "made-up"}),
    "full": Form(90, 3.5, {"depth": 16, "width": 192, "steps": 1200, "batch": 64, "lr": 2e-3, "text": "library"}),
}
DIVERGES = True  # a training that does is a result here
LENGTH, HEADS = 64, 4
PLACEMENTS = ("post", "pre", "sandwich", "deepnorm")


def trials(
    depth: int, width: int, steps: int, batch: int, lr: float, text: str, data: str | None = None, seed: int = 0,
) -> list[Trial]:
    same = {
        "depth": depth, "width": width, "steps": steps, "batch": batch, "lr": lr, "text": text, "data": data,
        "seed": seed,
    }  # fmt: skip
    return [
        Trial(f"{placement}-{'warm' if warm else 'cold'}", {"placement": placement, "warm": warm, **same})
        for placement in PLACEMENTS for warm in (True, False)
    ]  # fmt: skip


def placed(placement: str, width: int, depth: int) -> Model:
    """The norms of every sublayer; all start from Xavier's numbers, so that the placement is all that differs."""
    norm, alpha, beta = LayerNorm(), 1.0, 1.0
    where = {"post": ("out_norm",), "pre": ("pre_norm",), "sandwich": ("pre_norm", "post_norm"),
             "deepnorm": ("out_norm",)}[placement]  # fmt: skip
    if placement == "deepnorm":
        alpha, beta = deepnorm(decoder=depth)["decoder"]
    init = {**scaled_down(decoder=beta), "*": Normal(std=width**-0.5)}
    changes: dict[str, Any] = {
        "init": init, "embedding.scale": width**0.5, "decoder.norm": None if "out_norm" in where else norm
    }  # fmt: skip
    for step in ("attention", "feedforward"):
        for slot in ("pre_norm", "post_norm", "out_norm"):
            changes[f"decoder.layers.{step}.{slot}"] = norm if slot in where else None
        changes[f"decoder.layers.{step}.residual"] = Scaled(skip=alpha)
    return writer(width, depth, HEADS, LENGTH, changes)


def work(values: Values, place: Place) -> list[Row]:
    model = placed(values["placement"], values["width"], values["depth"])
    rows = gradients(model, place.device) if values["warm"] else []
    run = training(
        values["placement"], model, texts(place, values["text"], values["data"]), place.device, steps=values["steps"],
        batch=values["batch"], length=LENGTH, lr=values["lr"],
        warmup=max(values["steps"] // 5, 1) if values["warm"] else 0, seed=values["seed"],
    )  # fmt: skip
    try:
        lines = read_metrics(place.train(run).folder)
    except FloatingPointError as error:  # which is a result here
        return [*rows, {"failed": str(error)}]
    rows += [{"step": line["step"], "loss": line["loss"]} for line in lines if "loss" in line]
    return [*rows, {"valid": lines[-1]["valid/loss"]}]


def gradients(spec: Model, device: str, rows: int = 16) -> list[Row]:
    """How long the gradient of the expected loss is in the feed-forward's second matrix of every layer [Xiong et al.
    2020, figure 3], before the first step."""
    model = build(spec, seed=0).to(device)
    ids = torch.randint(0, SIZE, (rows, LENGTH), generator=torch.Generator().manual_seed(0)).to(device)
    each_loss(model(input_ids=ids).logits, ids).mean().backward()
    found = [p for name, p in model.named_parameters() if name.endswith("feedforward.op.down.weight")]
    return [{"layer": i, "gradient": float(p.grad.norm())} for i, p in enumerate(found) if p.grad is not None]


def claim(rows: Sequence[Row]) -> Verdict:
    last, spread, lost = {}, {}, {}
    for placement in PLACEMENTS:
        own = [row for row in rows if row["placement"] == placement]
        by_layer = [row["gradient"] for row in own if "gradient" in row]
        last[placement], spread[placement] = by_layer[-1], by_layer[-1] / by_layer[0]
        ends = {row["warm"]: row.get("valid") for row in own if "valid" in row or "failed" in row}
        warm, cold = ends[True], ends[False]
        lost[placement] = float("inf") if cold is None else cold - (cold if warm is None else warm)
    found = {f"last layer / post-norm's, {name}": value / last["post"] for name, value in last.items()}
    found |= {f"last / first layer, {name}": value for name, value in spread.items()}
    found |= {f"lost without warm-up, {name}": value for name, value in lost.items()}
    large = last["post"] == max(last.values()) and last["post"] >= 1.5 * last["pre"]  # sqrt(depth) [Xiong et al. 2020]
    return Verdict(large and lost["post"] > max(lost["pre"], 0), found)


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(3, 1, 14, 4)
    for number, placement in enumerate(PLACEMENTS):
        own, colour = [row for row in rows if row["placement"] == placement], f"C{number}"
        points = [(row["layer"], row["gradient"]) for row in own if "gradient" in row]
        axes[0, 0].plot(*zip(*points), marker="o", color=colour, label=placement)
        for axis, warm in ((axes[0, 1], True), (axes[0, 2], False)):
            curve = [row["loss"] for row in own if row["warm"] is warm and "loss" in row]
            near = [statistics.mean(curve[max(i - 10, 0) : i + 1]) for i in range(len(curve))]
            axis.plot(range(1, len(near) + 1), near, color=colour, label=placement)
    axes[0, 0].set(yscale="log", xlabel="layer", title="gradient before the first step")
    axes[0, 1].set(xlabel="step", title="loss with warm-up")
    axes[0, 2].set(xlabel="step", title="loss without warm-up")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
        axis.legend(frameon=False, fontsize=8)
    return figure
