"""Generation time: the total cost of generating a text with a KV cache, without one, and with a state of fixed size.

A decoder with a KV cache, the same decoder without one, and RWKV and Mamba of the same width and depth generate texts
of growing length. The operations of all tokens are counted (`lab/forward_cost.py`), so they do not depend on other
work of the machine or on a seed. Processor time is measured for shorter texts, but not judged. The exponent is the
slope of log(operations) by log(tokens) over the longer half.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from anyformer import families
from anyformer.counting import count
from anyformer.generation import generate
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.scale import SIZE
from anyformer.lab.trials import Place, Row, TrialGrid, Values
from anyformer.look import figures
from anyformer.models import Model, TransformerModule
from anyformer.models.construct import build
from anyformer_course.lab.forward_cost import forward_cost
from anyformer_course.lab.runs import processor_seconds, writer

CLAIM = (
    "without a cache the longest text takes at least twice as many operations as with a cache, and the exponent is "
    "higher; the exponents of RWKV and Mamba are at most 1.01, and their states do not grow"
)
FORMS = {
    "tiny": Form(0.1, 0.1, {"depth": 1, "width": 16, "lengths": [8, 16], "timed": 8}),
    "small": Form(1, 0.5, {"depth": 2, "width": 128, "lengths": [64, 128, 256, 512, 1024], "timed": 256}),
    "full": Form(3, 2.5, {"depth": 8, "width": 1024, "lengths": [128, 256, 512, 1024, 2048, 4096], "timed": 2048}),
}
KINDS = ("cache", "no cache", "rwkv", "mamba")
POINTS = 33  # lengths at which the cost of a token is counted; between them it is interpolated
trials = TrialGrid("{model}", model=KINDS)


def model_spec(kind: str, width: int, depth: int, length: int) -> Model:
    if kind in ("cache", "no cache"):
        return writer(width, depth, max(width // 64, 1), length)
    config = {"vocab_size": SIZE, "hidden_size": width, "num_hidden_layers": depth, "eos_token_id": 0}
    if kind == "rwkv":
        return families.find("rwkv").read({**config, "architectures": ["RwkvForCausalLM"], "context_length": length})
    return families.find("mamba").read({**config, "architectures": ["MambaForCausalLM"]})


def work(values: Values, place: Place) -> list[Row]:
    kind, last = values["model"], max(values["lengths"])
    spec = model_spec(kind, values["width"], values["depth"], last + 1)
    total = np.cumsum(token_costs(spec, last, cached=kind != "no cache"))
    model, counted = build(spec, seed=0).to(place.device).eval(), count(spec)
    rows: list[Row] = []
    for length in values["lengths"]:
        state = counted.state(1, length) if kind != "no cache" else 0
        seconds = decode_seconds(model, length, kind != "no cache", place.device) if length <= values["timed"] else None
        rows.append({"tokens": length, "flops": float(total[length - 1]), "seconds": seconds, "state": state})
    return rows


def token_costs(spec: Model, length: int, cached: bool) -> np.ndarray:
    """Return the operations of generating each token (length,), after a prompt of one token."""
    points = np.unique(np.linspace(2, length + 1, min(POINTS, length)).round().astype(int))
    costs = [forward_cost(spec, int(tokens), step=cached).flops for tokens in points]
    return np.interp(np.arange(2, length + 2), points, costs)


def decode_seconds(model: TransformerModule, length: int, cached: bool, device: str) -> float:
    """Return the processor time of generating a text."""
    ids = torch.ones(1, 1, dtype=torch.long, device=device)
    settings: dict[str, Any] = {
        "max_new_tokens": length,
        "min_new_tokens": length,
        "do_sample": False,
        "pad_token_id": 0,
    }
    return processor_seconds(lambda: generate(model, input_ids=ids, use_cache=cached, **settings), device, times=1)


def exponent(points: Sequence[tuple[int, float]]) -> float:
    """Return the slope of log(operations) by log(tokens) over the longer half."""
    logs = [(math.log(tokens), math.log(flops)) for tokens, flops in points[len(points) // 2 - 1 :]]
    return statistics.linear_regression(*zip(*logs)).slope


def claim(rows: Sequence[Row]) -> Verdict:
    costs = {kind: [(row["tokens"], row["flops"]) for row in rows if row["model"] == kind] for kind in KINDS}
    slopes = {kind: exponent(points) for kind, points in costs.items()}
    ratio = costs["no cache"][-1][1] / costs["cache"][-1][1]
    timed = {kind: [row["seconds"] for row in rows if row["model"] == kind and row["seconds"]] for kind in KINDS}
    states = {kind: [row["state"] for row in rows if row["model"] == kind] for kind in KINDS}
    flat = all(len(set(states[kind])) == 1 for kind in ("rwkv", "mamba"))
    flat = flat and max(slopes["rwkv"], slopes["mamba"]) <= 1.01
    holds = ratio >= 2 and slopes["no cache"] > slopes["cache"] and flat
    return Verdict(
        holds,
        {
            **{f"exponent, {kind}": slope for kind, slope in slopes.items()},
            "no cache / cache, longest text": ratio,
            **{f"seconds of the longest timed text, {kind}": each[-1] for kind, each in timed.items() if each},
            **{f"bytes of state, {kind}": states[kind][-1] for kind in KINDS if kind != "no cache"},
        },
    )


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(2, 1, 11, 4)
    for kind in KINDS:
        group = [row for row in rows if row["model"] == kind]
        axes[0, 0].loglog([row["tokens"] for row in group], [row["flops"] for row in group], marker="o", label=kind)
        if kind != "no cache":
            axes[0, 1].loglog([row["tokens"] for row in group], [row["state"] for row in group], marker="o", label=kind)
    axes[0, 0].set(xlabel="tokens generated", title="total operations")
    axes[0, 1].set(xlabel="tokens generated", title="bytes of state per text")
    for axis in axes.flat:
        axis.legend(frameon=False)
        axis.grid(alpha=0.3)
    return figure
