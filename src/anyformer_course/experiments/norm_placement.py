"""Norm placement: the position of norms decides how large gradients are in each layer, and whether warm-up is needed.

The same decoder has norms after the sum (post), before the branch (pre), around the branch (sandwich), or after the sum
with a scaled skip connection (DeepNorm). Measured are gradients by layer before the first step [Xiong et al. 2020], and
the final loss at several rates, with and without warm-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.scale import SIZE
from anyformer.lab.training import training_run
from anyformer.lab.trials import Place, Row, Trial, Values
from anyformer.look import figures
from anyformer.models import Model
from anyformer.models.construct import build
from anyformer.parts.init import Normal
from anyformer.parts.init import deepnorm as scaled_down
from anyformer.parts.norm import LayerNorm
from anyformer.parts.residual import Scaled, deepnorm
from anyformer_course.lab.runs import each_loss, mean, texts, writer

CLAIM = (
    "before the first step the last layer's gradient is largest in post-norm, at least 1.5 times pre-norm's, and "
    "without warm-up post-norm loses 0.1 nats more than pre-norm, in the mean over rates"
)
FORMS = {
    "tiny": Form(0.1, 0.1, {"depth": 2, "width": 16, "steps": 3, "batch": 2, "rates": [3e-3], "text": "made-up"}),
    "small": Form(
        2, 0.5, {"depth": 6, "width": 32, "steps": 160, "batch": 8, "rates": [4e-3, 5.5e-3, 7e-3], "text": "made-up"}
    ),
    "full": Form(
        240,
        3.5,
        {"depth": 12, "width": 192, "steps": 1000, "batch": 64, "rates": [2.5e-4, 5e-4, 1e-3, 2e-3], "text": "library"},
    ),
}
DIVERGES = True  # divergence is a result of this experiment
LENGTH, HEADS = 64, 4
PLACEMENTS = ("post", "pre", "sandwich", "deepnorm")


def trials(
    depth: int,
    width: int,
    steps: int,
    batch: int,
    rates: list[float],
    text: str,
    data: str | None = None,
    seed: int = 0,
) -> list[Trial]:
    """Return a trial for the gradients of every placement, and trials for its trainings."""
    same = {"depth": depth, "width": width, "steps": steps, "batch": batch, "text": text, "data": data, "seed": seed}
    trained = [(f"{'warm' if warm else 'cold'}-{lr:g}", lr, warm) for lr in rates for warm in (True, False)]
    ways: list[tuple[str, float | None, bool | None]] = [("gradients", None, None), *trained]
    return [
        Trial(f"{placement}-{name}", {"placement": placement, "lr": lr, "warm": warm, **same})
        for placement in PLACEMENTS
        for name, lr, warm in ways
    ]


def model_spec(placement: str, width: int, depth: int) -> Model:
    """Return a decoder with this placement of norms. The initialization is the same, except that DeepNorm scales it."""
    norm, alpha, beta = LayerNorm(), 1.0, 1.0
    where = {
        "post": ("out_norm",),
        "pre": ("pre_norm",),
        "sandwich": ("pre_norm", "post_norm"),
        "deepnorm": ("out_norm",),
    }[placement]
    if placement == "deepnorm":
        alpha, beta = deepnorm(decoder=depth)["decoder"]
    init = {**scaled_down(decoder=beta), "*": Normal(std=width**-0.5)}
    changes: dict[str, Any] = {
        "init": init,
        "embedding.scale": width**0.5,
        "decoder.norm": None if "out_norm" in where else norm,
    }
    for step in ("attention", "feedforward"):
        for slot in ("pre_norm", "post_norm", "out_norm"):
            changes[f"decoder.layers.{step}.{slot}"] = norm if slot in where else None
        changes[f"decoder.layers.{step}.residual"] = Scaled(skip=alpha)
    return writer(width, depth, HEADS, LENGTH, changes)


def work(values: Values, place: Place) -> list[Row]:
    model, steps = model_spec(values["placement"], values["width"], values["depth"]), values["steps"]
    if values["lr"] is None:
        return gradients(model, place.device)
    run = training_run(
        values["placement"],
        model,
        texts(place, values["text"], values["data"]),
        place.device,
        steps=steps,
        batch=values["batch"],
        length=LENGTH,
        lr=values["lr"],
        warmup=max(steps // 5, 1) if values["warm"] else 0,
        seed=values["seed"],
    )
    return [{"valid": place.train(run).scores["loss"]}]


def gradients(spec: Model, device: str, rows: int = 16) -> list[Row]:
    """Return the norm of the gradient in the feed-forward's second matrix of every layer before the first step [Xiong
    et al. 2020, figure 3]."""
    model = build(spec, seed=0).to(device)
    ids = torch.randint(0, SIZE, (rows, LENGTH), generator=torch.Generator().manual_seed(0)).to(device)
    each_loss(model(input_ids=ids).logits, ids).mean().backward()
    matrices = [p for name, p in model.named_parameters() if name.endswith("feedforward.op.down.weight")]
    return [{"layer": i, "gradient": float(p.grad.norm())} for i, p in enumerate(matrices) if p.grad is not None]


def ends(rows: Sequence[Row], placement: str, warm: bool) -> dict[float, float]:
    """Return rate -> last loss; for a diverged training, the highest loss of all."""
    worst = max(row["valid"] for row in rows if "valid" in row)
    group = [row for row in rows if row["placement"] == placement and row["warm"] is warm]
    return {row["lr"]: row.get("valid", worst) for row in group}


def claim(rows: Sequence[Row]) -> Verdict:
    last, spread, lost = {}, {}, {}
    results: dict[str, float] = {}
    for placement in PLACEMENTS:
        by_layer = [row["gradient"] for row in rows if row["placement"] == placement and "gradient" in row]
        last[placement], spread[placement] = by_layer[-1], by_layer[-1] / by_layer[0]
        warm, cold = ends(rows, placement, True), ends(rows, placement, False)
        lost[placement] = mean([cold[lr] - warm[lr] for lr in warm])
        for way, by_rate in (("warm", warm), ("cold", cold)):
            results |= {f"loss, {placement}, {way}, {lr:g}": value for lr, value in by_rate.items()}
    results |= {f"last layer / post-norm's, {name}": value / last["post"] for name, value in last.items()}
    results |= {f"last / first layer, {name}": value for name, value in spread.items()}
    results |= {f"lost without warm-up, {name}": value for name, value in lost.items()}
    large = last["post"] == max(last.values()) and last["post"] >= 1.5 * last["pre"]  # sqrt(depth) [Xiong et al. 2020]
    return Verdict(large and lost["post"] >= lost["pre"] + 0.1, results)


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(3, 1, 14, 4)
    for number, placement in enumerate(PLACEMENTS):
        style = {"marker": "o", "color": f"C{number}", "label": placement}
        points = [
            (row["layer"], row["gradient"]) for row in rows if row["placement"] == placement and "gradient" in row
        ]
        axes[0, 0].plot(*zip(*points), **style)
        for axis, warm in ((axes[0, 1], True), (axes[0, 2], False)):
            axis.plot(*zip(*ends(rows, placement, warm).items()), **style)
    axes[0, 0].set(yscale="log", xlabel="layer", title="gradient before the first step")
    axes[0, 1].set(xscale="log", xlabel="rate", title="last loss with warm-up")
    axes[0, 2].set(xscale="log", xlabel="rate", title="last loss without warm-up")
    axes[0, 2].sharey(axes[0, 1])
    for axis in axes.flat:
        axis.grid(alpha=0.3)
        axis.legend(frameon=False, fontsize=8)
    return figure
