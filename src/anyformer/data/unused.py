"""Describes unused data: columns that nothing reads, and files in a folder that have other suffixes."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from anyformer.data.source import Files, First, Held, Source, Where
from anyformer.data.table import CSV, HFDataset, JSONLines, Parquet
from anyformer.objectives.objective import Objective
from anyformer.specs.messages import amount
from anyformer.specs.part import walk

SHOWN = 5  # names listed in a message


def describe_unused(source: Source, objective: Objective) -> str:
    """Return "not used: column id; 2 files with other endings (a.pdf, b.doc)", or "" if everything is used."""
    unused = []
    if columns := unused_columns(source, objective):
        unused.append(f"column{'s' if len(columns) > 1 else ''} {list_names(columns)}")
    if files := unused_files(source):
        unused.append(f"{amount(len(files), 'file')} with other endings ({list_names(files)})")
    return f"not used: {'; '.join(unused)}" if unused else ""


def list_names(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def unused_columns(source: Source, objective: Objective) -> list[str]:
    """Return the unused columns of a table, judged by its first readable row."""
    optional = (part.optional_columns for _, part in walk(objective) if isinstance(part, Objective))
    read = {*objective.columns, *chain.from_iterable(optional)}
    while isinstance(source, (Held, First, Where)):
        read |= {source.column} if isinstance(source, Where) else set()
        source = source.source
    if not isinstance(source, (CSV, JSONLines, Parquet, HFDataset)):
        return []
    read = {source.columns.get(name, name) for name in read} | {*source.columns.values()}
    read |= {name.partition(".")[0] for name in read}  # "translation.de" is inside "translation"
    first = next((row.example for row in source.raw() if row.example is not None), {})
    return [str(name) for name in first if name not in read]


def unused_files(source: Source) -> list[str]:
    """Return the files in a source's folders that it does not read, without hidden files."""
    unused = []
    for part in (part for _, part in walk(source) if isinstance(part, Files)):
        for path in (part.path,) if isinstance(part.path, str) else part.path:
            folder = Path(path).expanduser()
            if folder.is_dir():
                read = {*part.files()}
                others = [file.relative_to(folder) for file in sorted(folder.rglob("*")) if file not in read]
                visible = [file for file in others if not any(name.startswith(".") for name in file.parts)]
                unused += [str(file) for file in visible if (folder / file).is_file()]
    return list(dict.fromkeys(unused))
