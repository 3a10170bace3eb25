"""ELECTRA against BERT: at equal compute, detecting replaced tokens teaches more than predicting masked tokens.

A small BERT is trained on masked tokens, and an ELECTRA of the same size, with a generator of a quarter of its width,
on replaced tokens [Clark et al. 2020], with equal counted FLOPs. Both are then fine-tuned to tag every word with its
kind: in Python source the token type (name, keyword, string, ...), in a made-up language the word class."""

from __future__ import annotations

import io
import json
import keyword
import tokenize
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from anyformer.counting import count
from anyformer.data import Data, Held, JSONLines, PythonDocs
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.training import training_run
from anyformer.lab.trials import Place, Row, Trial, Values
from anyformer.look import figures
from anyformer.models import Model
from anyformer.objectives.masked import Masked
from anyformer.objectives.objective import Objective
from anyformer.objectives.replaced import ReplacedTokens
from anyformer.objectives.tag import Tag
from anyformer.train.optim import AdamW, Linear
from anyformer.train.run import Batch, Evaluate, Keep, Pretrained, Run
from anyformer_course.lab.runs import LANGUAGE, READER, reader, texts

CLAIM = "fine-tuned after pretraining with the largest budget, ELECTRA tags words at least as well as BERT"
FORMS = {
    "tiny": Form(
        0.2, 0.1, {"depth": 1, "width": 16, "steps": 4, "batch": 2, "budgets": 2, "tuning": 2, "text": "docs"}
    ),
    "small": Form(
        2, 0.5, {"depth": 2, "width": 48, "steps": 240, "batch": 16, "budgets": 2, "tuning": 40, "text": "made-up"}
    ),
    "full": Form(
        120, 4, {"depth": 4, "width": 192, "steps": 3000, "batch": 96, "budgets": 4, "tuning": 200, "text": "library"}
    ),
}
LENGTH, LABELS = 96, ("name", "keyword", "operator", "number", "string", "comment")
KINDS = tuple(f"kind {kind}" for kind in range(LANGUAGE.kinds))


def trials(
    depth: int,
    width: int,
    steps: int,
    batch: int,
    budgets: int,
    tuning: int,
    text: str,
    data: str | None = None,
    seed: int = 0,
) -> list[Trial]:
    same = {"depth": depth, "width": width, "batch": batch, "tuning": tuning, "text": text, "data": data, "seed": seed}
    trials = []
    for budget in (steps // 2**i for i in reversed(range(budgets))):
        for kind in ("bert", "electra"):
            cost = flops(kind, width, depth) * batch
            number = max(round(budget * flops("bert", width, depth) * batch / cost), 1)
            values = {"kind": kind, "budget": budget, "steps": number, "flops": number * cost, **same}
            trials.append(Trial(f"{kind}-{budget}", values))
    return trials


def model_specs(kind: str, width: int, depth: int) -> tuple[Model, Model | None]:
    """Return the model, and the generator of ELECTRA."""
    size = {"initializer_range": width**-0.5}  # 0.02 is for wider models
    if kind == "bert":
        return reader("bert", "BertForMaskedLM", width, depth, 4, LENGTH, **size), None
    size |= {"embedding_size": width}
    generator = reader("electra", "ElectraForMaskedLM", width // 4, depth, 2, LENGTH, **size)
    return reader("electra", "ElectraForPreTraining", width, depth, 4, LENGTH, **size), generator


def flops(kind: str, width: int, depth: int) -> int:
    """Return the FLOPs of a training step on one text."""
    return sum(count(model).training_flops(LENGTH) for model in model_specs(kind, width, depth) if model is not None)


def work(values: Values, place: Place) -> list[Row]:
    model, generator = model_specs(values["kind"], values["width"], values["depth"])
    objective: Objective = Masked() if generator is None else ReplacedTokens(generator=generator)
    lr = 1e-3
    run = training_run(
        values["kind"],
        model,
        texts(place, values["text"], values["data"]),
        place.device,
        steps=values["steps"],
        batch=values["batch"],
        length=LENGTH,
        lr=lr,
        objective=objective,
        vocabulary=READER,
        seed=values["seed"],
    )
    place.train(run, name="pretrained")
    words, labels = (language_rows, KINDS) if values["text"] == "made-up" else (python_rows, LABELS)
    place.texts("words", lambda: [json.dumps(row) for row in words(20000 if values["steps"] > 1000 else 2000)])
    source = JSONLines(path=str(place.shared / "words.txt"))
    architecture = {"bert": "BertForTokenClassification", "electra": "ElectraForTokenClassification"}[values["kind"]]
    tune = Run(
        name="tuned",
        data=Data(train=Held(source=source), valid=Held(source=source, out=True), unfit="skip"),
        model=Pretrained(path=str(place.folder / "pretrained"), architecture=architecture, labels=labels),
        objective=Tag(labels=labels),
        optimizer=AdamW(lr=lr / 2),
        schedule=Linear(warmup=values["tuning"] // 10),
        batch=Batch(examples=16, length=LENGTH),
        steps=values["tuning"],
        keep=Keep(every=values["tuning"], best=False),
        evaluate=Evaluate(every=values["tuning"], metrics=("accuracy",), patience=None),
        precision=run.precision,
        seed=values["seed"],
    )
    scores = place.train(tune, name="tuned").scores
    return [{"accuracy": scores["accuracy"], "loss": scores["loss"]}]


def language_rows(number: int) -> Iterator[dict[str, list[str]]]:
    """Yield sentences of the made-up language as words and their kinds."""
    draw = np.random.default_rng(1)
    for _ in range(number):
        words, kinds = zip(*LANGUAGE.sentence(draw, 0))
        yield {"words": [*words], "tags": [KINDS[kind] for kind in kinds]}


def python_rows(number: int) -> Iterator[dict[str, list[str]]]:
    """Yield pieces of the library of the running Python as words and their kinds of token."""
    kinds = {tokenize.OP: "operator", tokenize.NUMBER: "number", tokenize.STRING: "string", tokenize.COMMENT: "comment"}
    for row in PythonDocs(documentation=False).raw():
        words: list[str] = []
        tags: list[str] = []
        try:
            for token in tokenize.generate_tokens(io.StringIO((row.example or {}).get("text", "")).readline):
                kind = kinds.get(token.type)
                if token.type == tokenize.NAME:
                    kind = "keyword" if keyword.iskeyword(token.string) else "name"
                word = token.string.split()[0][:20] if token.string.split() else ""
                if kind is None or not word.isascii() or not word:
                    continue
                if len(" ".join((*words, word))) > LENGTH - 2:
                    yield {"words": words, "tags": tags}
                    words, tags, number = [], [], number - 1
                    if not number:
                        return
                words.append(word)
                tags.append(kind)
        except (tokenize.TokenError, SyntaxError):
            continue


def claim(rows: Sequence[Row]) -> Verdict:
    last = max(row["budget"] for row in rows)
    scores = {row["kind"]: row["accuracy"] for row in rows if row["budget"] == last}
    spent = {f"FLOPs of {row['kind']}": float(row["flops"]) for row in rows if row["budget"] == last}
    return Verdict(scores["electra"] >= scores["bert"], {f"accuracy of {k}": v for k, v in scores.items()} | spent)


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(2, 1, 11, 4)
    for kind in ("bert", "electra"):
        for axis, what in zip(axes.flat, ("accuracy", "loss")):
            axis.plot(*zip(*[(row["flops"], row[what]) for row in rows if row["kind"] == kind]), marker="o", label=kind)
            axis.set(xscale="log", xlabel="FLOPs of pretraining, by count", title=f"{what} after tuning")
            axis.legend(frameon=False)
            axis.grid(alpha=0.3)
    return figure
