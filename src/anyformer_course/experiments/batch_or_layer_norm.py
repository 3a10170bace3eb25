"""Batch or layer norm: with BatchNorm the outputs of a text depend on the other texts of its batch.

Nothing is trained. A BERT with random weights has LayerNorm, or BatchNorm with one mean and variance per feature over
all tokens of the batch. It reads a batch twice; the second time one text has other words, or all texts have more
padding. Measured is the largest relative change of an output vector of the other texts, in double precision. LayerNorm
does not use other texts [Ba et al. 2016]. In evaluation BatchNorm uses running statistics, so outputs differ from those
in training; the statistics of text batches vary much [Shen et al. 2020].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.trials import Place, Row, TrialGrid, Values
from anyformer.look import figures
from anyformer.models import Model, TransformerModule
from anyformer.models.construct import build
from anyformer.parts.norm import BatchNorm, LayerNorm
from anyformer.specs.codec import override
from anyformer_course.lab.runs import READER_SIZE, mean, reader

CLAIM = (
    "if one text or the padding of a batch changes, outputs of the other texts change by at least 0.1 % with BatchNorm "
    "in training, with every seed and batch size; with LayerNorm, and in evaluation, they do not change (at most 1e-9)"
    "; in small batches, a changed text changes more, and training differs more from evaluation"
)
FORMS = {
    "tiny": Form(0.1, 0.1, {"depth": 1, "width": 16, "batches": [2, 4], "seeds": 2}),
    "small": Form(0.2, 0.1, {"depth": 2, "width": 32, "batches": [2, 8, 32], "seeds": 4}),
    "full": Form(1.5, 0.5, {"depth": 6, "width": 64, "batches": [2, 8, 32, 128], "seeds": 8}),
}
LENGTH, PADDING = 24, 8  # longest text, and columns of padding that are added
WARMUP = 50  # batches that set BatchNorm's running statistics
SMALLEST, EXACT = 1e-3, 1e-9  # bounds of the claim
NORMS = {"layer": LayerNorm(eps=1e-12), "batch": BatchNorm()}
MODES, CHANGES = ("training", "evaluation"), ("text", "padding")
trials = TrialGrid("{norm}-{seed}", norm=NORMS, seed="seeds")


def norm_model(norm: str, width: int, depth: int) -> Model:
    """Return BERT with this kind of norm after both steps of every layer."""
    described = reader("bert", "BertForMaskedLM", width, depth, 4, LENGTH + PADDING)
    steps = ("attention", "feedforward")
    return override(described, {f"encoder.layers.{step}.out_norm": NORMS[norm] for step in steps})


def draw_batch(batch: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return random texts of 4 to LENGTH tokens (B, LENGTH), and their mask: True for tokens."""
    lengths = torch.randint(4, LENGTH + 1, (batch, 1), generator=draw)
    is_token = torch.arange(LENGTH) < lengths
    ids = torch.randint(4, READER_SIZE, (batch, LENGTH), generator=draw)
    return ids.where(is_token, 0), is_token


def change_batch(change: str, ids: Tensor, is_token: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Replace the words of the last text, or add padding to all texts."""
    if change == "padding":
        return torch.nn.functional.pad(ids, (0, PADDING)), torch.nn.functional.pad(is_token, (0, PADDING))
    other = torch.randint(4, READER_SIZE, (LENGTH,), generator=draw)
    return torch.cat([ids[:-1], other.where(is_token[-1], 0)[None]]), is_token


def read_texts(model: TransformerModule, ids: Tensor, is_token: Tensor) -> Tensor:
    """Return the output vectors (tokens, D) of all texts but the last."""
    states = model(input_ids=ids, attention_mask=is_token.long(), output_hidden_states=True).hidden_states[-1]
    return states[:-1][is_token[:-1]]


def largest_change(before: Tensor, after: Tensor) -> float:
    """Return the largest distance of a vector from its earlier value, relative to its norm."""
    return float(((after - before).norm(dim=-1) / before.norm(dim=-1)).max())


@torch.no_grad()
def work(values: Values, place: Place) -> list[Row]:
    rows: list[Row] = []
    for batch in values["batches"]:
        draw = torch.Generator().manual_seed(values["seed"])
        model = build(norm_model(values["norm"], values["width"], values["depth"]), seed=values["seed"]).double()
        for _ in range(WARMUP if values["norm"] == "batch" else 0):
            read_texts(model.train(), *draw_batch(batch, draw))
        ids, is_token = draw_batch(batch, draw)
        outputs: dict[str, Tensor] = {}
        for mode in reversed(MODES):  # evaluation first: a pass in training changes the running statistics
            model.train(mode == "training")
            outputs[mode] = read_texts(model, ids, is_token)
            for change in CHANGES:
                after = read_texts(model, *change_batch(change, ids, is_token, draw))
                moved = largest_change(outputs[mode], after)
                rows.append({"batch": batch, "mode": mode, "change": change, "moved": moved})
        rows.append({"batch": batch, "gap": largest_change(outputs["training"], outputs["evaluation"])})
    return rows


def moved(rows: Sequence[Row], norm: str, mode: str, change: str) -> dict[int, list[float]]:
    """Return batch size -> changes of the other texts, one per seed."""
    by_batch: dict[int, list[float]] = {}
    for row in rows:
        if (row["norm"], row.get("mode"), row.get("change")) == (norm, mode, change):
            by_batch.setdefault(row["batch"], []).append(row["moved"])
    return by_batch


def gaps(rows: Sequence[Row]) -> dict[int, list[float]]:
    """Return batch size -> differences between training and evaluation with BatchNorm, one per seed."""
    by_batch: dict[int, list[float]] = {}
    for row in rows:
        if "gap" in row and row["norm"] == "batch":
            by_batch.setdefault(row["batch"], []).append(row["gap"])
    return by_batch


def claim(rows: Sequence[Row]) -> Verdict:
    dependent = {change: moved(rows, "batch", "training", change) for change in CHANGES}
    others = [row["moved"] for row in rows if "moved" in row and (row["norm"], row["mode"]) != ("batch", "training")]
    results: dict[str, float] = {}
    for change, by_batch in dependent.items():
        results |= {f"BatchNorm in training, {change} changes, batch {b}": mean(each) for b, each in by_batch.items()}
    results["BatchNorm in training, smallest"] = min(min(each) for d in dependent.values() for each in d.values())
    results["LayerNorm, or in evaluation, largest"] = max(others)
    results |= {f"BatchNorm, training against evaluation, batch {b}": mean(each) for b, each in gaps(rows).items()}
    shrinks = all(mean(each[min(each)]) > mean(each[max(each)]) for each in (dependent["text"], gaps(rows)))
    return Verdict(results["BatchNorm in training, smallest"] >= SMALLEST and max(others) <= EXACT and shrinks, results)


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(2, 1, 11, 4)
    for axis, change in zip(axes[0], CHANGES):
        shown = {f"{norm} norm, {mode}": moved(rows, norm, mode, change) for norm in NORMS for mode in MODES}
        if change == "text":
            shown["batch norm, training against evaluation"] = gaps(rows)
        for number, (name, by_batch) in enumerate(shown.items()):
            points = [max(mean(each), 1e-17) for each in by_batch.values()]  # exactly 0 is not on a log scale
            axis.plot([*by_batch], points, "o-", markersize=12 - 2 * number, label=name, color=f"C{number}")
        title = {"text": "one text changes", "padding": "the padding changes"}[change]
        axis.set(xscale="log", yscale="log", xlabel="texts per batch", title=f"change of the other texts if {title}")
        axis.legend(frameon=False, fontsize=7)
        axis.grid(alpha=0.3)
    return figure
