"""ELECTRA against BERT: at equal compute, detecting replaced tokens teaches more than predicting masked tokens.

The same encoder of about 14 million parameters, over 8,192 word pieces, is pretrained on masked tokens (as BERT) or on
replaced tokens with a generator of a quarter of its width (ELECTRA [Clark et al. 2020]), with equal counted FLOPs. Both
are fine-tuned on SST-2 and CoLA and scored on test data (CoLA: out-of-domain sentences). The control is fine-tuned
after one step of pretraining. The texts are 7 MB of English: WikiText-2's validation and test articles, the paragraphs
of a part of SQuAD, SciTLDR's abstracts and Multi30k's captions.

Full form: `--data FOLDER` with glue_cola, glue_sst2, wikitext2_valid_test, qa_squad11_part, summ_scitldr, multi30k."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from anyformer.counting import count
from anyformer.data import TrainedWordPiece
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.training import training_run
from anyformer.lab.trials import Place, Row, TrialGrid, Values
from anyformer.look import figures
from anyformer.models import Model
from anyformer.objectives.masked import Masked
from anyformer.objectives.objective import Objective
from anyformer.objectives.replaced import ReplacedTokens
from anyformer.train.run import Pretrained
from anyformer_course.lab.english import document_data
from anyformer_course.lab.runs import mean, reader
from anyformer_course.lab.tuning import METRICS, check_folders, data_home, tune, tuning_run

CLAIM = (
    "after fine-tuning, the mean of SST-2's accuracy and CoLA's Matthews correlation is higher for ELECTRA than for "
    "BERT at equal compute, in the mean over seeds and by more than its standard error; judged if both "
    "beat no pretraining"
)
FORMS = {
    "tiny": Form(0.4, 0.1, {
        "depth": 1, "width": 16, "vocab": 200, "steps": 4, "batch": 2, "lr": 1e-3, "tuning": {"sst2": 2}, "seeds": 2,
        "made up": True,
    }),
    "full": Form(4000, 12, {
        "depth": 4, "width": 512, "vocab": 8192, "steps": 6000, "batch": 128, "lr": 5e-4,
        "tuning": {"sst2": 800, "cola": 500}, "seeds": 3,
    }),
}  # fmt: skip
LENGTH, EMBEDDING, TUNING_RATE = 128, 128, 1e-4
KINDS = ("none", "bert", "electra")


def equal_compute(each: Values) -> Values:
    """Return the number of steps whose FLOPs are those of BERT's steps. The control has one step."""
    cost, bert = (flops(kind, each["width"], each["depth"], each["vocab"]) for kind in (each["kind"], "bert"))
    steps = 1 if each["kind"] == "none" else max(round(each["steps"] * bert / cost), 1)
    return {"steps": steps, "flops": steps * cost * each["batch"]}


def model_specs(kind: str, width: int, depth: int, vocab: int) -> tuple[Model, Model | None]:
    """Return the model, and the generator of ELECTRA."""
    size = {"vocab_size": vocab, "embedding_size": min(EMBEDDING, width)}
    if kind != "electra":
        return reader("electra", "ElectraForMaskedLM", width, depth, max(width // 64, 1), LENGTH, **size), None
    generator = reader("electra", "ElectraForMaskedLM", width // 4, depth, max(width // 256, 1), LENGTH, **size)
    return reader("electra", "ElectraForPreTraining", width, depth, max(width // 64, 1), LENGTH, **size), generator


def flops(kind: str, width: int, depth: int, vocab: int) -> int:
    """Return the FLOPs of a training step on one text."""
    models = model_specs(kind, width, depth, vocab)
    return sum(count(model).training_flops(LENGTH) for model in models if model is not None)


trials = TrialGrid("{kind}-{seed}", data=True, kind=KINDS, seed="seeds", derive=equal_compute)


def check_data(path: str) -> None:
    texts = ("wikitext2_valid_test", "qa_squad11_part", "summ_scitldr", "multi30k")
    check_folders(path, "glue_cola", "glue_sst2", *texts)


def work(values: Values, place: Place) -> list[Row]:
    model, generator = model_specs(values["kind"], values["width"], values["depth"], values["vocab"])
    objective: Objective = Masked() if generator is None else ReplacedTokens(generator=generator)
    home = data_home(values, place)
    run = training_run(
        values["kind"],
        model,
        document_data(place, None if values.get("made up") else home),
        place.device,
        steps=values["steps"],
        batch=values["batch"],
        length=LENGTH,
        lr=values["lr"],
        objective=objective,
        vocabulary=TrainedWordPiece(size=values["vocab"]),
        seed=values["seed"],
    )
    place.train(run, name="pretrained")
    start = Pretrained(path=str(place.folder / "pretrained"), architecture="Electra")
    row: Row = {"parameters": count(model).parameters}
    for task, steps in values["tuning"].items():
        tuned = tuning_run(task, home, start, place.device, steps=steps, lr=TUNING_RATE, seed=values["seed"])
        row[task] = tune(tuned, place, task)[1]["test"]
    return [row]


def scores(rows: Sequence[Row]) -> dict[str, list[float]]:
    """Return kind -> mean score over the tasks, one per seed."""
    return {
        kind: [mean([row[task] for task in row["tuning"]]) for row in rows if row["kind"] == kind] for kind in KINDS
    }


def claim(rows: Sequence[Row]) -> Verdict:
    by_kind = scores(rows)
    gains = [ours - theirs for ours, theirs in zip(by_kind["electra"], by_kind["bert"], strict=True)]
    error = statistics.stdev(gains) / math.sqrt(len(gains))
    results: dict[str, float] = {}
    for kind in KINDS:
        group = [row for row in rows if row["kind"] == kind]
        results |= {
            f"{task} ({METRICS[task]}), {kind}": mean([row[task] for row in group]) for task in rows[0]["tuning"]
        }
        results[f"FLOPs of pretraining, {kind}"] = float(group[0]["flops"])
    results |= {"gain of ELECTRA": mean(gains), "standard error of the gain": error}
    beat = all(mean(by_kind[kind]) > mean(by_kind["none"]) for kind in ("bert", "electra"))
    return Verdict(mean(gains) > error, results, beat)


def plot(rows: Sequence[Row]) -> Any:
    tasks = [*rows[0]["tuning"]]
    figure, axes = figures.new(len(tasks), 1, 5 * len(tasks), 4)
    for axis, task in zip(axes.flat, tasks):
        for number, kind in enumerate(KINDS):
            measured = [row[task] for row in rows if row["kind"] == kind]
            axis.plot([number] * len(measured), measured, "o", color=f"C{number}")
            axis.plot([number], [mean(measured)], "_", color=f"C{number}", markersize=18)
        axis.set_xticks(range(len(KINDS)), ["no pretraining", "BERT", "ELECTRA"])
        axis.set_title(f"{task}, {METRICS[task]}: one point per seed, and the mean")
        axis.grid(alpha=0.3)
    return figure
