"""Greedy decoding and sampling: every row its own text, until all have ended."""

from __future__ import annotations

from anyformer.generation.search_state import Details, Move, Search, Writer


def write(job: Search) -> Writer:
    ids, raw, report = job.ids, job.scores, Details(job)
    while True:
        processed = job.process(ids, raw)
        tokens = job.choose(processed, ids.shape[1] - job.prompt_length)
        ids = report.add(ids, raw, processed, tokens)
        if not bool(report.going.any()):
            return report.fields(ids)
        raw = yield Move(ids[:, -1])
