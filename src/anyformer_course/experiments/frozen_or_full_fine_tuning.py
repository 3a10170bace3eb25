"""Frozen or full fine-tuning: training the whole encoder beats training only a classifier on it, on five tasks.

MiniLM learns CoLA, MRPC, RTE, STS-B and SST-2 [Wang et al. 2018] with a frozen encoder and a trained classifier on the
vector of [CLS], or with all weights trained. Fine-tuning all weights is BERT's way [Devlin et al. 2019]; Peters et al.
[2019] compare both: which is better depends on how near the task is to the pretraining. The frozen encoder has two
learning rates, and the validation data choose one, so that the comparison does not favour full fine-tuning. Scored are
test data: CoLA out-of-domain, RTE's development set.

Full form: `--data FOLDER` with glue_cola, glue_mrpc, glue_rte, glue_sst2, stsb, and MiniLM (minilm or demo/minilm, see
`anyformer fetch demo`)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.trials import Place, Row, TrialGrid, Values
from anyformer.look import figures
from anyformer.train.run import Pretrained
from anyformer_course.lab.runs import mean
from anyformer_course.lab.tuning import (
    METRICS,
    best_rates,
    check_folders,
    data_home,
    published_encoder,
    tune,
    tuning_run,
)

CLAIM = (
    "on each of five tasks, full fine-tuning has a higher mean test score over seeds than a frozen encoder; on at "
    "least four tasks by more than one standard deviation of the seeds"
)
STEPS = {"cola": 600, "mrpc": 350, "rte": 240, "stsb": 540, "sst2": 1000}  # about three epochs; SST-2: half an epoch
FORMS = {
    "tiny": Form(0.3, 0.1, {"tasks": ["sst2"], "seeds": 2, "share": 0.002, "made up": True}),
    "full": Form(240, 3.5, {"tasks": [*STEPS], "seeds": 3, "share": 1.0}),
}
FROZEN = {"frozen": ("embedding", "encoder"), "full": ()}
RATES = {"frozen": (1e-3, 1e-2), "full": (5e-5,)}
CLEAR = 4  # tasks with a difference of more than one standard deviation
trials = TrialGrid(
    "{task}-{kind}-{which}-{seed}",
    data=True,
    task="tasks",
    kind=FROZEN,
    which=(0, 1),
    seed="seeds",
    where=lambda each: each["which"] < len(RATES[each["kind"]]),
    derive=lambda each: {"lr": RATES[each["kind"]][each["which"]]},
)


def check_data(path: str) -> None:
    check_folders(path, "glue_cola", "glue_mrpc", "glue_rte", "glue_sst2", "stsb")


def work(values: Values, place: Place) -> list[Row]:
    run = tuning_run(
        values["task"],
        data_home(values, place),
        Pretrained(path=published_encoder(values, place), architecture="Bert"),
        place.device,
        steps=round(STEPS[values["task"]] * values["share"]),
        lr=values["lr"],
        seed=values["seed"],
        freeze=FROZEN[values["kind"]],
    )
    return [tune(run, place, "tuned")[1]]


def scores(rows: Sequence[Row]) -> dict[str, dict[str, list[float]]]:
    """Return task -> kind -> test scores at the best rate, one per seed."""
    by_task: dict[str, dict[str, list[float]]] = {}
    for (task, kind), best in best_rates(rows, "task", "kind").items():
        by_task.setdefault(task, {})[kind] = [row["test"] for row in best]
    return by_task


def spread(kinds: dict[str, list[float]]) -> float:
    """Return the standard deviation of the scores over seeds, the larger of both kinds."""
    return max(statistics.stdev(each) for each in kinds.values())


def claim(rows: Sequence[Row]) -> Verdict:
    by_task, results = scores(rows), dict[str, float]()
    gains = {task: mean(kinds["full"]) - mean(kinds["frozen"]) for task, kinds in by_task.items()}
    for task, kinds in by_task.items():
        results |= {f"{task} ({METRICS[task]}), {kind}": mean(each) for kind, each in kinds.items()}
        results[f"{task}, standard deviation"] = spread(kinds)
    clear = sum(gain > spread(by_task[task]) for task, gain in gains.items())
    return Verdict(min(gains.values()) > 0 and clear >= CLEAR, {**results, "clear gains": clear})


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(1, 1, 9, 4)
    by_task = scores(rows)
    for number, kind in enumerate(FROZEN):
        for i, kinds in enumerate(by_task.values()):
            x, label = i + 0.3 * number - 0.15, kind if not i else None
            axes[0, 0].plot([x] * len(kinds[kind]), kinds[kind], "o", color=f"C{number}", label=label)
            axes[0, 0].plot([x], [mean(kinds[kind])], "_", color=f"C{number}", markersize=18)
    axes[0, 0].set_xticks(range(len(by_task)), [f"{task}\n{METRICS[task]}" for task in by_task])
    axes[0, 0].set_title("test score: one point per seed, and the mean")
    axes[0, 0].legend(frameon=False)
    axes[0, 0].grid(alpha=0.3)
    return figure
