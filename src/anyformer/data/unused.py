"""Describes unused data: columns that nothing reads, and files of another kind in a folder."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from anyformer.data.source import Files, First, Held, Source, Where
from anyformer.data.table import CSV, HFDataset, JSONLines, Parquet
from anyformer.objectives.objective import Objective
from anyformer.specs.part import walk

SHOWN = 5  # names that are written out


def describe_unused(source: Source, objective: Objective) -> str:
    """ "not used: column id; 2 files with other endings (a.pdf, b.doc)", or "" where all is used."""
    unused = []
    if columns := unused_columns(source, objective):
        unused.append(f"column{'s' if len(columns) > 1 else ''} {list_names(columns)}")
    if files := unused_files(source):
        unused.append(f"{len(files):,} file{'s' if len(files) > 1 else ''} with other endings ({list_names(files)})")
    return f"not used: {'; '.join(unused)}" if unused else ""


def list_names(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def unused_columns(source: Source, objective: Objective) -> list[str]:
    """Of a table, by its first row that can be read."""
    optional = (part.optional_columns for _, part in walk(objective) if isinstance(part, Objective))
    read = {*objective.columns, *chain.from_iterable(optional)}
    while isinstance(source, (Held, First, Where)):
        read |= {source.column} if isinstance(source, Where) else set()
        source = source.source
    if not isinstance(source, (CSV, JSONLines, Parquet, HFDataset)):
        return []
    read = {source.columns.get(name, name) for name in read} | {*source.columns.values()}
    read |= {name.partition(".")[0] for name in read}  # "translation.de" is inside of "translation"
    first = next((row.example for row in source.raw() if row.example is not None), {})
    return [str(name) for name in first if name not in read]


def unused_files(source: Source) -> list[str]:
    """Those in the folders of a source that it does not read, hidden ones left aside."""
    unused = []
    for part in (part for _, part in walk(source) if isinstance(part, Files)):
        for path in (part.path,) if isinstance(part.path, str) else part.path:
            folder = Path(path).expanduser()
            if folder.is_dir():
                taken = {*part.files()}
                others = [file.relative_to(folder) for file in sorted(folder.rglob("*")) if file not in taken]
                visible = [file for file in others if not any(name.startswith(".") for name in file.parts)]
                unused += [str(file) for file in visible if (folder / file).is_file()]
    return list(dict.fromkeys(unused))
