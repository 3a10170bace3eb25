"""Next sentence or not: four input formats of BERT's pretraining, with and without predicting the next sentence.

RoBERTa [Liu et al. 2019, section 4.1] compares: pairs of segments with next-sentence prediction (BERT's own), pairs of
single sentences with it, full sentences from one or more documents without it, and sentences of one document without
it. Without next-sentence prediction the results were as good or slightly better; pairs of single sentences were worst.
The same encoder is pretrained in each format on about the same number of tokens, then fine-tuned to tag names (WNUT-17)
and to classify reviews (SST-2), and scored on their test data. The control is fine-tuned after one step of pretraining.

Full form: `--data FOLDER` with glue_sst2, ner_wnut17, wikitext2_valid_test, qa_squad11_part, summ_scitldr."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anyformer.data import TrainedWordPiece
from anyformer.evaluate import check
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.training import training_run
from anyformer.lab.trials import Place, Row, TrialGrid, Values
from anyformer.look import figures
from anyformer.objectives.batches import Record
from anyformer.objectives.masked import Masked
from anyformer.objectives.objective import Objective
from anyformer.objectives.sentences import FOLLOWS, RANDOM, MaskedAndNext
from anyformer.recipes import recipe
from anyformer.train.run import Pretrained
from anyformer_course.lab.english import document_data
from anyformer_course.lab.runs import mean, reader
from anyformer_course.lab.tuning import METRICS, check_folders, data_home, tune, tuning_run

CLAIM = (
    "after fine-tuning, the mean of WNUT-17's F1 and SST-2's accuracy, averaged over seeds, is at most 0.5 points "
    "lower with either format without next-sentence prediction than with segment pairs, and lowest with sentence "
    "pairs; judged if it is higher with every format than without pretraining"
)
FORMS = {
    "tiny": Form(0.5, 0.1, {
        "depth": 1, "width": 16, "vocab": 200, "steps": 2, "batch": 4, "lr": 1e-3, "tuning": {"sst2": 2}, "seeds": 1,
        "made up": True,
    }),
    "full": Form(6000, 14, {
        "depth": 4, "width": 256, "vocab": 8192, "steps": 15_000, "batch": 64, "lr": 5e-4,
        "tuning": {"wnut17": 400, "sst2": 500}, "seeds": 3,
    }),
}  # fmt: skip
LENGTH, TUNING_RATE, MARGIN = 128, 1e-4, 0.005
POSITIONS = 256  # the longest message of WNUT-17 has more than LENGTH tokens
TEXTS = ("wikitext", "squad", "scitldr")  # documents of several sentences
FORMATS = {  # mean number of tokens of an input in TEXTS; shorter inputs have larger batches, as in RoBERTa
    "segment pairs with NSP": 116,
    "sentence pairs with NSP": 70,
    "full sentences": LENGTH,
    "doc sentences": 109,
    "no pretraining": LENGTH,
}
trials = TrialGrid(
    "{format}-{seed}",
    data=True,
    format=FORMATS,
    seed="seeds",
    derive=lambda each: {"steps": 1} if each["format"] == "no pretraining" else {},
)


class SentencePairs(MaskedAndNext):
    """Masked tokens and next-sentence prediction on two single sentences."""

    def pair(self, record: Record, other: Record, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, int]:
        """Return a sentence, its successor or a random sentence of another document, and the label."""
        first = int(random.integers(max(len(record["ends"]) - 1, 1)))
        has_next, foreign = len(record["ends"]) > 1, other["document"] != record["document"]
        if foreign and (not has_next or random.random() >= self.next_rate):
            second = int(random.integers(len(other["ends"])))
            return sentence(record, first), sentence(other, second), RANDOM
        if not has_next:  # one sentence and no other document: split it
            return super().pair(record, other, random)
        return sentence(record, first), sentence(record, first + 1), FOLLOWS


def sentence(record: Record, index: int) -> np.ndarray:
    """Return the tokens of one sentence of a run of sentences."""
    ends = [0, *record["ends"].tolist()]
    return record["input_ids"][ends[index] : ends[index + 1]]


def objective_of(name: str) -> Objective:
    if name == "segment pairs with NSP":
        return MaskedAndNext(length=LENGTH, short=0.0)
    if name == "sentence pairs with NSP":
        return SentencePairs(length=LENGTH, short=0.0)
    return Masked(length=LENGTH) if name == "doc sentences" else Masked()


def check_data(path: str) -> None:
    check_folders(path, "glue_sst2", "ner_wnut17", "wikitext2_valid_test", "qa_squad11_part", "summ_scitldr")
    check(recipe("wnut17", path).objective, (METRICS["wnut17"],))  # F1 needs a library: ask before the pretraining


def work(values: Values, place: Place) -> list[Row]:
    name, home, vocab = values["format"], data_home(values, place), values["vocab"]
    architecture = "BertForPreTraining" if "NSP" in name else "BertForMaskedLM"
    run = training_run(
        "format",
        reader("bert", architecture, values["width"], values["depth"], 4, POSITIONS, vocab_size=vocab),
        document_data(place, None if values.get("made up") else home, TEXTS),
        place.device,
        steps=values["steps"],
        batch=round(values["batch"] * LENGTH / FORMATS[name]),
        length=LENGTH,
        lr=values["lr"],
        objective=objective_of(name),
        vocabulary=TrainedWordPiece(size=vocab),
        seed=values["seed"],
    )
    trainer = place.train(run, name="pretrained")
    start = Pretrained(path=str(place.folder / "pretrained"), architecture="Bert")
    row: Row = {"loss": trainer.scores.get("masked", trainer.scores["loss"])}
    for task, steps in values["tuning"].items():
        tuned = tuning_run(task, home, start, place.device, steps=steps, lr=TUNING_RATE, seed=values["seed"])
        row[task] = tune(tuned, place, task)[1]["test"]
    return [row]


def scores(rows: Sequence[Row], *tasks: str) -> dict[str, list[float]]:
    """Return format -> mean score over the tasks, one per seed."""
    return {name: [mean([row[task] for task in tasks]) for row in rows if row["format"] == name] for name in FORMATS}


def claim(rows: Sequence[Row]) -> Verdict:
    tasks = [*rows[0]["tuning"]]
    means = {name: mean(each) for name, each in scores(rows, *tasks).items()}
    segments, sentences, *without, nothing = means.values()
    learned = min(segments, sentences, *without) > nothing
    results: dict[str, float] = {}
    for task in tasks:
        results |= {f"{task} ({METRICS[task]}), {name}": mean(each) for name, each in scores(rows, task).items()}
    results |= {f"mean of the tasks, {name}": value for name, value in means.items()}
    return Verdict(min(without) >= segments - MARGIN and sentences <= min(segments, *without), results, learned)


def plot(rows: Sequence[Row]) -> Any:
    tasks = [*rows[0]["tuning"]]
    figure, axes = figures.new(len(tasks), 1, 6 * len(tasks), 4)
    for axis, task in zip(axes.flat, tasks):
        for number, (_, measured) in enumerate(scores(rows, task).items()):
            axis.plot([number] * len(measured), measured, "o", color=f"C{number}")
            axis.plot([number], [mean(measured)], "_", color=f"C{number}", markersize=18)
        axis.set_xticks(range(len(FORMATS)), [name.replace(" ", "\n", 1) for name in FORMATS], fontsize=8)
        axis.set_title(f"{task}, {METRICS[task]}: one point per seed, and the mean", fontsize=9)
        axis.grid(alpha=0.3)
    return figure
