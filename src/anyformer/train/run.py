"""A run: everything that decides what a training does, as one frozen, JSON-able description.

`override(run, {"optimizer.lr": 3e-4})` and `anyformer train RECIPE --set optimizer.lr=3e-4` speak of the same paths.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import Any, Literal

import anyformer.objectives
from anyformer.codec import encode, from_json, override
from anyformer.data import Data, Vocabulary
from anyformer.model import Model
from anyformer.names import spec
from anyformer.objectives.objective import Objective
from anyformer.part import Part
from anyformer.ranges import at_least, chance
from anyformer.slots import kinds
from anyformer.train.optim import AdamW, Constant, Optimizer, Schedule
from anyformer.train.parallel import Mesh
from anyformer.transforms.lora import LoRA
from anyformer.weights.io import read_json


class Pretrained(Part):
    """A model that is trained further: a folder or hub id. `architecture` names another class of its family (a head for
    this task, whose new weights are initialised), `labels` those of a classifier or tagger."""

    path: str
    architecture: str | None = None
    labels: tuple[str, ...] = ()


class Begin(Part):
    """The first `steps` of a run see no more than `length` tokens at once, which is cheap [Devlin et al. 2019]."""

    steps: int
    length: int

    def check(self) -> None:
        at_least(self, 1, "steps", "length")


class Batch(Part):
    """How much one step sees, over all processes: so many examples (rows, where texts are packed) or, with `tokens`, as
    many of similar length as have about that many tokens together. `micro` examples (or tokens) go through a device at
    once; the rest is accumulated."""

    examples: int | None = None
    tokens: int | None = None
    micro: int | None = None
    length: int | None = None  # of a packed row, and the longest record; the model's own limit unless said
    begin: Begin | None = None

    def check(self) -> None:
        at_least(self, 1, "examples", "tokens", "micro", "length")
        if (self.examples is None) == (self.tokens is None):
            raise ValueError("Batch: give examples or tokens, one of them")
        if self.begin is not None and self.length is not None and self.begin.length > self.length:
            raise ValueError(f"Batch: it begins with a length of {self.begin.length}, and {self.length} is the longest")


class Evaluate(Part):
    """Every so many steps, on the validation split: the objective's loss, and `metrics`."""

    every: int = 500
    batches: int | None = None  # at most so many; all unless said
    metrics: tuple[str, ...] = ()  # "accuracy", "bleu", ...: those of the objective's kind, see evaluate/metrics.py
    num_beams: int = 1  # with which texts are written for them
    patience: int | None = None  # stop after so many evaluations without a better one
    best: str = "loss"  # what "better" is about
    sample: str | None = None  # a prompt that the model continues each time

    def check(self) -> None:
        at_least(self, 1, "every", "batches", "num_beams", "patience")


class Keep(Part):
    """Checkpoints: every so many steps, the last `last` and the best one kept."""

    every: int = 1000
    last: int = 2
    best: bool = True

    def check(self) -> None:
        at_least(self, 1, "every", "last")


class Run(Part):
    """One training: the model, what it learns from, and how."""

    name: str
    model: Model | Pretrained
    data: Data
    objective: Objective
    vocabulary: Vocabulary | None = None  # a pretrained model's own unless said
    optimizer: Optimizer = AdamW()
    schedule: Schedule = Constant()
    batch: Batch
    steps: int
    precision: Literal["fp32", "bf16", "bf16-stream", "fp16"] = "fp32"  # stream: between the layers, too
    clip: float | None = 1.0  # the longest a gradient may be, over all parameters
    ema: float | None = None  # a moving average of the weights with this decay, which is evaluated and saved
    recompute: tuple[str, ...] = ()  # addresses whose activations are computed again in the backward pass
    compile: bool = False
    record: bool = False  # launch each step's passes at once, on one GPU: for small models, see record.py
    lora: LoRA | None = None
    freeze: tuple[str, ...] = ()  # addresses of what stands still, such as "embedding" or "encoder.layers.[0-3]"
    mesh: Mesh = Mesh()
    evaluate: Evaluate = Evaluate()
    keep: Keep = Keep()
    seed: int = 0

    def check(self) -> None:
        at_least(self, 1, "steps")
        at_least(self, 0, "seed")
        chance(self, "ema")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"Run.clip is {self.clip}; it must be above 0")


# -- files ------------------------------------------------------------------------------------------------------------


def every_kind() -> dict[str, type[Part]]:
    """Every kind of Part by name: those of models, and those that a run is described by."""
    for module in pkgutil.iter_modules(anyformer.objectives.__path__):  # a Part is known once its module is imported
        importlib.import_module(f"anyformer.objectives.{module.name}")
    return kinds()


def read_run(path: Path) -> Run:
    """The description in a run.json. In one that a person writes, "model" may be a name from the zoo or a folder, "set"
    has other values by address ({"model.width": 96}), and a kind is left out where only one fits."""
    every_kind()
    content = read_json(path)
    try:
        if not isinstance(content, dict):
            raise ValueError(f"not a run: expected an object, got a {type(content).__name__}")
        content = {"kind": "Run", **content}
        content.pop("$schema", None)  # for editors
        changes = content.pop("set", {})
        if isinstance(name := content.get("model"), str):
            folder = Path(name).is_dir() or name.count("/") == 1
            content["model"] = {"kind": "Pretrained", "path": name} if folder else encode(spec(name))
        run = from_json(content)
        if not isinstance(run, Run):
            raise ValueError(f"describes a {type(run).__name__}, not a Run")
        run = override(run, changes) if changes else run
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return run


# what may be other when a run goes on: how long, how it is watched, and how the same step is computed
FREE = ("name", "steps", "evaluate", "keep", "mesh", "compile", "record", "recompute", "batch.micro")


def differences(old: Run, new: Run) -> list[str]:
    """"path: before, now" of everything that decides what a step learns and is not the same."""
    return [line for path, line in _compare("", encode(old), encode(new)) if not path.startswith(FREE)]


def _compare(path: str, old: Any, new: Any) -> list[tuple[str, str]]:
    if isinstance(old, dict) and isinstance(new, dict) and old.get("kind") == new.get("kind"):
        found = []
        for name in dict.fromkeys((*old, *new)):
            found += _compare(f"{path}.{name}" if path else name, old.get(name), new.get(name))
        return found
    return [] if old == new else [(path, f"{path}: {_short(old)} then, {_short(new)} now")]


def _short(value: Any) -> str:
    text = "its default" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
