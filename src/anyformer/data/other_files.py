"""Splits from several files: the same columns are read from each."""

from __future__ import annotations

from anyformer.data.conversations import Conversations
from anyformer.data.prepare import Data
from anyformer.data.source import Files, Source, detect_encoding
from anyformer.data.table import CSV, JSONLines, open_table
from anyformer.data.text_files import Columns, TextFiles


def with_file(source: Source, path: str, *, delimiter: str | None = None, encoding: str | None = None) -> Source:
    """Return a source that reads the same columns from another file. Its delimiter and encoding are detected again
    unless given. If `source` is a part of its files, the result still reads all rows of the other file."""
    whole = source.whole
    if isinstance(whole, Conversations):
        return whole.replace(source=with_file(whole.source, path, delimiter=delimiter, encoding=encoding))
    if not isinstance(whole, Files):
        raise ValueError(f"{path}: {type(whole).__name__} does not read files, so it cannot read this one")
    if isinstance(whole, CSV | JSONLines):
        columns = [whole.columns.get(name, name) for name in whole.required]
        opened: Files = open_table(path, columns, delimiter=delimiter, encoding=encoding)
        if type(opened) is type(whole) and isinstance(whole, CSV):
            opened = opened.replace(quote=whole.quote, names=whole.names)
        return opened.replace(columns=whole.columns, required=whole.required)
    other = whole.replace(path=path)
    if isinstance(other, TextFiles):
        return other.replace(encoding=encoding)  # None: detected for each file
    if isinstance(other, Columns):
        return other.replace(encoding=encoding or detect_encoding(other.files()[0]))
    return other


def with_splits(data: Data, valid: str | None = None, test: str | None = None, **reading: str | None) -> Data:
    """Return data with its own files for validation and test. With a file for validation, no row of the training file
    is held out."""
    if valid is not None:
        data = data.replace(train=data.train.whole, valid=with_file(data.train, valid, **reading))
    if test is not None:
        data = data.replace(test=with_file(data.train, test, **reading))
    return data
