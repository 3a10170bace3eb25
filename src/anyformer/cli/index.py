"""Store the vectors of texts in a file; `anyformer search INDEX QUERY` finds texts by meaning in it.

FILE is a text file (one text per line), CSV, TSV or JSON lines. MODEL is an encoder of sentences, such as the run of
`anyformer train --similar`. The index is a safetensors file with the vectors, the texts and their lines in FILE."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from anyformer.cli.settings import MODEL, device_flag

TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json")


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help=MODEL)
    add("file", metavar="FILE", help="a text file, CSV, TSV or JSON lines")
    add("--out", metavar="INDEX", help="the index (default: the name of FILE with the suffix .index)")
    add("--overwrite", action="store_true", help="replace the file of --out if it exists")
    add("--column", metavar="NAME", help="column of the texts (default: found by its name)")
    add("--encoding", metavar="NAME", help="encoding of the file (default: detected)")
    add("--pool", metavar="POOL", help="cls, mean or last (default: as in training)")
    add("--batch", type=int, metavar="N", default=32, help="texts per batch (default: 32)")
    add("--offline", action="store_true", help="do not use the network; read only local folders and the cache")
    device_flag(parser)


class Texts(NamedTuple):
    texts: list[str]
    lines: list[int]  # of the file, from 1
    skipped: Counter[str]  # number of other lines by reason


def run(options: argparse.Namespace) -> None:
    from anyformer.cli.terminal import progress, spinner

    path = Path(options.file).expanduser()
    out = Path(options.out or f"{path.name.partition('.')[0]}.index").expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"{options.file}: no such file")
    if out.is_dir() or (out.exists() and (out.samefile(path) or not options.overwrite)):
        raise ValueError(f"--out {out} exists already; give another name, or --overwrite")
    with spinner(f"reading {path}"):
        from anyformer import tasks
        from anyformer.kernels import hardware
        from anyformer.recipes.shared.held_out import skipped_reasons

        read = read_texts(path, options.column, options.encoding)
        settings = {"device": hardware.device(options.device), "offline": options.offline, "batch": options.batch}
    if not read.texts:
        raise ValueError(f"{path}: no text; {skipped_reasons(read.skipped)}")
    with progress("index") as advance:
        errors = tasks.index(
            options.model, read.texts, out, rows=read.lines, pool=options.pool, progress=advance, **settings
        )
    read.skipped.update(each["error"] for each in errors)
    if read.skipped:
        print(f"{path}: {skipped_reasons(read.skipped)}", file=sys.stderr)
    print(f"{out}: {len(read.texts) - len(errors):,} texts of {path}")
    print(f'`anyformer search {out} "..."` searches it')


def read_texts(path: Path, column: str | None, encoding: str | None) -> Texts:
    """Read the texts of a file with their lines."""
    from anyformer.data.source import detect_encoding, lines, plain_suffix
    from anyformer.data.table import open_table
    from anyformer.recipes.shared.own_text import text_columns

    found = Texts([], [], Counter())

    def add(number: int, text: object, problem: str) -> None:
        problem = problem or ("" if isinstance(text, str) else "the column is not a text")
        problem = problem or ("" if str(text).strip() else "the text is empty")
        if problem:
            found.skipped[problem] += 1
            return
        found.texts.append(str(text))
        found.lines.append(number)

    if plain_suffix(path) not in TABLES:
        if column is not None:
            raise ValueError("--column goes with a table: CSV, TSV or JSON lines")
        for line in lines(path, encoding or detect_encoding(path)):
            add(line.number, line.text, line.problem)
        return found
    for row in open_table(str(path), [column] if column else [], encoding=encoding).raw():
        if row.example is not None and (not found.texts or column is None):
            (column,) = text_columns(str(path), list(row.example), None, [column] if column else [])
        add(int(row.place.rpartition(":")[2]), (row.example or {}).get(column or ""), row.problem)
    return found
