"""Find the texts of an index whose meaning is closest to a query. INDEX is a file of `anyformer index`.

The result is the cosine of the two vectors, the line of the text in its file, and the text. Without QUERY, every line
of --file or of standard input is a query."""

from __future__ import annotations

import argparse
from typing import Any

from anyformer.cli.settings import device_flag

SHOWN = 200  # characters of a text in a table


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("index", metavar="INDEX", help="a file that `anyformer index` wrote")
    add("query", metavar="QUERY", nargs="*", default=[], help="what to look for; several are searched one by one")
    add("--file", metavar="PATH", help="read a query from each line")
    add("--top-k", type=int, metavar="N", default=5, help="number of texts, best first (default: 5)")
    add("--model", metavar="MODEL", help="the model of the index, if it is no longer where it was")
    add("--batch", type=int, metavar="N", default=32, help="queries per batch (default: 32)")
    add("--json", action="store_true", help="print results as JSON with whole texts, one line per query")
    add("--offline", action="store_true", help="do not use the network; read only local folders and the cache")
    device_flag(parser)


def run(options: argparse.Namespace) -> None:
    from anyformer.cli.run import errors_of, show
    from anyformer.cli.terminal import spinner
    from anyformer.cli.texts import text_of
    from anyformer.specs.messages import shorten

    queries: Any = options.query or text_of(options.file, "search needs a query")[0].splitlines()
    with spinner(f"searching {options.index}"):
        from anyformer import tasks
        from anyformer.kernels import hardware

        settings = {"device": hardware.device(options.device), "offline": options.offline, "batch": options.batch}
        one = len(options.query) == 1
        query = queries[0] if one else queries
        found = tasks.search(options.index, query, model=options.model, top_k=options.top_k, **settings)
    results = [found] if one else found
    if not options.json:
        results = [
            [{**row, "text": shorten(row["text"], SHOWN)} for row in rows] if isinstance(rows, list) else rows
            for rows in results
        ]
    show(results, options.json)
    if any(map(errors_of, results)):
        raise SystemExit(1)
