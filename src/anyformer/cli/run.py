"""Run a task with a model: `anyformer run TASK MODEL INPUT ...`.

Each INPUT is a text, or a file or folder of pictures or recordings. Without INPUT, every line of --file or of standard
input is an input: a text, or a JSON object with the task's fields. Tasks that read two texts take both as arguments, or
one as an argument and the other as a file. --csv and --jsonl read a column of a table; --out writes a table with the
results. There is one result per input, in order. If an input fails, its result is an error and the exit code is 1."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from anyformer.cli import Mistake, Parser, tell
from anyformer.cli.generate import DTYPES, visible
from anyformer.cli.predictions import InputTable, check_out, read_table, write_results
from anyformer.cli.settings import MODEL, add_flag, device_flag
from anyformer.cli.texts import as_json, text_of
from anyformer.specs.messages import nearest
from anyformer.tasks import TASKS, TaskInfo
from anyformer.tasks.table import find_task


def main(given: Sequence[str]) -> None:
    if not given or given[0].startswith("-"):
        list_tasks(given)
        return
    name, *rest = given
    task = find_task(name)
    if task is None:
        raise Mistake(f"no task {name!r}; {nearest(name, TASKS)}")
    run(task, parser_of(task).parse(rest))


def list_tasks(given: Sequence[str]) -> None:
    """Handle `--list`, `--help` and a command without a task."""
    width = max(map(len, TASKS))
    tasks = "\n".join(f"  {task:{width}}  {about.line}" for task, about in TASKS.items())
    parser = Parser(
        prog="anyformer run",
        usage="anyformer run [--help] [--list] TASK MODEL [INPUT ...] [flags]",
        description=__doc__,
        epilog=f"tasks:\n{tasks}\n\n`anyformer run TASK --help` shows its options.",
    )
    parser.add_argument("--list", action="store_true", help="list every task and what it does")
    if not parser.parse(given).list:
        raise Mistake(f"give a task: {', '.join(TASKS)}")
    print(tasks)


def parser_of(task: str) -> Parser:
    about = TASKS[task]
    fields = " ".join(name.upper() for name in about.fields) + (" ..." if len(about.fields) == 1 else "")
    parser = Parser(
        prog=f"anyformer run {task}",
        usage=f"anyformer run {task} MODEL [{fields}] [flags]",
        description=f"{about.line}\n\nWithout {fields}, read lines or JSON objects with"
        f" {', '.join(about.all_fields)} from --file or a pipe, or read a table.",
    )
    parser.add_argument("model", metavar="MODEL", help=MODEL)
    parser.add_argument("input", metavar="INPUT", nargs="*", default=[], help=fields)
    parser.add_argument("--file", metavar="PATH", help="read an input from each line: a text, or a JSON object")
    parser.add_argument("--whole", action="store_true", help="read the file, or the pipe, as one text")
    parser.add_argument("--csv", metavar="FILE", help="read inputs from a column of this table, CSV or TSV")
    parser.add_argument("--jsonl", metavar="FILE", help="read inputs from a field of these JSON lines")
    columns = f"column of {fields.lower().removesuffix(' ...')} in --csv or --jsonl (default: the same name)"
    if len(about.all_fields) > 1:
        columns += f"; can be repeated, in the order {', '.join(about.all_fields)}"
    parser.add_argument("--column", metavar="NAME", action="append", default=[], help=columns)
    if "out" not in about.flags:
        parser.add_argument("--out", metavar="FILE", help="write inputs and results to a table: .csv, .tsv or .jsonl")
        parser.add_argument("--overwrite", action="store_true", help="replace the file of --out if it exists")
    parser.add_argument("--json", action="store_true", help="print results as JSON, one line per input")
    parser.add_argument("--batch", type=int, metavar="N", default=8, help="inputs per batch (default: 8)")
    parser.add_argument("--dtype", metavar="NAME", default="auto", help=f"{', '.join(DTYPES)}")
    device_flag(parser)
    parser.add_argument(
        "--offline", action="store_true", help="do not use the network; read only local folders and the cache"
    )
    own = parser.add_argument_group(f"options of {task}")
    for name, flag in about.flags.items():
        add_flag(own, name, flag)
    return parser


def run(task: str, options: argparse.Namespace) -> None:
    about = TASKS[task]
    if options.dtype not in DTYPES:
        raise ValueError(f"no dtype {options.dtype!r}; {nearest(options.dtype, DTYPES)}")
    if options.batch < 1:
        raise ValueError(f"--batch is {options.batch}; it must be at least 1")
    table = read_inputs(task, options)
    own = {name: value for name in about.flags if (value := getattr(options, name)) is not None}
    out = None if "out" in about.flags else options.out

    from anyformer.cli.terminal import progress, spinner

    with spinner(f"looking for {options.model}"):
        from anyformer import tasks
        from anyformer.kernels import hardware
        from anyformer.tasks.each.few_shot import Answers
        from anyformer.tasks.task import checked_rows
        from anyformer.weights import hub

        rows, one = checked_rows(task, table.inputs)  # before the model is loaded
        device = hardware.device(options.device)
        function = getattr(tasks, about.function)
    folder = hub.resolve(options.model, offline=options.offline)  # a download shows its own progress
    with spinner(f"reading {options.model}"):
        reader = tasks.open_model(folder, device=device, dtype=options.dtype)
    with progress(task) as advance:
        answers = function(reader, table.inputs, batch=options.batch, progress=advance, **own)
    results = [plain(result) for result in ([answers] if one else answers)]
    if out is None:
        show(results, options.json)
    else:
        from_folders = len(rows) != len(table.rows) or any(isinstance(row, dict) and "file" in row for row in rows)
        write_results(out, about, [{}] * len(rows) if from_folders else table.rows, results)
        print(f"{out}: {len(results):,} rows")
    if isinstance(answers, Answers) and (accuracy := answers.accuracy) is not None:  # inputs with their right answers
        print(as_json({"accuracy": accuracy}) if options.json else f"accuracy  {cell(accuracy)}")
    errors = [(number, error) for number, result in enumerate(results, 1) for error in errors_of(result)]
    if errors:
        number, error = errors[0]
        tell(f"{len(errors):,} error{'s' * (len(errors) > 1)}; the first: input {number}: {error}")
        sys.stdout.flush()
        raise SystemExit(1)


# -- inputs ------------------------------------------------------------------------------------------------------------


def read_inputs(task: str, options: argparse.Namespace) -> InputTable:
    """Read the inputs, and the table rows that are written next to their results."""
    about = TASKS[task]
    given = [f"--{name}" for name in ("file", "csv", "jsonl") if getattr(options, name) is not None]
    given = ["INPUT", *given] if options.input else given
    if len(given) > 1 and (given != ["INPUT", "--file"] or len(options.input) >= len(about.fields)):
        raise Mistake(f"give {' or '.join(given)}, not both")
    tabled = options.csv is not None or options.jsonl is not None
    if options.column and not tabled:
        raise Mistake("--column needs --csv or --jsonl")
    if "out" not in about.flags and options.overwrite and options.out is None:
        raise Mistake("--overwrite needs --out")
    if "out" not in about.flags and options.out is not None:
        if options.json:
            raise Mistake("give --json, which prints the results, or --out, not both")
        check_out(options.out, options.overwrite, options.csv or options.jsonl or options.file)
    if tabled:
        return read_table(task, options.csv or options.jsonl, options.jsonl is not None, options.column)
    inputs = read(task, options)
    rows: list[Mapping[str, Any]] = []
    for each in inputs if isinstance(inputs, list) else [inputs]:
        rows.append(each if isinstance(each, dict) else {about.fields[0]: each} if isinstance(each, str) else {})
    return InputTable(rows, inputs)


def read(task: str, options: argparse.Namespace) -> Any:
    """Return one input, or a list if there are several or they are read from a file or a pipe."""
    about, given = TASKS[task], options.input
    if given and len(about.fields) == 1:
        return given[0] if len(given) == 1 else given
    if len(given) > len(about.fields):
        raise Mistake(f"{task} reads {' and '.join(about.fields)}; {len(given)} inputs were given")
    row = dict(zip(about.fields, given))
    lacking = [name for name in about.fields if name not in row]
    if not lacking:
        return row
    lack = f"{task} needs {' and '.join(about.fields)}, but {lacking[0]} is missing"
    text, name = text_of(options.file, lack)
    if not text.strip():
        raise ValueError(f"{lack}: {name} is empty")
    if row or options.whole:
        if len(lacking) > 1:
            raise Mistake(f"--whole: {task} needs {' and '.join(about.fields)}, and the file can be only one of them")
        return {**row, lacking[0]: text}
    return split(text, name, about)


def split(text: str, name: str, about: TaskInfo) -> list[Any]:
    """Return one input per line: JSON objects if the first line that is not empty is one, otherwise texts. An invalid
    line becomes a ValueError in the list."""
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    first = next(number for number, line in enumerate(lines) if line.strip())
    if not isinstance(parse_json(lines[first]), dict):
        if len(about.fields) > 1 or name.endswith((".jsonl", ".ndjson")):
            raise ValueError(f"{name}:{first + 1}: not a JSON object with {' and '.join(about.fields)}")
        return lines
    rows: list[Any] = []
    for number, line in enumerate(lines, 1):
        row = parse_json(line)
        problem = "not a JSON object, as the first line is" if line.strip() else "the line is empty"
        rows.append(row if isinstance(row, dict) else ValueError(f"{name}:{number}: {problem}"))
    return rows


def parse_json(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


# -- output -----------------------------------------------------------------------------------------------------------


def show(results: list[Any], in_json: bool) -> None:
    if in_json:
        for result in results:
            print(as_json(result))
        return
    numbered = [(str(number), row) for number, result in enumerate(results, 1) for row in rows_of(result)]
    if not all(isinstance(row, dict) for _, row in numbered):
        for _, row in numbered:
            if isinstance(row, dict):
                print(f"error: {row['error']}" if "error" in row else as_json(row))
            else:
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
    """Return a result that JSON can encode: tensors become lists."""
    from torch import Tensor

    return result.tolist() if isinstance(result, Tensor) else result


def errors_of(result: Any) -> list[str]:
    """Return the errors in a result: its own, or the errors of pictures (search-images)."""
    results = result if isinstance(result, list) else [result]
    return [one["error"] for one in results if isinstance(one, dict) and isinstance(one.get("error"), str)]


def rows_of(result: Any) -> Iterable[Any]:
    """Yield the objects of nested lists in a result; a text or a list of numbers is one object."""
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
