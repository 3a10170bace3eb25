"""All at once: a Transformer learns from all positions of a text in one pass; without the causal mask, one pass each.

Measured is the time of a training step (forward and backward) over texts of growing length, on the device and in one
process. The same Transformer reads all positions at once, with the causal mask, or one position at a time: a pass over
the tokens before it for every prediction [Vaswani et al. 2017]. An LSTM with as many parameters reads the text in one
call, but its steps wait for each other. Loss and gradients of the first two are compared: the mask must change only the
time. The weights of each of the repetitions have their own seed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from anyformer.counting import count
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.scale import SIZE
from anyformer.lab.trials import Place, Row, Trial, Values
from anyformer.look import figures
from anyformer.models import Model, TransformerModule
from anyformer.models.construct import build
from anyformer.parts.recurrent.lstm import LSTM
from anyformer_course.lab.runs import each_loss, processor_seconds, writer

CLAIM = (
    "with every seed, loss and gradients of all positions at once and of one position at a time differ by at most 0.1 "
    "%, and at the longest text read both ways, all at once takes at most a tenth of the time; on a GPU, an LSTM with "
    "as many parameters takes at least 3 times as long as the Transformer at the longest text (not judged on a CPU, "
    "where one thread does nothing in parallel)"
)
FORMS = {
    "tiny": Form(0.1, 0.1, {"width": 16, "depth": 1, "batch": 1, "lengths": [8, 16], "longest": 16, "seeds": 1}),
    "small": Form(1, 0.5, {
        "width": 64, "depth": 1, "batch": 4, "lengths": [32, 64, 128, 256], "longest": 64, "seeds": 2
    }),
    "full": Form(20, 2.5, {
        "width": 512, "depth": 6, "batch": 8, "lengths": [128, 256, 512, 1024, 2048], "longest": 512, "seeds": 3
    }),
}  # fmt: skip
KINDS = ("all at once", "one by one", "lstm")


def trials(width: int, depth: int, batch: int, lengths: list[int], longest: int, seeds: int) -> list[Trial]:
    """Return one trial, so that nothing of this experiment runs at the same time. Texts above `longest` are not read
    one position at a time."""
    values = {"width": width, "depth": depth, "batch": batch, "lengths": lengths, "longest": longest, "seeds": seeds}
    return [Trial("times", values)]


def model_spec(recurrent: bool, width: int, depth: int, length: int) -> Model:
    """Return a decoder with attention or, with about as many parameters in a narrower model, an LSTM."""

    def decoder(width: int, changes: dict[str, Any]) -> Model:
        return writer(width, depth, max(width // 64, 1), length, {"embedding.position": None, **changes}, scaled=True)

    attention = decoder(width, {})
    if not recurrent:
        return attention
    wanted = count(attention).parameters
    narrower = [decoder(each, {"decoder.layers.attention.op": LSTM()}) for each in range(width // 2, width + 1, 4)]
    return min(narrower, key=lambda spec: abs(count(spec).parameters - wanted))


def work(values: Values, place: Place) -> list[Row]:
    rows: list[Row] = []
    for seed in range(values["seeds"]):
        for length in values["lengths"]:
            draw = torch.Generator().manual_seed(seed)
            ids = torch.randint(SIZE, (values["batch"], length), generator=draw).to(place.device)
            measured: dict[str, tuple[float, Tensor]] = {}
            for kind in KINDS:
                if kind == "one by one" and length > values["longest"]:
                    continue
                spec = model_spec(kind == "lstm", values["width"], values["depth"], max(values["lengths"]))
                model = build(spec, seed=seed).to(place.device)
                learn = learn_one_by_one if kind == "one by one" else learn_at_once
                measured[kind] = learn(model, ids)
                seconds = processor_seconds(run_of(learn, model, ids), place.device, times=3)
                row = {"kind": kind, "seed": seed, "tokens": length, "seconds": seconds}
                rows.append({**row, "parameters": count(spec).parameters, "gpu": place.device.startswith("cuda")})
            if "one by one" in measured:
                rows[-1] |= {"difference": difference(measured["all at once"], measured["one by one"])}
    return rows


def run_of(learn: Callable[..., Any], model: TransformerModule, ids: Tensor) -> Callable[[], Any]:
    return lambda: learn(model, ids)


def learn_at_once(model: TransformerModule, ids: Tensor) -> tuple[float, Tensor]:
    """Return the loss (mean over all predictions) and its gradients, from one pass."""
    model.zero_grad()
    loss = each_loss(model(input_ids=ids, use_cache=False).logits, ids).mean()
    loss.backward()
    return float(loss.detach()), gradients(model)


def learn_one_by_one(model: TransformerModule, ids: Tensor) -> tuple[float, Tensor]:
    """Return the same loss and gradients, from one pass per prediction."""
    model.zero_grad()
    total, number = 0.0, ids.shape[1] - 1
    for t in range(1, number + 1):
        logits = model(input_ids=ids[:, :t], use_cache=False).logits[:, -1].float()
        loss = torch.nn.functional.cross_entropy(logits, ids[:, t]) / number
        loss.backward()
        total += float(loss.detach())
    return total, gradients(model)


def gradients(model: TransformerModule) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).clone()


def difference(ours: tuple[float, Tensor], theirs: tuple[float, Tensor]) -> float:
    """Return the larger relative difference, of the losses or of the gradients."""
    loss = abs(ours[0] - theirs[0]) / abs(theirs[0])
    return max(loss, float((ours[1] - theirs[1]).norm() / theirs[1].norm()))


# -- results ----------------------------------------------------------------------------------------------------------


def seconds(rows: Sequence[Row], kind: str, tokens: int) -> list[float]:
    """Return the time of every seed."""
    return [row["seconds"] for row in rows if row["kind"] == kind and row["tokens"] == tokens]


def exponent(rows: Sequence[Row], kind: str) -> float:
    points = [(math.log(row["tokens"]), math.log(row["seconds"])) for row in rows if row["kind"] == kind]
    return statistics.linear_regression(*zip(*points)).slope


def claim(rows: Sequence[Row]) -> Verdict:
    both, longest = (max(row["tokens"] for row in rows if row["kind"] == kind) for kind in ("one by one", "lstm"))
    fast = [one / all_ for one, all_ in zip(seconds(rows, KINDS[1], both), seconds(rows, KINDS[0], both), strict=True)]
    times = zip(seconds(rows, "lstm", longest), seconds(rows, KINDS[0], longest), strict=True)
    slow = [lstm / ours for lstm, ours in times]
    apart = max(row["difference"] for row in rows if "difference" in row)
    parallel = not rows[0]["gpu"] or min(slow) >= 3
    sizes = {row["kind"]: row["parameters"] for row in rows}
    return Verdict(
        apart <= 1e-3 and min(fast) >= 10 and parallel,
        {
            f"one by one / all at once, {both} tokens, smallest of all seeds": min(fast),
            f"LSTM / Transformer, {longest} tokens, smallest of all seeds": min(slow),
            "largest relative difference of loss and gradients": apart,
            **{f"exponent of time, {kind}": exponent(rows, kind) for kind in KINDS},
            **{f"seconds, {kind}, {both} tokens": statistics.median(seconds(rows, kind, both)) for kind in KINDS},
            "parameters of the LSTM / of the Transformer": sizes["lstm"] / sizes["all at once"],
        },
    )


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(1, 1, 7, 4.5)
    for number, kind in enumerate(KINDS):
        points = [(row["tokens"], row["seconds"]) for row in rows if row["kind"] == kind]
        lengths = sorted({tokens for tokens, _ in points})
        middle = [statistics.median(seconds(rows, kind, tokens)) for tokens in lengths]
        axes[0, 0].loglog(lengths, middle, color=f"C{number}", label=kind)
        axes[0, 0].loglog(*zip(*points), "o", markersize=4, color=f"C{number}")
    axes[0, 0].set(xlabel="tokens", title="seconds of a training step, one point per seed")
    axes[0, 0].legend(frameon=False)
    axes[0, 0].grid(alpha=0.3)
    return figure
