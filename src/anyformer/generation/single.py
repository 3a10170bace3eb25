"""Greedy decoding and sampling: every row its own text, until all have ended."""

from __future__ import annotations

from typing import Any

from anyformer.generation import fast
from anyformer.generation.job import Job, Report


def write(job: Job) -> dict[str, Any]:
    if job.stepper.recording is not None and job.plain:
        return fast.write(job)
    ids, raw, report = job.ids, job.scores, Report(job)
    while True:
        processed = job.process(ids, raw)
        tokens = job.choose(processed, ids.shape[1] - job.prompt_length)
        ids = report.add(ids, raw, processed, tokens)
        if not bool(report.going.any()):
            return report.fields(ids)
        raw = job.stepper.step(ids[:, -1])
