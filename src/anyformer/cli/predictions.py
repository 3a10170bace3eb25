"""Read tables of inputs (`--csv`, `--jsonl`), and write them with their results (`--out`)."""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from anyformer.cli import Mistake
from anyformer.cli.texts import as_json
from anyformer.specs.messages import nearest, shorten
from anyformer.tasks import TASKS, TaskInfo

DELIMITERS = {".csv": ",", ".tsv": "\t"}
LINES = (".jsonl", ".ndjson")


class InputTable(NamedTuple):
    """The rows of a table, and one input per row: the task's fields, or the error of an invalid row."""

    rows: list[Mapping[str, Any]]  # as in the file; {} if a row cannot be read
    inputs: Any  # a list, or a single input with one row


def read_table(task: str, path: str, jsonl: bool, columns: Sequence[str]) -> InputTable:
    """Read a table. `columns` are the columns of the task's fields, in order (default: those with the same names)."""
    from anyformer.data.table import open_table

    about = TASKS[task]
    if len(columns) > len(about.all_fields):
        raise Mistake(f"{task} reads {' and '.join(about.all_fields)}; --column is given {len(columns)} times")
    fields = dict(zip(about.all_fields, columns or about.fields))
    if not Path(path).expanduser().is_file():
        raise FileNotFoundError(f"{path}: no such file")
    known: list[str] | None = None
    rows: list[Mapping[str, Any]] = []
    inputs: list[Any] = []
    for row in open_table(path, [*fields.values()], jsonl=jsonl).raw():
        if known is None and row.example is not None:
            known = [*row.example]
            check_columns(path, about, fields, known, bool(columns))
        rows.append(row.example or {})
        lacking = [name for name in fields.values() if name not in (row.example or {})]
        if row.example is None or lacking:
            inputs.append(ValueError(f"{row.place}: {row.problem or f'no column {lacking[0]!r}'}"))
        else:
            values = {field: row.example[name] for field, name in fields.items()}
            inputs.append({**values, **media_paths(about, values, Path(path).expanduser().parent)})
    if not rows:
        raise ValueError(f"{path}: the table has no rows")
    return InputTable(rows, inputs)


def check_columns(path: str, about: TaskInfo, fields: Mapping[str, str], known: list[str], given: bool) -> None:
    """Raise ValueError if the table lacks columns that the task reads."""
    for field, name in fields.items():
        if name not in known and given:
            raise ValueError(f"{path}: no column {name!r}; {nearest(name, known)}")
        if name not in known:
            order = ", then ".join(about.fields)
            names = shorten(", ".join(known), 1000)
            raise ValueError(f"{path}: no column {field!r}; give --column for {order}: {names}")


def media_paths(about: TaskInfo, values: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Return the paths of pictures and recordings that exist relative to the table's folder, not to the current one."""
    given = {name: value for name, value in values.items() if name in about.raw and isinstance(value, str) and value}
    return {
        name: str(folder / value)
        for name, value in given.items()
        if not Path(value).expanduser().exists() and (folder / value).exists()
    }


# -- the results ------------------------------------------------------------------------------------------------------


def check_out(out: str, overwrite: bool, source: str | None) -> None:
    """Check --out before any work."""
    path = Path(out).expanduser()
    if path.suffix.lower() not in (*DELIMITERS, *LINES):
        raise ValueError(f"--out {out}: the name of a table ends in {', '.join((*DELIMITERS, *LINES))}")
    if path.is_dir():
        raise ValueError(f"--out {out} is a folder")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"--out {out}: no such folder: {path.parent}")
    if path.exists() and source is not None and Path(source).expanduser().exists():
        if path.samefile(Path(source).expanduser()):
            raise ValueError(f"--out {out} is the input; give another name")
    if path.exists() and not overwrite:
        raise ValueError(f"--out {out} exists already; give another name, or --overwrite")


def write_results(out: str, about: TaskInfo, rows: Sequence[Mapping[str, Any]], results: Sequence[Any]) -> None:
    """Write the columns of each row, followed by the columns of its result. An old file is replaced atomically."""
    path = Path(out).expanduser()
    columns = [columns_of(result, about.ranked) for result in results]
    own = dict.fromkeys(name for row in rows for name in row)
    names = dict.fromkeys(name for result in columns for name in result if name != "error")
    titles = {name: title_of(name, own) for name in (*names, "error")}
    lines = [
        {**dict.fromkeys(own), **row, **{title: result.get(name) for name, title in titles.items()}}
        for row, result in zip(rows, columns, strict=True)
    ]
    handle, draft = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
    try:
        with open(handle, "w", encoding="utf-8", newline="") as file:
            if path.suffix.lower() in LINES:
                file.writelines(as_json(line) + "\n" for line in lines)
            else:
                writer = csv.writer(file, delimiter=DELIMITERS[path.suffix.lower()], lineterminator="\n")
                writer.writerow([*own, *titles.values()])
                writer.writerows([cell_of(value) for value in line.values()] for line in lines)
        os.chmod(draft, 0o666 & ~current_umask())
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise


def columns_of(result: Any, ranked: bool) -> dict[str, Any]:
    """Return a result as columns: an object's fields; for ranked candidates, label, ..., label_2, ..."""
    if isinstance(result, dict):
        return result
    if ranked and isinstance(result, list) and all(isinstance(one, dict) for one in result):
        numbered = ((name, number, one) for number, one in enumerate(result, 1) for name in one)
        return {name if number == 1 else f"{name}_{number}": one[name] for name, number, one in numbered}
    return {"prediction": result}


def title_of(name: str, taken: Mapping[str, Any]) -> str:
    """Rename a result column that has the name of a column of the table."""
    while name in taken:
        name = f"predicted_{name}"
    return name


def cell_of(value: Any) -> Any:
    return "" if value is None else value if isinstance(value, str | int | float) else as_json(value)


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
