"""Find the words that were not in the original text."""

from __future__ import annotations

from typing import Any, Unpack

from anyformer.objectives.examples import array
from anyformer.objectives.heads import head_of
from anyformer.parts.head.replaced_tokens import DetectModule
from anyformer.tasks.options import Truncate
from anyformer.tasks.results import Replaced, task
from anyformer.tasks.task import Inputs, RunOptions, Source, TaskRun, start_run


@task
def detect_replaced(
    model: Source, inputs: Inputs, *, truncate: Truncate = None, **run_options: Unpack[RunOptions]
) -> list[Replaced]:
    """Return [{"word", "replaced", "score", "start", "end"}, ...] for the tokens of the text, in order: `score` is the
    probability that a token was replaced, and `word` is text[start:end].

    >>> detect_replaced("a/model/folder", "The chef ate the meal.")  # doctest: +SKIP
    [{'word': 'The', 'replaced': False, 'score': 0.02, 'start': 0, 'end': 3}, ...]
    """
    request = start_run("detect-replaced", model, inputs, run_options)
    head_of(request.model, DetectModule, "finding replaced words")

    def finish(run: TaskRun, encodings: list[Any]) -> list[Any]:
        records = [{"input_ids": array(run.tokenizer._ids(encoding))} for encoding in encodings]
        scores = run.map_outputs(records, lambda output, _: output["logits"].float().sigmoid().tolist())
        results = []
        for row, encoding, own in zip(run.rows, encodings, scores, strict=True):
            columns = zip(own, encoding.offsets, encoding.special_tokens_mask)
            results.append(
                [
                    {
                        "word": row["text"][start:end],
                        "replaced": score > 0.5,
                        "score": score,
                        "start": start,
                        "end": end,
                    }
                    for score, (start, end), special in columns
                    if not special
                ]
            )
        return results

    return request.answer(lambda row: request.encode(row["text"], truncate=truncate), finish)
