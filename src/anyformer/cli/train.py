"""Train a model. RECIPE is a name from --list, a run.json, or the folder of a run. Or use your own data: --text FOLDER
trains a language model, --csv FILE --label COLUMN a text classifier, --csv FILE --target COLUMN a model that translates
or summarizes, --images FOLDER an image classifier, --tags FILE a tagger of words, --questions FILE a model that answers
questions, --csv FILE --similar sentence embeddings; --model starts from another model.

Every field of the description can be set: --set steps=2000 --set optimizer.lr=1e-3; --freeze embedding keeps a part
of the model fixed. The folder keeps the description, the environment, metrics.jsonl and checkpoints; a run that was
stopped or killed continues with --resume. The folder opens as the best model by validation, DIR@last as the newest.

On several devices: torchrun --nproc-per-node 8 -m anyformer train RECIPE. Each device has a copy of the model and its
share of every batch; --set mesh.shard=8 also shards the parameters, --set mesh.tensor=2 splits each layer,
--set mesh.expert=8 the experts."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.cli.own_data import KINDS, data_flags, delimiter_of, given_kinds, own_run
from anyformer.cli.settings import change_run, device_flag

if TYPE_CHECKING:
    from anyformer.objectives.objective import Objective
    from anyformer.train.run import Run
    from anyformer.train.trainer import Trainer

LOGS = ("tensorboard", "wandb")


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("recipe", metavar="RECIPE", nargs="?", help="a recipe, a run.json, or a run's folder")
    data_flags(parser)
    add("--valid", metavar="FILE", help="file (or folder) for validation (default: a tenth of the data)")
    add("--test", metavar="FILE", help="file (or folder) that `anyformer eval` tests on")
    add("--class-weights", metavar="WEIGHTS", help='"balanced", or weights of rare classes: spam=3,fraud=10')
    add("--oversample", action="store_true", help="repeat the rows of rare classes")
    add("--model", metavar="NAME|FOLDER", help="model for your data: a name of the zoo, or a folder to train further")
    add("--lora", type=int, metavar="RANK", nargs="?", const=8, help="train low-rank adapters only (default rank: 8)")
    add("--list", action="store_true", help="list the recipes")
    add("--set", metavar="PATH=VALUE", action="append", default=[], help="set a field of the run; can be repeated")
    add(
        "--freeze",
        metavar="PATH",
        action="append",
        default=[],
        help="address of a Part that is not trained; can be repeated",
    )
    add("--out", metavar="DIR", help="folder of the run (default: runs/NAME)")
    add("--resume", action="store_true", help="resume from the newest checkpoint in the folder")
    add("--data", metavar="DIR", default="data", help="folder of the data sets (default: data/)")
    device_flag(parser)
    add("--log", metavar="NAME", action="append", default=[], help=f"also log to {' or '.join(LOGS)}; can be repeated")
    add("--show", action="store_true", help="print the description and train nothing")


def run(options: argparse.Namespace) -> None:
    from anyformer.specs.messages import nearest

    if options.list:
        show_recipes()
        return
    given = ["RECIPE"] * (options.recipe is not None) + [f"--{kind}" for kind in given_kinds(options)]
    if not given:
        own = ", ".join(f"--{name}" for name in KINDS)
        raise ValueError(f"give a recipe (--list shows them), a run.json, a run's folder, or one of {own}")
    if len(given) > 1:
        raise ValueError(f"give one of {', '.join(given)}")
    for name in ("model", "valid", "test", "class_weights", "oversample"):
        if getattr(options, name) and options.recipe is not None:
            raise ValueError(f"--{name.replace('_', '-')} goes with {', '.join(f'--{kind}' for kind in KINDS)}")
    for name in options.log:
        if name not in LOGS:
            raise ValueError(f"--log {name}; {nearest(name, LOGS)}")
    description, out = run_and_folder(options)
    description = description.replace(freeze=(*description.freeze, *options.freeze))
    if options.lora is not None:
        description = with_lora(description, options.lora, options.set)
    if options.show:
        from anyformer.specs.codec import to_json

        print(to_json(description))
        return
    if options.recipe is not None and not any(change.startswith(("data.", "model")) for change in options.set):
        check_data(options.recipe, options.data)
    train(description, Path(options.out or out), options.resume, options.device, options.log)


def show_recipes() -> None:
    from anyformer.cli.terminal import table
    from anyformer.recipes import groups

    for i, (group, recipes) in enumerate(groups().items()):
        print(f"{chr(10) * (i > 0)}{group}")
        table(("recipe", "what it trains"), list(recipes.items()))


def run_and_folder(options: argparse.Namespace) -> tuple[Run, str]:
    """Return the run and its default folder."""
    if options.recipe is None:
        from anyformer.data.other_files import with_splits

        run = own_run(options)
        reading = {"delimiter": delimiter_of(options), "encoding": options.encoding}
        run = run.replace(data=with_splits(run.data, options.valid, options.test, **reading))
        run = with_balance(run, options.class_weights, options.oversample)
        return change_run(run, options.set), f"runs/{run.name}"
    return find_run(options.recipe, options.data, options.set, options.resume)


def with_lora(run: Run, rank: int, changes: Sequence[str]) -> Run:
    """Return a run that trains adapters, with ten times its learning rate unless --set changes the rate."""
    from anyformer.transforms.lora import LoRA

    own_rate = any(change.startswith("optimizer.lr=") for change in changes)
    optimizer = run.optimizer if own_rate else run.optimizer.replace(lr=10 * run.optimizer.lr)
    return run.replace(lora=LoRA(rank=rank, alpha=2.0 * rank), optimizer=optimizer)


def with_balance(run: Run, weights: str | None, oversample: bool) -> Run:
    """Return a run that gives rare classes more weight (`weights`) or repeats them."""
    from anyformer.data import Oversample
    from anyformer.objectives.classify import Classify
    from anyformer.objectives.images import ClassifyImage
    from anyformer.objectives.multi_label import MultiLabel

    if not weights and not oversample:
        return run
    objective = run.objective
    single = isinstance(objective, Classify | ClassifyImage) and not isinstance(objective, MultiLabel)
    if not single or not objective.labels:
        raise ValueError("--class-weights and --oversample need one label per example; see --label and --images")
    if oversample:
        run = run.replace(data=run.data.replace(train=Oversample(source=run.data.splits["train"])))
    if weights == "balanced":
        return run.replace(objective=objective.replace(balanced=True))
    if weights:
        pairs = [class_weight(text) for text in weights.split(",")]
        if len(dict(pairs)) < len(pairs):
            raise ValueError(f"--class-weights {weights}: a label is given twice")
        run = run.replace(objective=objective.replace(class_weights=dict(pairs)))
    return run


def class_weight(text: str) -> tuple[str, float]:
    """ "spam=3" -> ("spam", 3.0)"""
    label, equals, weight = text.rpartition("=")
    try:
        if not equals:
            raise ValueError
        return label.strip(), float(weight)
    except ValueError:
        raise ValueError(f'--class-weights {text}: write "balanced", or label=number with commas between') from None


def find_run(name: str, data: str, changes: Sequence[str], resume: bool = False) -> tuple[Run, str]:
    """Return the run that a recipe, a run.json or a run's folder describes, and its folder."""
    from anyformer.recipes import recipe, recipes

    path = Path(os.path.expanduser(name))
    if not path.exists() and (resume or path.suffix == ".json" or len(path.parts) > 1):
        if len(path.parts) > 1 or name not in recipes():
            what = "nothing to resume" if resume else "`anyformer train --list` shows the recipes"
            raise FileNotFoundError(f"{name}: no such file or folder; {what}")
    if path.suffix == ".json" or path.is_dir():
        from anyformer.train.run import read_run

        run = read_run(path / "run.json" if path.is_dir() else path)
        out = str(path) if path.is_dir() else f"runs/{run.name}"
    else:
        run = recipe(name, data)
        out = f"runs/{run.name}"
    return change_run(run, changes), out


def check_data(name: str, data: str) -> None:
    """Raise FileNotFoundError, with the command that fetches the data, if a recipe's data is missing."""
    from anyformer.recipes import recipes
    from anyformer.recipes.shared.sources import folders_of

    for folder in folders_of(name, data) if name in recipes() else ():
        if not (Path(data) / folder).exists():
            how = f"`anyformer fetch {name}` gets it"
            raise FileNotFoundError(f"{data}/{folder} is missing: {how} (--data DIR if it is elsewhere)")


def train(
    description: Run,
    folder: Path,
    resume: bool,
    device: str = "auto",
    logs: Sequence[str] = (),
    watch: list[Any] | None = None,
) -> Trainer:
    """Train with progress, baselines, samples and a report, for this verb and the quickstart. `watch` are callbacks for
    every process."""
    from anyformer.train import parallel
    from anyformer.train.baseline import Baselines
    from anyformer.train.progress import SERVICES, Metrics, Samples, Screen
    from anyformer.train.report import outcome, report
    from anyformer.train.start import setup
    from anyformer.weights import manifest

    screen, baselines, samples = Screen(), Baselines(), Samples()
    with parallel.process_group(device) as here:
        first = parallel.rank() == 0  # other processes print nothing
        seen: list[Any] = [samples, *(watch or ())]
        seen = [Metrics(), screen, baselines, *seen, *(SERVICES[name]() for name in logs)] if first else seen
        tell = screen.on_message if first else lambda line: None
        try:
            trainer = setup(description, folder, resume=resume, device=here, callbacks=seen, tell=tell).fit()
        except KeyboardInterrupt:
            if first and manifest.steps(folder):
                print(f"`anyformer train {shlex.quote(str(folder))} --resume` continues it")
            raise
    if not first:
        return trainer
    written = report(folder, baselines.values)
    for line in outcome(folder, baselines.values):
        print(line)
    print(f"written: {folder}, {', '.join(path.name for path in written)}")
    if (folder / "adapter").is_dir():
        print(f"{folder / 'adapter'}: only the adapter, in PEFT's layout; {folder} has it merged into its weights")
    if command := usage(trainer.objective, folder):
        print(f"`{command}` uses it")
    return trainer


def usage(objective: Objective, folder: Path) -> str:
    """Return the command that uses a model trained with this objective (or the one inside it); "" if there is none."""
    from anyformer.objectives.objective import Objective
    from anyformer.specs.part import walk

    commands = (part.command for _, part in walk(objective) if isinstance(part, Objective))
    command = next(filter(None, commands), "")
    return f"anyformer {command}".replace("RUN", shlex.quote(str(folder))) if command else ""
