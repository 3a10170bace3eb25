"""Greedy decoding and sampling, until all rows have ended."""

from __future__ import annotations

from anyformer.generation.search_state import DecodingLoop, Details, Move, Search


def decode(job: Search) -> DecodingLoop:
    ids, raw, report = job.ids, job.scores, Details(job)
    while True:
        processed = job.process(ids, raw)
        tokens = job.choose(processed, ids.shape[1] - job.prompt_length)
        ids = report.add(ids, raw, processed, tokens)
        if not bool(report.going.any()):
            return report.fields(ids)
        raw = yield Move(ids[:, -1])
