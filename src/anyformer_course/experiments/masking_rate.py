"""Masking rate: how much of a text BERT should mask, and whether it should draw a new mask each time.

The same encoder is trained with 5 % to 80 % of the tokens masked [Wettig et al. 2023], and with 15 % masked once for
the whole training (static masking) instead of a new mask each time (dynamic masking [Liu et al. 2019]). All are
evaluated on the same held-out texts with 15 % masked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anyformer.data import Loader, Plan
from anyformer.evaluate import mean_losses
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.training import training_run
from anyformer.lab.trials import Place, Row, TrialGrid, Values
from anyformer.look import figures
from anyformer.objectives.masked import Masked
from anyformer.train.trainer import Trainer
from anyformer_course.lab.made_up_language import Language
from anyformer_course.lab.runs import READER, READER_SIZE, WORDS, reader, texts

CLAIM = (
    "evaluated with 15 % masked, training with 15 % to 60 % masked beats training with 5 % and with 80 %; dynamic "
    "masking beats static masking"
)
FORMS = {
    "tiny": Form(
        0.2, 0.1, {"depth": 1, "width": 16, "steps": 2, "batch": 2, "length": 20, "text": "made-up", "documents": 40}
    ),
    "small": Form(
        2, 0.5, {"depth": 2, "width": 48, "steps": 300, "batch": 32, "length": 20, "text": "made-up", "documents": 80}
    ),
    "full": Form(
        90, 3.5, {"depth": 4, "width": 192, "steps": 3000, "batch": 96, "length": 64, "text": "docs", "documents": 0}
    ),
}
RATES, ASKED = (0.05, 0.15, 0.3, 0.45, 0.6, 0.8), 0.15
LANGUAGE = Language(topics=6, words=6)
MASKINGS = ("dynamic", "static", "dynamic pieces")
trials = TrialGrid(
    "{rate}-{masking}-{seed}",
    data=True,
    masking=MASKINGS,
    rate=RATES,
    seed="seeds",
    where=lambda each: each["masking"] == "dynamic" or each["rate"] == ASKED,
)


def work(values: Values, place: Place) -> list[Row]:
    width, length = values["width"], values["length"]
    pieces = values["masking"] != "dynamic"  # static masking and its control have fixed pieces of text
    objective = Masked(
        rate=values["rate"], length=length if pieces else None, copies=1 if values["masking"] == "static" else None
    )
    by_words = values["text"] == "made-up" and values["data"] is None  # tokens are words, otherwise bytes
    size = LANGUAGE.size + len(WORDS.special) if by_words else READER_SIZE
    described = reader("bert", "BertForMaskedLM", width, values["depth"], 4, length, vocab_size=size)
    run = training_run(
        "masking",
        described,
        texts(place, values["text"], values["data"], LANGUAGE, values["documents"]),
        place.device,
        steps=values["steps"],
        batch=values["batch"],
        length=length,
        lr=3e-3 if width < 100 else 1e-3,
        objective=objective,
        vocabulary=WORDS if by_words else READER,
        seed=values["seed"],
    )
    trainer = place.train(run)
    return [{"loss": masked_loss(trainer, length)}]


def masked_loss(trainer: Trainer, length: int) -> float:
    """Return the loss of masked tokens in held-out texts; the masked tokens are the same for all models."""
    objective = Masked(rate=ASKED, mask=1.0, random=0.0).ready(trainer.tokenizer)
    packs = trainer.objective.packs
    plan = Plan(trainer.splits.valid, seed=1, examples=64, length=length, packs=packs, once=True)
    with trainer.eval_mode(), Loader(plan, objective, pad=trainer.tokenizer.filler) as batches:
        losses = mean_losses(
            lambda batch, _: objective.losses(trainer.model, batch), objective, batches, trainer.device, 16
        )
    return losses["loss"]


def claim(rows: Sequence[Row]) -> Verdict:
    loss = {row["rate"]: row["loss"] for row in rows if row["masking"] == "dynamic"}
    kinds = {row["masking"]: row["loss"] for row in rows if row["masking"] != "dynamic"}
    middle = [loss[rate] for rate in RATES[1:-1]]
    best = min(loss, key=lambda rate: loss[rate])
    holds = max(middle) < min(loss[RATES[0]], loss[RATES[-1]]) and kinds["dynamic pieces"] < kinds["static"]
    results = {f"loss at {rate:g}": value for rate, value in loss.items()}
    return Verdict(holds, {**results, "best rate": best, **{f"loss, {kind}": value for kind, value in kinds.items()}})


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(1, 1, 7, 4.5)
    points = [(row["rate"], row["loss"]) for row in rows if row["masking"] == "dynamic"]
    axes[0, 0].plot(*zip(*points), marker="o", label="dynamic")
    for row in rows:
        if row["masking"] != "dynamic":
            axes[0, 0].plot(
                [row["rate"]],
                [row["loss"]],
                "s",
                label=f"{row['masking']}, in fixed pieces" if row["masking"] == "static" else row["masking"],
            )
    axes[0, 0].set(xlabel="masking rate in training", ylabel="loss with 15 % masked (nats)")
    axes[0, 0].legend(frameon=False)
    axes[0, 0].grid(alpha=0.3)
    return figure
