"""`--set PATH=VALUE`, `--device NAME` and default file names, for every verb that takes them."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anyformer.tasks.options import Flag
    from anyformer.train.run import Run

MODEL = "a model folder, a run (its best model; RUN@last is the newest) or a hub id"


def setting(text: str) -> tuple[str, Any]:
    """Parse PATH=VALUE; the value is parsed as JSON if possible, otherwise it is a text."""
    path, equals, value = text.partition("=")
    if not path or not equals:
        raise ValueError(f"--set takes PATH=VALUE, got {text!r}")
    try:
        return path, json.loads(value)
    except ValueError:
        return path, value
    except RecursionError:
        raise ValueError(f"--set {path}: JSON nested too deeply") from None


# words of other libraries -> fields of a Run
OTHER_WORDS = {
    "lr": "optimizer.lr", "learning_rate": "optimizer.lr", "weight_decay": "optimizer.weight_decay",
    "batch_size": "batch.examples", "warmup": "schedule.warmup", "warmup_steps": "schedule.warmup",
    "max_length": "batch.length", "max_steps": "steps", "fp16": "precision=fp16",
    "bf16": "precision=bf16", "epochs": "steps (a run counts steps, and prints how many epochs they are)",
    "num_train_epochs": "steps (a run counts steps, and prints how many epochs they are)",
    "gradient_accumulation_steps": "batch.micro", "per_device_train_batch_size": "batch.examples",
}  # fmt: skip
COMMON = ("gpt2", "llama", "bert", "t5")  # families whose words for sizes people know


def change_run(run: Run, texts: Sequence[str]) -> Run:
    """Return a run with the changes of --set. An address of the model may be given without "model.", and several texts
    with commas between them."""
    from anyformer.specs.addresses import value_at
    from anyformer.specs.codec import override

    changes: dict[str, Any] = {}
    for path, value in map(setting, texts):
        first = path.partition(".")[0]
        if first not in dict(run.items()):
            if first not in dict(run.model.items()):
                raise ValueError(f"--set {path}: a run has no {first!r}; {name_hint(run, path)}")
            path = f"model.{path}"
        if isinstance(value, str) and "," in value:
            with contextlib.suppress(ValueError, AttributeError, LookupError):
                value = tuple(value.split(",")) if isinstance(value_at(run, path), tuple) else value
        changes[path] = value
    return override(run, changes)


def name_hint(run: Run, word: str) -> str:
    """Return what a word of another library or of a published config is called here."""
    from anyformer import families
    from anyformer.families.base.fields import Entry
    from anyformer.specs.addresses import value_at
    from anyformer.specs.messages import nearest
    from anyformer.train.run import Pretrained, description_of

    if word in OTHER_WORDS:
        return f"did you mean {OTHER_WORDS[word]}?"
    model, first = description_of(run.model), word.partition(".")[0]
    fixed = ""
    if isinstance(run.model, Pretrained):
        fixed = ", but the architecture of a checkpoint is fixed"
        if first in dict(model.items()):
            return f"the model has one{fixed}"
    for family in filter(None, (model.family, *COMMON)):
        entry = families.find(family).fields.get(word)
        for address in entry.addresses if isinstance(entry, Entry) else ():
            with contextlib.suppress(ValueError, AttributeError, LookupError):
                value_at(model, address)
                return f"in {family} it is model.{address}{fixed}"
    return nearest(first, dict(run.items()) if word == first else (*dict(run.items()), *dict(model.items())))


def default_file(name: str, mark: bytes) -> str:
    """Return `name`, a default output file; ValueError if it exists without our mark in its first 2,000 bytes."""
    path = Path(name)
    if path.is_file():
        with path.open("rb") as file:
            if mark not in file.read(2000):
                raise ValueError(f"{name} exists and was not written by anyformer; choose another file with -o FILE")
    return name


def device_flag(parser: argparse.ArgumentParser) -> None:
    about = "auto (a GPU if there is one, else cpu), cpu, cuda, cuda:1, mps"
    parser.add_argument("--device", metavar="NAME", default="auto", help=about)


def add_flag(parser: argparse._ActionsContainer, name: str, flag: Flag) -> None:
    """Add an option of a task."""
    names = [flag.short] * bool(flag.short) + [f"--{name.replace('_', '-')}"]
    if flag.kind is bool:
        action = argparse.BooleanOptionalAction if flag.negated else "store_true"
        parser.add_argument(*names, help=flag.help, action=action, default=None)
    else:
        metavar = {int: "N", float: "X"}.get(flag.kind, name.upper())
        action = "append" if flag.several else "store"
        parser.add_argument(*names, help=flag.help, action=action, type=flag.kind, metavar=metavar)
