"""A run: everything that defines a training, as one frozen description that is saved as JSON.

`override(run, {"optimizer.lr": 3e-4})` and `anyformer train RECIPE --set optimizer.lr=3e-4` use the same paths.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import Annotated, Any, Literal

import anyformer.objectives
from anyformer.checkpoint import read_spec, spec, weights_folder
from anyformer.data import Data, Vocabulary
from anyformer.families import names
from anyformer.families.base.layouts import find_layout
from anyformer.models import Model
from anyformer.objectives.objective import Objective
from anyformer.specs.codec import encode, from_json, override
from anyformer.specs.field_types import Chance, Count, Natural, Positive, Range
from anyformer.specs.messages import nearest
from anyformer.specs.part import Part
from anyformer.specs.slots import kinds
from anyformer.train.optim import AdamW, Constant, Optimizer, Schedule
from anyformer.train.parallel import Mesh
from anyformer.transforms.lora import LoRA
from anyformer.weights import hub, manifest
from anyformer.weights.io import read_json
from anyformer.weights.pieces import has_weights

for _module in pkgutil.iter_modules(anyformer.objectives.__path__):  # importing a module registers its kinds
    importlib.import_module(f"anyformer.objectives.{_module.name}")


class Pretrained(Part):
    """A pretrained model: a folder or hub id. `architecture` names another class of its family (a head for this task,
    whose weights are initialized), `labels` the labels of a classifier or tagger."""

    path: str
    architecture: str | None = None
    labels: tuple[str, ...] = ()


TokenCount = Annotated[int, Range(at_least=1, at_most=2**32)]


class Begin(Part):
    """The first `steps` of a run use texts of at most `length` tokens, which is cheaper [Devlin et al. 2019]."""

    steps: Count
    length: Count


class Batch(Part):
    """The batch of one step over all processes: a number of examples (rows, if texts are packed) or, with `tokens`,
    examples of similar length with about that many tokens in total. `micro` is the number of examples (or tokens) per
    forward pass; gradients are accumulated."""

    examples: Annotated[int, Range(at_least=1, at_most=2**24)] | None = None
    tokens: TokenCount | None = None
    micro: TokenCount | None = None
    length: TokenCount | None = None  # tokens of a packed row or the longest record; default: the model's limit
    begin: Begin | None = None

    def check(self) -> None:
        if (self.examples is None) == (self.tokens is None):
            raise ValueError("Batch: give either examples or tokens")
        if self.begin is not None and self.length is not None and self.begin.length > self.length:
            raise ValueError(f"Batch.begin.length: {self.begin.length} is more than Batch.length, {self.length}")


class Evaluate(Part):
    """Evaluation on the validation split every `every` steps: the objective's loss and `metrics`."""

    every: Count = 500
    batches: Count | None = None  # at most; default: all
    metrics: tuple[str, ...] = ()  # "accuracy", "bleu", ...: depend on the objective, see evaluate/metrics.py
    num_beams: Count = 1  # for metrics that need generated text
    patience: Count | None = 5  # early stopping: evaluations without improvement before training ends; null: never
    best: str = "loss"  # the score that must improve: the loss or one of the metrics
    sample: str | None = None  # a prompt to continue at each evaluation


class Keep(Part):
    """Checkpoints every `every` steps; the last `last` and the best by validation are kept."""

    every: Count = 1000
    last: Count = 2
    best: bool = True  # the run's model is the best checkpoint; false: the newest


class Run(Part):
    """One training: model, data, objective, optimizer and schedule."""

    name: str
    model: Model | Pretrained
    data: Data
    objective: Objective
    vocabulary: Vocabulary | None = None  # default: the pretrained model's
    optimizer: Optimizer = AdamW()
    schedule: Schedule = Constant()
    batch: Batch
    steps: Count
    precision: Literal["fp32", "bf16", "bf16-stream", "fp16"] = "fp32"  # mixed; bf16-stream: also the residual stream
    clip: Positive | None = 1.0  # gradient clipping: the maximum norm over all parameters
    ema: Chance | None = None  # decay of an exponential moving average of the weights, which is evaluated and saved
    recompute: tuple[str, ...] = ()  # gradient checkpointing: addresses whose activations are recomputed
    compile: bool | Literal["whole"] = False  # true: block by block; whole: one graph, which takes longer to compile
    record: bool | None = None  # capture each step in a CUDA graph; null: on one GPU if it helps, see record.py
    lora: LoRA | None = None
    freeze: tuple[str, ...] = ()  # addresses that are not trained, such as "embedding" or "encoder.layers.[0-3]"
    mesh: Mesh = Mesh()
    evaluate: Evaluate = Evaluate()
    keep: Keep = Keep()
    seed: Natural = 0


# -- files ------------------------------------------------------------------------------------------------------------


def every_kind() -> dict[str, type[Part]]:
    """Return every kind of Part by name; importing this module has registered the kinds of runs."""
    return kinds()


def read_run(path: Path) -> Run:
    """Read a run.json. In a handwritten file "model" may be a name (see `model_of`), "set" may override values by
    address ({"model.width": 96}), and "kind" may be left out if only one kind fits."""
    content = read_json(path)
    try:
        if not isinstance(content, dict):
            raise ValueError(f"not a run: expected an object, got a {type(content).__name__}")
        content = {"kind": "Run", **content}
        content.pop("$schema", None)  # for editors
        changes = content.pop("set", {})
        if isinstance(name := content.get("model"), str):
            content["model"] = encode(model_of(name))
        run = from_json(content)
        if not isinstance(run, Run):
            raise ValueError(f"describes a {type(run).__name__}, not a Run")
        run = override(run, changes) if changes else run
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return run


def model_of(name: str) -> Model | Pretrained:
    """Return the model of a run by name. A name from the zoo, a spec.json or a folder without weights is a description,
    whose weights are initialized. A run.json, or the folder of a run without checkpoints, gives the model of that run.
    Any other folder or hub id is a pretrained model."""
    path, described = Path(name).expanduser(), dict(names())
    if path.is_dir():
        stored = (path / "spec.json").is_file() or find_layout(path) is not None
        if (path / "run.json").is_file() and not stored and not manifest.steps(path):
            return read_run(path / "run.json").model
        return Pretrained(path=name) if not stored or has_weights(weights_folder(path)) else read_spec(path)
    if path.is_file() and read_json(path).get("kind", "Run") == "Run":
        return read_run(path).model
    is_typo = "/" not in name and nearest(name, described).startswith("did you mean")  # a misspelt name, not a hub id
    if path.is_file() or path.suffix == ".json" or name in described or is_typo:
        return spec(path if path.suffix == ".json" else name)
    return Pretrained(path=name)


def description_of(model: Model | Pretrained) -> Model:
    """Return the description of a run's model before training."""
    return read_spec(hub.resolve(model.path)) if isinstance(model, Pretrained) else model


# fields that may change when a run is resumed: its length, its reports, and how a step is computed
MAY_CHANGE = (
    "name",
    "steps",
    "keep",
    "mesh",
    "compile",
    "record",
    "recompute",
    "batch.micro",
    *(f"evaluate.{name}" for name, _ in Evaluate().items() if name != "best"),  # scores must stay comparable
)


def differences(old: Run, new: Run) -> list[str]:
    """Return a line "path: OLD then, NEW now" for every changed field that affects training."""
    return [line for path, line in _compare("", encode(old), encode(new)) if not path.startswith(MAY_CHANGE)]


def _compare(path: str, old: Any, new: Any) -> list[tuple[str, str]]:
    if isinstance(old, dict) and isinstance(new, dict) and old.get("kind") == new.get("kind"):
        lines = []
        for name in dict.fromkeys((*old, *new)):
            lines += _compare(f"{path}.{name}" if path else name, old.get(name), new.get(name))
        return lines
    return [] if old == new else [(path, f"{path}: {_short(old)} then, {_short(new)} now")]


def _short(value: Any) -> str:
    text = "its default" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
