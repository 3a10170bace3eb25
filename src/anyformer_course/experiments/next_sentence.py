"""Next sentence or not: what BERT learns from predicting whether one sentence follows another.

Two encoders are pretrained on masked words in pairs of sentences of a made-up language. One also predicts whether the
second sentence follows the first, which is true half of the time [Devlin et al. 2019]; the other sees only sentences
that follow each other, as in RoBERTa [Liu et al. 2019]. Measured are the loss of masked words in held-out text and,
after fine-tuning on few examples, the accuracy in classifying whether two sentences share a topic.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from anyformer.data import Data, Held, JSONLines
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.training import training_run
from anyformer.lab.trials import Place, Row, TrialGrid, Values
from anyformer.look import figures
from anyformer.objectives.classify import Classify
from anyformer.objectives.sentences import MaskedAndNext
from anyformer.train.optim import AdamW, Linear
from anyformer.train.run import Batch, Evaluate, Keep, Pretrained, Run
from anyformer.train.trainer import Trainer
from anyformer_course.lab.made_up_language import Language
from anyformer_course.lab.runs import WORDS, held_out_loss, mean, reader

CLAIM = (
    "without next-sentence prediction masked words are predicted better, and after fine-tuning pairs are classified at "
    "least as well, in the mean over seeds"
)
FORMS = {
    "tiny": Form(0.2, 0.1, {
        "depth": 1, "width": 16, "steps": 2, "batch": 2, "topics": 2, "words": 3, "texts": 80, "tuning": 2, "seeds": 1
    }),
    "small": Form(2, 0.5, {
        "depth": 2, "width": 48, "steps": 300, "batch": 32, "topics": 6, "words": 6, "texts": 4000, "tuning": 60,
        "seeds": 2,
    }),
    "full": Form(120, 3, {
        "depth": 4, "width": 128, "steps": 3000, "batch": 128, "topics": 16, "words": 20, "texts": 20000,
        "tuning": 100, "seeds": 3,
    }),
}  # fmt: skip
LENGTH, LABELS = 20, ("other", "same")
RATES = {"with": 0.5, "without": 1.0}  # how often the second sentence follows the first
trials = TrialGrid("{kind}-{seed}", seed="seeds", kind=RATES)


def work(values: Values, place: Place) -> list[Row]:
    language = Language(topics=values["topics"], words=values["words"])
    run = pretraining_run(values["kind"], language, RATES[values["kind"]], values, place)
    loss = masked_loss(place.train(run, name="pretrained"))
    labelled = held_pairs(language, place)
    tune = Run(
        name="tuned",
        data=Data(train=labelled, valid=labelled.replace(out=True)),
        model=Pretrained(
            path=str(place.folder / "pretrained"), architecture="BertForSequenceClassification", labels=LABELS
        ),
        objective=Classify(labels=LABELS, pair=True, length=LENGTH),
        optimizer=AdamW(lr=run.optimizer.lr / 3),
        schedule=Linear(warmup=values["tuning"] // 10),
        batch=Batch(examples=16, length=LENGTH),
        steps=values["tuning"],
        keep=Keep(every=values["tuning"], best=False),
        precision=run.precision,
        evaluate=Evaluate(every=values["tuning"], metrics=("accuracy",), patience=None),
        seed=values["seed"],
    )
    return [{"masked": loss, "accuracy": place.train(tune, name="tuned").scores["accuracy"]}]


def pretraining_run(name: str, language: Language, next_rate: float, values: Values, place: Place) -> Run:
    """Return a run that pretrains a small BERT; `next_rate` is the share of pairs of consecutive sentences."""
    source = place.texts("texts", lambda: language.texts(values["texts"], 6, 0))
    width, sizes = values["width"], {"vocab_size": language.size + len(WORDS.special)}
    return training_run(
        name,
        reader("bert", "BertForPreTraining", width, values["depth"], 4, LENGTH, **sizes),
        Data(train=Held(source=source), valid=Held(source=source, out=True)),
        place.device,
        steps=values["steps"],
        batch=values["batch"],
        length=LENGTH,
        lr=3e-3 if width < 100 else 1e-3,
        objective=MaskedAndNext(length=LENGTH, short=0.0, next_rate=next_rate),
        vocabulary=WORDS,
        seed=values["seed"],
    )


def held_pairs(language: Language, place: Place) -> Held:
    """Return pairs of sentences; half of them are held out."""
    place.texts("pairs", lambda: [json.dumps(row) for row in pairs(language, 2000)])
    return Held(source=JSONLines(path=str(place.shared / "pairs.txt")), one_in=2, stratify="label")


def masked_loss(trainer: Trainer) -> float:
    """Return the loss of masked words in held-out pairs of consecutive sentences, which are the same for all models."""
    objective = MaskedAndNext(length=LENGTH, short=0.0, next_rate=1.0, mask=1.0, random=0.0).ready(trainer.tokenizer)
    return held_out_loss(trainer, objective, 64, term="masked")


def pairs(language: Language, number: int) -> Iterator[dict[str, str]]:
    """Yield pairs of sentences of the same topic or of two topics."""
    draw = np.random.default_rng(1)
    for _ in range(number):
        first, label = int(draw.integers(language.topics)), int(draw.integers(2))
        second = first if label else (first + int(draw.integers(1, language.topics))) % language.topics
        (text,), (pair,) = language.text(draw, 1, first), language.text(draw, 1, second)
        yield {"text": text, "pair": pair, "label": LABELS[label]}


def means(rows: Sequence[Row], what: str) -> dict[str, float]:
    return {kind: mean([row[what] for row in rows if row["kind"] == kind]) for kind in RATES}


def claim(rows: Sequence[Row]) -> Verdict:
    accuracy, masked = means(rows, "accuracy"), means(rows, "masked")
    results = {f"accuracy of pairs, {kind}": value for kind, value in accuracy.items()}
    results |= {f"loss of masked words, {kind}": value for kind, value in masked.items()}
    return Verdict(masked["without"] < masked["with"] and accuracy["without"] >= accuracy["with"], results)


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(2, 1, 9, 4)
    titles = {"accuracy": "accuracy of pairs after fine-tuning", "masked": "loss of masked words (nats)"}
    for axis, (what, title) in zip(axes.flat, titles.items()):
        for number, (kind, value) in enumerate(means(rows, what).items()):
            axis.bar([number], [value], color=f"C{number}", alpha=0.5)
            measured = [row[what] for row in rows if row["kind"] == kind]
            axis.plot([number] * len(measured), measured, "o", color=f"C{number}")
        axis.set_xticks(range(len(RATES)), [f"{kind} next sentence" for kind in RATES])
        axis.set_title(title)
    return figure
