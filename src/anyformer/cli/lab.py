"""Run experiments: `anyformer lab list`, `lab show NAME`, `lab run NAME`. `lab grid` trains any description or recipe
for every combination of some values and several seeds.

Finished trainings are kept: the same command continues where it was stopped."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from anyformer.cli import Mistake, Parser, tell
from anyformer.cli.settings import device_flag
from anyformer.specs.messages import nearest

ACTIONS = {
    "list": "List every experiment and what it shows",
    "show": "Show one experiment: what it tries, its forms and its claim",
    "run": "Run an experiment in the largest form that fits the time limit",
    "grid": "Train a description or recipe for every combination of values and seeds",
}
WAYS = ("here", "ray")


def main(given: Sequence[str]) -> None:
    if not given or given[0].startswith("-"):
        actions = "\n".join(f"  {action:6} {about}" for action, about in ACTIONS.items())
        parser = Parser(
            prog="anyformer lab",
            usage="anyformer lab [--help] ACTION ...",
            description=__doc__,
            epilog=f"actions:\n{actions}\n\n`anyformer lab ACTION --help` shows its options.",
        )
        parser.parse(given)
        raise Mistake(f"give an action: {', '.join(ACTIONS)}")
    action, *rest = given
    if action not in ACTIONS:
        raise Mistake(f"no action {action!r}; {nearest(action, ACTIONS)}")
    parser = parser_of(action)
    {"list": list_experiments, "show": show, "run": run, "grid": grid}[action](parser.parse(rest))


def parser_of(action: str) -> Parser:
    parser = Parser(prog=f"anyformer lab {action}", description=f"{ACTIONS[action].capitalize()}.")
    if action in ("show", "run"):
        parser.add_argument("name", metavar="NAME", help="an experiment, see `anyformer lab list`")
    if action == "run":
        parser.add_argument("--budget", type=float, metavar="MINUTES", help="time limit (default: 3, on a GPU 4)")
        parser.add_argument("--form", metavar="NAME", help="run this form, without a time limit")
        what = "text files to train on, for experiments with text"
        parser.add_argument("--data", metavar="PATH", help=what)
    if action == "grid":
        parser.add_argument("recipe", metavar="NAME", help="a recipe, a run.json, a run's folder, or a name of the zoo")
        what = "address and values to try; can be repeated, then every combination is tried"
        parser.add_argument("--set", metavar="PATH=A,B,...", action="append", default=[], help=what)
        parser.add_argument("--seeds", type=int, metavar="N", default=1, help="number of seeds, from 0 (default: 1)")
        parser.add_argument("--steps", type=int, metavar="N", help="steps of each training (default: the recipe's)")
        parser.add_argument("--data", metavar="DIR", default="data", help="folder of the data sets (default: data/)")
        parser.add_argument("--show", action="store_true", help="print the trainings and start none")
    if action in ("run", "grid"):
        parser.add_argument(
            "--jobs", type=int, metavar="N", help="trainings at once (default: one per core, 8 on a GPU)"
        )
        parser.add_argument("--on", metavar="WAY", default="here", help="here (processes of this machine) or ray")
        parser.add_argument("--out", metavar="DIR", help="folder of the results (default: runs/lab/NAME)")
        device_flag(parser)
    return parser


def check(options: argparse.Namespace) -> None:
    if options.on not in WAYS:
        raise ValueError(f"--on {options.on}; {nearest(options.on, WAYS)}")
    if options.jobs is not None and options.jobs < 1:
        raise ValueError(f"--jobs is {options.jobs}; it must be at least 1")


def list_experiments(options: argparse.Namespace) -> None:
    from anyformer.cli.terminal import table
    from anyformer.lab.registry import experiments, stored_result

    results = {name: stored_result(name) for name in experiments()}
    rows = [(name, result.verdict if (result := results[name]) else "", about) for name, about in experiments().items()]
    table(("experiment", "stored verdict", "what it shows"), rows)


def show(options: argparse.Namespace) -> None:
    from anyformer.cli.terminal import table
    from anyformer.lab.registry import experiment

    found = experiment(options.name)
    print(f"{found.__doc__.strip()}\n\nclaim: {found.CLAIM}\n")
    rows = []
    for name, form in found.FORMS.items():
        values = ", ".join(f"{key} {value}" for key, value in form.values.items())
        rows.append((name, str(len(found.trials(**form.values))), f"{form.cpu:g}", f"{form.cuda:g}", values))
    table(("form", "trials", "minutes on 2 cores", "on a GPU", "values"), rows, right=(1, 2, 3))
    print_stored(options.name)


def run(options: argparse.Namespace) -> None:
    check(options)
    if options.budget is not None and options.form is not None:
        raise ValueError("give --budget or --form, not both")
    from anyformer.kernels import hardware
    from anyformer.lab.experiment import choose_form, perform
    from anyformer.lab.registry import experiment

    forms = experiment(options.name).FORMS
    if options.form is not None and options.form not in forms:
        raise ValueError(f"{options.name} has no form {options.form!r}; {nearest(options.form, forms)}")
    kind = hardware.device(options.device).type
    form = options.form or choose_form(options.name, forms, kind, options.budget)
    folder = Path(options.out or f"runs/lab/{options.name}/{form}")
    outcome = perform(
        options.name,
        form,
        folder,
        device=options.device,
        jobs=options.jobs,
        on=options.on,
        budget=options.budget,
        data=options.data,
        tell=tell,
    )
    print(
        f"{outcome.name}, {form} form on {outcome.device}: {outcome.done} of {outcome.trials} trials done, "
        f"{outcome.cpu_seconds:.0f} s of CPU time"
    )
    if outcome.verdict == "unfinished":
        print("the time limit is reached: the same command continues with the rest")
        return
    for name, value in outcome.figures.items():
        print(f"  {name}: {value:.4g}" if isinstance(value, float) else f"  {name}: {value}")
    print(f"claim: {outcome.claim}\n{form} form: {outcome.verdict}")
    print_stored(options.name)
    print(f"written: {folder}, results.jsonl, claim.json, plot.png")


def print_stored(name: str) -> None:
    """Print the stored result, which decides, next to the reader's."""
    from anyformer.lab.registry import stored_result

    if (result := stored_result(name)) is None:
        print("no verdict is stored for this experiment")
        return
    if not result.run:
        print(f"stored verdict: {result.verdict}\n  claim: {result.claim}\n  why: {result.figure}")
        return
    print(f"stored verdict ({result.run}): {result.verdict}\n  claim: {result.claim}\n  figure: {result.figure}")
    if result.plot is not None:
        print(f"  plot: {result.plot}")


def grid(options: argparse.Namespace) -> None:
    check(options)
    from anyformer.cli.terminal import table
    from anyformer.lab.grid import GridSearch, base_run, values_of

    base = base_run(options.recipe, options.data)
    settings = dict(values_of(text) for text in options.set)
    if len(settings) < len(options.set):
        raise ValueError("--set: one address is given twice; all of its values go into one list")
    grid = GridSearch(base, settings, options.seeds, options.steps)
    if options.show:
        for trial in grid.trials:
            print(trial.name)
        return
    folder = Path(options.out or f"runs/lab/{base.name}-grid")
    rows = grid.perform(folder, options.device, options.jobs, options.on, tell)
    header = [*settings, "seeds", "parameters", "loss", "spread"]
    lines = [[str(cell) for cell in line] for line in grid.summary(rows)]
    table(header, lines, right=range(len(settings), len(header)))
    print(f"written: {folder}, results.jsonl, plot.png, and every training in {folder / 'trials'}")
