"""Low rank: cutting the attention of a trained encoder to a quarter of its rank hardly changes what it predicts.

Linformer's argument is that attention is nearly a matrix of low rank [Wang et al. 2020, figure 1; its k of 128 for 512
tokens is a quarter]. An encoder learns to fill masked letters. Then every attention map of every layer is replaced by
its best approximation of rank r, and the loss on masked letters of held-out texts is measured, without any training.
Two controls use the same trained model. "shuffled" shuffles the entries of every row before the approximation and puts
them back after it: the weights are the same, but rows no longer share a structure. Rank 0 removes attention, so it
shows how much the model uses attention. The singular values of the maps are also compared with the maps of an untrained
model, whose rank is about as low: a low rank by itself is not a sign of learning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.training import training_run
from anyformer.lab.trials import Place, Row, TrialGrid, Values
from anyformer.look import figures
from anyformer.look.maps import attention
from anyformer.look.trace import trace
from anyformer.models import TransformerModule
from anyformer.models.construct import build
from anyformer.objectives.masked import Masked
from anyformer.train.trainer import Trainer
from anyformer_course.lab.runs import READER, held_out, mean, reader, texts

CLAIM = (
    "with every seed, attention of a quarter of the full rank raises the loss by at most 1 %; the same weights, "
    "shuffled in their rows while they are cut, raise it by at least 2 %, and no attention by at least 20 %"
)
FORMS = {
    "tiny": Form(0.1, 0.1, {"depth": 2, "width": 16, "steps": 2, "batch": 2, "length": 32, "texts": 2, "text": "docs"}),
    "full": Form(90, 2, {
        "depth": 4, "width": 256, "steps": 4000, "batch": 64, "length": 256, "texts": 8, "text": "library", "seeds": 3
    }),
}  # fmt: skip
POINTS = 32  # points per spectrum
SHARES = (0.0, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)  # ranks as shares of the full rank
QUARTER, MASKED = 0.25, 0.15
WEIGHTS = "encoder.layers.*.attention.op.weights"
KINDS = ("attention", "shuffled", "untrained")
trials = TrialGrid("encoder-{seed}", seed="seeds", data=True)


def work(values: Values, place: Place) -> list[Row]:
    length = values["length"]
    described = reader("bert", "BertForMaskedLM", values["width"], values["depth"], 4, length)
    run = training_run(
        "low-rank",
        described,
        texts(place, values["text"], values["data"]),
        place.device,
        steps=values["steps"],
        batch=values["batch"],
        length=length,
        lr=1e-3,
        objective=Masked(rate=MASKED),
        vocabulary=READER,
        seed=values["seed"],
    )
    trainer = place.train(run)
    with trainer.eval_mode():
        return [*losses_by_rank(trainer, values["texts"]), *spectra(trainer, described)]


# -- measurements -----------------------------------------------------------------------------------------------------


def losses_by_rank(trainer: Trainer, num_texts: int) -> list[Row]:
    """Return the loss on masked letters of held-out texts, with attention of several ranks, plain and shuffled."""
    length = trainer.run.batch.length
    assert length is not None
    ids = held_out(trainer, num_texts, length)
    random = torch.Generator().manual_seed(0)
    hidden = (torch.rand(ids.shape, generator=random) < MASKED).to(ids.device)
    masked = ids.masked_fill(hidden, trainer.tokenizer.mask_token_id)
    rows: list[Row] = []
    for share in SHARES:
        for kind in KINDS[:2]:
            change = {WEIGHTS: lambda weights, _, kind=kind, share=share: cut(weights, share, kind == "shuffled")}
            logits = trace(trainer.model, change=change, input_ids=masked).output.logits.float()
            loss = torch.nn.functional.cross_entropy(logits[hidden], ids[hidden])
            rows.append({"kind": kind, "rank": share, "loss": float(loss)})
    return rows


def cut(weights: Tensor, share: float, shuffled: bool = False) -> Tensor:
    """Return the best approximation of maps (B, H, T, T) with this share of their full rank. If `shuffled`, the entries
    of every row are shuffled before and put back after."""
    if share == 1:
        return weights
    maps, T = weights.float(), weights.shape[-1]
    order = row_orders(maps) if shuffled else None
    if order is not None:
        maps = maps.gather(-1, order)
    U, S, V = torch.linalg.svd(maps, full_matrices=False)
    rank = round(share * T)
    maps = (U[..., :rank] * S[..., None, :rank]) @ V[..., :rank, :]
    if order is not None:
        maps = torch.zeros_like(maps).scatter(-1, order, maps)
    return maps.to(weights.dtype)


def row_orders(weights: Tensor) -> Tensor:
    """Return a random order of the entries of every row."""
    return torch.rand(weights.shape, generator=torch.Generator().manual_seed(0)).argsort(-1).to(weights.device)


def spectra(trainer: Trainer, described: Any) -> list[Row]:
    """Return the spectrum of the maps, of the shuffled maps and of the maps of an untrained model, mean over layers."""
    ids = held_out(trainer, 4, trainer.run.batch.length or 0)
    learnt = maps(trainer.model, ids)
    shuffled = [each.gather(-1, row_orders(each)) for each in learnt]
    untrained = maps(build(described, seed=trainer.run.seed).to(ids.device), ids)
    return [
        {"kind": kind, "share": share, "sum": value}
        for kind, layers in zip(KINDS, (learnt, shuffled, untrained), strict=True)
        for share, value in spectrum(torch.cat(layers))
    ]


def maps(model: TransformerModule, ids: Tensor) -> list[Tensor]:
    """Return the attention maps (B, H, T, T) of each layer."""
    return [each.weights.float() for each in attention(trace(model.eval(), input_ids=ids)).maps]


def spectrum(weights: Tensor) -> list[tuple[float, float]]:
    """Return points (p, share of the sum in the largest fraction p of the singular values) of maps (B, H, T, T),
    averaged over texts and heads."""
    values = torch.linalg.svdvals(weights)
    shares = (values.cumsum(-1) / values.sum(-1, keepdim=True)).flatten(0, -2).mean(0)
    T = len(shares)
    counts = [max(round(T * (i + 1) / POINTS), 1) for i in range(POINTS)]
    return [(count / T, float(shares[count - 1])) for count in counts]


# -- results ----------------------------------------------------------------------------------------------------------


def increases(rows: Sequence[Row], kind: str, rank: float) -> list[float]:
    """Return the relative increase of the loss at a rank, for every seed."""
    losses = {(row["seed"], row["rank"]): row["loss"] for row in rows if row["kind"] == kind and "rank" in row}
    return [losses[seed, rank] / losses[seed, 1.0] - 1 for seed in dict.fromkeys(seed for seed, _ in losses)]


def claim(rows: Sequence[Row]) -> Verdict:
    plain, shuffled = (increases(rows, kind, QUARTER) for kind in KINDS[:2])
    without = increases(rows, "attention", 0.0)
    full = [row["loss"] for row in rows if row["kind"] == "attention" and row.get("rank") == 1.0]
    sums = {kind: [row["sum"] for row in rows if row["kind"] == kind and row.get("share") == QUARTER] for kind in KINDS}
    return Verdict(
        max(plain) <= 0.01 and min(shuffled) >= 0.02 and min(without) >= 0.2,
        {
            "loss with full attention": mean(full),
            **{
                f"increase at rank {share:g} of the full rank, {kind}": mean(increases(rows, kind, share))
                for kind in KINDS[:2]
                for share in SHARES[1:-1]
            },
            "increase without attention": mean(without),
            "largest increase of a seed at a quarter": max(plain),
            "smallest increase of a seed at a quarter, shuffled": min(shuffled),
            "smallest increase of a seed without attention": min(without),
            **{f"share of the largest quarter of singular values, {kind}": mean(each) for kind, each in sums.items()},
        },
    )


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(2, 1, 11, 4)
    for number, kind in enumerate(KINDS):
        for seed in dict.fromkeys(row["seed"] for row in rows):
            group = [row for row in rows if (row["kind"], row["seed"]) == (kind, seed)]
            style = {"color": f"C{number}", "label": None if seed else kind}
            if points := [(row["rank"], row["loss"]) for row in group if "rank" in row]:
                axes[0, 0].plot(*zip(*points), marker="o", markersize=3, **style)
            axes[0, 1].plot(*zip(*((row["share"], row["sum"]) for row in group if "share" in row)), **style)
    axes[0, 0].set(xlabel="rank, share of the full rank", title="loss on masked letters, one line per seed")
    axes[0, 0].set_xscale("symlog", linthresh=SHARES[1], base=2)
    axes[0, 1].set(xlabel="share of the singular values, the largest first", title="share of their sum")
    axes[0, 1].set_ylim(0, 1.02)
    for axis in axes.flat:
        axis.axvline(QUARTER, color="#777777", linestyle=":")
        axis.legend(frameon=False, fontsize=8)
        axis.grid(alpha=0.3)
    return figure
