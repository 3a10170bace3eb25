"""Does a task with a model: `anyformer run TASK MODEL INPUT`.

INPUT is a text, or as many as the task reads, in order. Without it --file or what is piped in has a text a line, or
JSON lines: an object with the task's fields. Where INPUT leaves out one field, the file as a whole is that one."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from anyformer.cli import Mistake, Parser
from anyformer.cli.generate import DTYPES, visible
from anyformer.cli.settings import MODEL, device_flag
from anyformer.cli.texts import as_json, text_of
from anyformer.part import nearest
from anyformer.tasks import TASKS, About


def main(given: Sequence[str]) -> None:
    if not given or given[0].startswith("-"):
        listing(given)
        return
    task, *rest = given
    if task not in TASKS:
        raise Mistake(f"no task {task!r}; {nearest(task, TASKS)}")
    run(task, parser_of(task).parse(rest))


def listing(given: Sequence[str]) -> None:
    """`--list`, `--help`, or a command that names no task."""
    width = max(map(len, TASKS))
    tasks = "\n".join(f"  {task:{width}}  {about.line}" for task, about in TASKS.items())
    parser = Parser(
        prog="anyformer run", usage="anyformer run [--help] [--list] TASK MODEL [INPUT ...] [flags]",
        description=__doc__, epilog=f"tasks:\n{tasks}\n\n`anyformer run TASK --help` says more.",
    )  # fmt: skip
    parser.add_argument("--list", action="store_true", help="every task and what it does")
    if not parser.parse(given).list:
        raise Mistake(f"give a task: {', '.join(TASKS)}")
    print(tasks)


def parser_of(task: str) -> Parser:
    about = TASKS[task]
    fields = " ".join(name.upper() for name in about.fields) + "".join(f" [{name.upper()}]" for name in about.optional)
    fields += " ..." if about.several else ""
    parser = Parser(
        prog=f"anyformer run {task}", usage=f"anyformer run {task} MODEL [{fields}] [flags]",
        description=f"{about.line}\n\nWithout {fields}: --file or a pipe, of texts or JSON lines with these fields.",
    )  # fmt: skip
    parser.add_argument("model", metavar="MODEL", help=MODEL)
    parser.add_argument("input", metavar="INPUT", nargs="*", default=[], help=fields)
    parser.add_argument("--file", metavar="PATH", help="texts, one a line, or JSON lines")
    parser.add_argument("--whole", action="store_true", help="the file, or the pipe, is one text")
    parser.add_argument("--json", action="store_true", help="results as JSON, one line for each input")
    parser.add_argument("--batch", type=int, metavar="N", default=8, help="inputs at once; 8")
    parser.add_argument("--dtype", metavar="NAME", default="auto", help=f"{', '.join(DTYPES)}")
    device_flag(parser)
    parser.add_argument("--offline", action="store_true", help="open no connection: folders and the cache alone")
    own = parser.add_argument_group(f"of {task}")
    for name, flag in about.flags.items():
        how: dict[str, Any] = {"metavar": {int: "N", float: "X"}.get(flag.kind, name.upper()), "type": flag.kind}
        how = {"action": "store_true", "default": None} if flag.kind is bool else how
        how |= {"action": "append"} if flag.several else {}
        short = (f"-{flag.short}",) if flag.short else ()
        own.add_argument(*short, f"--{name.replace('_', '-')}", help=flag.about, **how)
    return parser


def run(task: str, options: argparse.Namespace) -> None:
    about = TASKS[task]
    if options.dtype not in DTYPES:
        raise ValueError(f"no dtype {options.dtype!r}; {nearest(options.dtype, DTYPES)}")
    if options.batch < 1:
        raise ValueError(f"--batch is {options.batch}; it must be at least 1")
    inputs = read(task, options)
    own = {name: value for name in about.flags if (value := getattr(options, name)) is not None}

    from anyformer.cli.terminal import progress, working

    with working(f"looking for {options.model}"):
        from anyformer import machine, tasks
        from anyformer.tasks.task import checked_rows
        from anyformer.weights import hub

        _, one = checked_rows(task, inputs)  # before seconds of loading
        device = machine.device(options.device)
        function = getattr(tasks, task.replace("-", "_"))
    folder = hub.resolve(options.model, offline=options.offline)  # a download shows its own progress
    with working(f"reading {options.model}"):
        reader = tasks.open_model(folder, device=device, dtype=options.dtype)
    with progress(task) as advance:
        found = function(reader, inputs, batch=options.batch, progress=advance, **own)
    show([found] if one else found, options.json)
    if (accuracy := getattr(found, "accuracy", None)) is not None:  # where inputs tell what is right
        print(as_json({"accuracy": accuracy}) if options.json else f"accuracy  {cell(accuracy)}")


# -- what is read -----------------------------------------------------------------------------------------------------


def read(task: str, options: argparse.Namespace) -> Any:
    """One input, or a list of them where they come from a file or a pipe."""
    about, given = TASKS[task], options.input
    if about.several and len(given) > 1:
        if options.file is not None:
            raise Mistake("give INPUT or --file, not both")
        return given
    if len(given) > len(about.all_fields):
        raise Mistake(f"{task} reads {' and '.join(about.all_fields)}; {len(given)} inputs were given")
    row = dict(zip(about.all_fields, given))
    lacking = [name for name in about.fields if name not in row]
    if not lacking:
        if options.file is not None:
            raise Mistake("give INPUT or --file, not both")
        return row
    lack = f"{task} needs {' and '.join(about.fields)}, and there is no {lacking[0]}"
    text, name = text_of(options.file, lack)
    if not text.strip():
        raise ValueError(f"{lack}: {name} is empty")
    if row or options.whole:
        if len(lacking) > 1:
            raise Mistake(f"--whole: {task} needs {' and '.join(about.fields)}, and the file can be only one of them")
        return {**row, lacking[0]: text}
    return split(text, name, about)


def split(text: str, name: str, about: About) -> list[Any]:
    """Lines that are not empty: objects where the first is one, else texts."""
    lines = [(number, line.rstrip("\r")) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not isinstance(parsed(lines[0][1]), dict):
        if len(about.fields) > 1 or name.endswith((".jsonl", ".ndjson")):
            raise ValueError(f"{name}:{lines[0][0]}: not a JSON object with {' and '.join(about.fields)}")
        return [line for _, line in lines]
    rows = []
    for number, line in lines:
        row = parsed(line)
        if not isinstance(row, dict):
            raise ValueError(f"{name}:{number}: not a JSON object, as the first line is")
        rows.append(row)
    return rows


def parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


# -- what is printed --------------------------------------------------------------------------------------------------


def show(results: list[Any], in_json: bool) -> None:
    if in_json:
        for result in results:
            print(as_json(plain(result)))
        return
    numbered = [(str(number), row) for number, result in enumerate(results, 1) for row in rows_of(plain(result))]
    if not all(isinstance(row, dict) for _, row in numbered):
        for _, row in numbered:
            print(row if isinstance(row, str) else " ".join(map(cell, row)))
        return
    header = list(dict.fromkeys(name for _, row in numbered for name in row))
    right = [name for name in header if all(isinstance(row.get(name), int | float) for _, row in numbered)]
    lines = [[cell(row.get(name, "")) for name in header] for _, row in numbered]
    if len(results) > 1:
        header, lines = ["input", *header], [[number, *line] for (number, _), line in zip(numbered, lines)]
    from anyformer.cli.terminal import table

    if lines:
        table(header, lines, right=[header.index(name) for name in ("input", *right) if name in header])


def plain(result: Any) -> Any:
    """What JSON can hold: tensors as lists."""
    return result.tolist() if hasattr(result, "tolist") else result


def rows_of(result: Any) -> Iterable[Any]:
    """The objects of a result, however deep its lists are; a text, or a list of numbers, is one."""
    if isinstance(result, list) and not (result and isinstance(result[0], int | float)):
        for part in result:
            yield from rows_of(part)
    else:
        yield "".join(map(visible, result)) if isinstance(result, str) and sys.stdout.isatty() else result


def cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4f}" if abs(value) >= 1e-4 or value == 0 else f"{value:.1e}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return "".join(letter if letter.isprintable() else " " for letter in text)
