"""Measured scaling laws: runs of one description in several sizes and budgets, and power laws fitted to their losses.

N parameters without embeddings and head, D tokens, C counted FLOPs, L held-out loss in nats per token. The largest run
is not part of any fit; its loss is predicted.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anyformer.checkpoint import spec
from anyformer.counting import count
from anyformer.data import Data, Held, PythonDocs, Source, TextFiles
from anyformer.lab.experiment import Form
from anyformer.lab.training import guessing_loss, training_run
from anyformer.lab.trials import Place, Row, Trial, Values
from anyformer.look import figures
from anyformer.models import Model
from anyformer.parts.attention.attention import Attention
from anyformer.specs.codec import override
from anyformer.specs.part import walk
from anyformer.train.progress import read_metrics

LENGTH, HEAD = 128, 32  # tokens per text; head width
SIZE = 258  # vocabulary: bytes and two special tokens
FORMS = {
    "tiny": Form(0.3, 0.2, {
        "widths": [16, 32], "tokens": [1024, 2048], "largest": [32, 4096], "batch": 8, "library": False
    }),
    "small": Form(2, 1, {
        "widths": [16, 32, 64], "tokens": [60_000, 120_000, 240_000], "largest": [96, 400_000], "batch": 16,
        "library": False,
    }),
    "full": Form(600, 4, {
        "widths": [64, 96, 128, 192, 256], "tokens": [4_000_000, 8_000_000, 16_000_000, 32_000_000],
        "largest": [320, 48_000_000], "batch": 32,
    }),
}  # fmt: skip
# published exponents: Kaplan et al. [2020] for one variable, Hoffmann et al. [2022] for both
PUBLISHED = {"L(N)": 0.076, "L(D)": 0.095, "L(C)": 0.050, "L(N,D) of N": 0.34, "L(N,D) of D": 0.28}


# -- runs -------------------------------------------------------------------------------------------------------------


def scale_model(base: Model, width: int) -> Model:
    """Return a byte-level decoder of this width with the layers of `base`: head width 32, one layer per 64 channels."""
    heads, changes = max(width // HEAD, 1), dict[str, Any]()
    ops = {step: f"decoder.layers.{step}.op" for step in ("attention", "feedforward")}
    parts = dict(walk(base))
    if base.pair or not base.writes or not set(ops.values()) <= parts.keys():
        raise ValueError("scaling needs a decoder-only model with attention and feedforward in its layers")
    old: Any = parts[ops["attention"]]
    new = {"num_heads": heads, "head_width": width // heads}
    if isinstance(old, Attention) and old.num_kv_heads is not None:
        new["num_kv_heads"] = max(heads * old.num_kv_heads // old.num_heads, 1)
    changes |= {f"{ops['attention']}.{name}": value for name, value in new.items()}
    inner: Any = parts[ops["feedforward"]]
    changes[f"{ops['feedforward']}.width"] = max(round(inner.width / base.width * width), 1)
    changes |= {"width": width, "decoder.depth": max(width // 64, 2)}
    for path, part in parts.items():
        fields = {name for name, _ in part.items()}
        changes |= {f"{path}.vocab_size": SIZE} if "vocab_size" in fields else {}
        changes |= {f"{path}.dropout": 0.0} if "dropout" in fields else {}
        changes |= {f"{path}.length": LENGTH} if path.endswith("position") and "length" in fields else {}
    return override(base, changes)


def trials(
    name: str = "gpt2",
    widths: Sequence[int] = (),
    tokens: Sequence[int] = (),
    largest: Sequence[int] = (),
    batch: int = 64,
    data: str | None = None,
    library: bool = True,
) -> list[Trial]:
    """Return a trial for every width and number of tokens, and for the largest run (width, tokens). The most expensive
    trials are first, so that processes finish at about the same time."""
    for flag, sizes in (("widths", (*widths, *largest[:1])), ("tokens", (*tokens, *largest[1:]))):
        if not sizes or min(sizes) < 1:
            raise ValueError(f"--{flag}: give values of at least 1")
    base, trials = spec(name), list[Trial]()
    for width, D in [*((width, D) for width in widths for D in tokens), *([tuple(largest)] if largest else [])]:
        model = scale_model(base, width)
        counted = count(model)
        N = sum(size for address, size in counted.parts.items() if address.startswith("decoder."))
        steps = max(round(D / (batch * LENGTH)), 1)
        D = steps * batch * LENGTH
        values = {
            "name": name,
            "width": width,
            "parameters": N,
            "tokens": D,
            "steps": steps,
            "batch": batch,
            "flops": counted.training_flops(LENGTH, causal=True) * (D // LENGTH),
            "data": data,
            "library": library,
        }
        trial_name = f"width-{width}-tokens-{D}"
        if any(trial.name == trial_name for trial in trials):
            steps_of = f"{steps:,} steps of {batch} texts of {LENGTH}"
            raise ValueError(f"two runs of width {width} have {D:,} tokens, {steps_of}: change --tokens or --batch")
        trials.append(Trial(trial_name, values))
    return sorted(trials, key=lambda trial: -trial.values["flops"])


def work(values: Values, place: Place) -> list[Row]:
    """Return held-out losses at several steps, and the loss of guessing. The rate decays along the whole run."""
    source: Source = PythonDocs(library=values["library"])
    if values["data"] is not None:
        source = TextFiles(path=values["data"], unit="paragraph")
    run = training_run(
        "scale",
        scale_model(spec(values["name"]), values["width"]),
        Data(train=Held(source=source), valid=Held(source=source, out=True)),
        place.device,
        steps=values["steps"],
        batch=values["batch"],
        length=LENGTH,
        lr=min(0.256 / values["width"], 4e-3),
        seed=values.get("seed", 0),
        every=max(values["steps"] // values.get("evaluations", 6), 1),
        batches=24,
    )
    trainer = place.train(run)
    guessing = guessing_loss(trainer)
    lines = [line for line in read_metrics(trainer.folder) if "valid/loss" in line]
    return [{"step": line["step"], "loss": line["valid/loss"], "guessing": guessing} for line in lines]


def minutes(remaining: Sequence[Trial], kind: str, jobs: int) -> float:
    """Estimate the minutes of these trainings from their FLOPs, by interpolation between the forms (on a CPU, with two
    cores). Beyond the largest form, time is proportional to FLOPs."""
    cost = [math.log(sum(trial.values["flops"] for trial in trials(**form.values))) for form in FORMS.values()]
    known = [math.log(form.minutes(kind)) for form in FORMS.values()]
    work = math.log(sum(trial.values["flops"] for trial in remaining))
    total = math.exp(float(np.interp(work, cost, known)) + max(work - cost[-1], 0))
    return total * (1 if kind == "cuda" else 2 / min(jobs, len(remaining)))


# -- laws -------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Point:
    """The result of one run."""

    N: float
    D: float
    C: float
    L: float


def points(rows: Sequence[Row]) -> list[Point]:
    last = {row["trial"]: row for row in rows if "failed" not in row}
    return [Point(row["parameters"], row["tokens"], row["flops"], row["loss"]) for row in last.values()]


@dataclasses.dataclass(frozen=True)
class Law:
    """L = E + A / N^a + B / D^b. For a law in one variable, B is 0."""

    E: float
    A: float
    a: float
    B: float = 0.0
    b: float = 0.0

    def __call__(self, N: Any, D: Any = 1.0) -> Any:
        return self.E + self.A * N**-self.a + self.B * D**-self.b

    def best(self, compute: float) -> tuple[float, float]:
        """Return the N and D with the lowest loss at C = 6 N D."""
        G = (self.a * self.A / (self.b * self.B)) ** (1 / (self.a + self.b))
        N = G * (compute / 6) ** (self.b / (self.a + self.b))
        return N, compute / (6 * N)


def fit_power(x: Sequence[float], y: Sequence[float]) -> Law:
    """Fit A / x^a by least squares of the logarithms."""
    slope, start = np.polyfit(np.log(x), np.log(y), 1)
    return Law(0.0, float(np.exp(start)), float(-slope))


def fit_law(runs: Sequence[Point]) -> Law:
    """Fit E + A / N^a + B / D^b by least squares of the relative errors [Hoffmann et al. 2022, approach 3]. For given
    exponents the fit is linear, so only the exponents are searched, on a grid that is refined."""
    N, D, L = (np.array([getattr(point, name) for point in runs]) for name in ("N", "D", "L"))
    scale_N, scale_D = (
        np.exp(np.log(N).mean()),
        np.exp(np.log(D).mean()),
    )  # so that the three columns have similar scale
    low, high, best = np.array([0.02, 0.02]), np.array([1.5, 1.5]), (np.inf, Law(0, 0, 0))
    for _ in range(6):
        a, b = (grid.ravel() for grid in np.meshgrid(*(np.linspace(*ends, 11) for ends in zip(low, high))))
        columns = np.stack([np.ones((len(a), len(N))), (N / scale_N) ** -a[:, None], (D / scale_D) ** -b[:, None]], -1)
        for kept in ((0, 1, 2), (1, 2)):  # with E, or without if E would be negative
            X = columns[..., kept] / L[:, None]
            factors = np.linalg.solve(X.mT @ X + 1e-12 * np.eye(len(kept)), X.sum(1)[..., None])
            errors = ((X @ factors)[..., 0] - 1) ** 2
            cost = np.where((factors[..., 0] >= 0).all(-1), errors.sum(-1), np.inf)
            i = int(cost.argmin())
            if cost[i] < best[0]:
                *E, A, B = factors[i, :, 0].tolist()
                law = Law(sum(E), float(A * scale_N ** a[i]), float(a[i]), float(B * scale_D ** b[i]), float(b[i]))
                best = (float(cost[i]), law)
        size = (high - low) / 5
        middle = np.array([best[1].a, best[1].b])
        low, high = np.maximum(middle - size, 0.005), middle + size
    return best[1]


def frontier(runs: Sequence[Point]) -> list[Point]:
    """Return the Pareto frontier: runs with a lower loss than every cheaper run."""
    kept: list[Point] = []
    for point in sorted(runs, key=lambda point: (point.C, point.L)):
        if not kept or point.L < kept[-1].L:
            kept.append(point)
    return kept


def fit_exponents(runs: Sequence[Point]) -> dict[str, float]:
    """Return the exponents of every law: L(N) over the runs with the most tokens, L(D) over the runs of the largest
    model, L(C) along the frontier, and L(N, D) over all."""
    D, N = max(point.D for point in runs), max(point.N for point in runs)
    law, edge = fit_law(runs), frontier(runs)
    large, long = [p for p in runs if p.N == N], [p for p in runs if p.D == D]
    return {
        "L(N)": fit_power([p.N for p in long], [p.L for p in long]).a,
        "L(D)": fit_power([p.D for p in large], [p.L for p in large]).a,
        "L(C)": fit_power([p.C for p in edge], [p.L for p in edge]).a,
        "L(N,D) of N": law.a,
        "L(N,D) of D": law.b,
    }


def intervals(runs: Sequence[Point], number: int = 100, share: float = 0.95) -> dict[str, tuple[float, float]]:
    """Return confidence intervals of every exponent by residual bootstrap: only the residuals are resampled."""
    draw, law = np.random.default_rng(0), fit_law(runs)
    predicted = np.array([law(point.N, point.D) for point in runs])
    errors = np.array([point.L for point in runs]) / predicted - 1
    errors *= math.sqrt(len(runs) / max(len(runs) - 5, 1))  # five fitted parameters
    drawn = []
    for _ in range(number):
        losses = predicted * (1 + draw.choice(errors, len(errors)))
        drawn.append(fit_exponents([dataclasses.replace(point, L=float(loss)) for point, loss in zip(runs, losses)]))
    ends = ((1 - share) / 2, (1 + share) / 2)
    return {
        name: (float(low), float(high))
        for name in PUBLISHED
        for low, high in [np.quantile([each[name] for each in drawn], ends)]
    }


@dataclasses.dataclass(frozen=True)
class ScalingFit:
    """The law fitted without the largest run, its prediction for that run, and the exponents."""

    law: Law
    exponents: Mapping[str, float]
    between: Mapping[str, tuple[float, float]]
    largest: Point
    predicted: float
    decades: float  # log10 of the compute of the largest run relative to the cheapest

    @property
    def error(self) -> float:
        return self.predicted / self.largest.L - 1


def check_number(sizes: Sequence[tuple[float, float]]) -> None:
    """Raise ValueError if there are too few runs (N, D), without the largest run, for a fit."""
    if len(sizes) < 4 or any(len(set(each)) < 2 for each in zip(*sizes)):
        raise ValueError("a fit needs at least two sizes and two numbers of tokens, without the largest run")


def fit_results(rows: Sequence[Row]) -> ScalingFit:
    every = sorted(points(rows), key=lambda point: point.C)
    *runs, largest = every
    check_number([(point.N, point.D) for point in runs])
    law = fit_law(runs)
    decades = math.log10(largest.C / every[0].C)
    return ScalingFit(law, fit_exponents(runs), intervals(runs), largest, float(law(largest.N, largest.D)), decades)


def plot(rows: Sequence[Row]) -> Any:
    """Draw loss curves by compute with the frontier, and L by N and by D with the fitted law."""
    result, every = fit_results(rows), points(rows)
    figure, axes = figures.new(3, 1, 15, 4.5)
    sizes = sorted({point.N for point in every})
    colors = {N: f"C{number % 10}" for number, N in enumerate(sizes)}
    for trial in dict.fromkeys(row["trial"] for row in rows if "failed" not in row):
        curve = [row for row in rows if row["trial"] == trial]
        costs = [row["flops"] * row["step"] / row["steps"] for row in curve]
        axes[0, 0].plot(costs, [row["loss"] for row in curve], color=colors[curve[0]["parameters"]], linewidth=0.8)
    edge = frontier(every)
    axes[0, 0].plot([p.C for p in edge], [p.L for p in edge], "k.--", linewidth=1, label="frontier")
    law = fit_power([p.C for p in edge if p != result.largest], [p.L for p in edge if p != result.largest])
    axes[0, 0].plot([p.C for p in edge], [law(p.C) for p in edge], color="#999999", label=f"C to the -{law.a:.3f}")
    axes[0, 0].set(xlabel="FLOPs", title="loss by compute")
    for N in sizes:
        runs = sorted((p for p in every if p.N == N), key=lambda p: p.D)
        axes[0, 1].plot([p.D for p in runs], [p.L for p in runs], "o", color=colors[N], label=f"{N:,.0f}")
        axes[0, 1].plot([p.D for p in runs], [result.law(N, p.D) for p in runs], color=colors[N], linewidth=0.8)
    axes[0, 1].plot([result.largest.D], [result.predicted], "k*", markersize=12, label="predicted")
    axes[0, 1].set(xlabel="tokens", title="loss by tokens; lines: the law")
    for D in sorted({p.D for p in every}):
        runs = sorted((p for p in every if p.D == D), key=lambda p: p.N)
        axes[0, 2].plot([p.N for p in runs], [p.L for p in runs], "o-", linewidth=0.8, label=f"{D / 1e6:.3g}M")
    axes[0, 2].plot([result.largest.N], [result.predicted], "k*", markersize=12, label="predicted")
    axes[0, 2].set(xlabel="parameters", title="loss by parameters")
    for axis, title in zip(axes.flat, (None, "parameters", "tokens")):
        axis.set(xscale="log", yscale="log")
        axis.legend(frameon=False, fontsize=7, title=title)
        axis.grid(alpha=0.3, which="both")
    return figure
