"""Find the words of a text that answer a question."""

from __future__ import annotations

from typing import Annotated, Any, Unpack

import torch
from torch import Tensor

from anyformer.objectives.answer import Answer, best_spans
from anyformer.tasks.results import FoundAnswer, task
from anyformer.tasks.task import Inputs, Row, RunOptions, Source, TaskRun, start_run

LENGTH = 384  # tokens per window, as in training on SQuAD


@task
def answer(
    model: Source,
    inputs: Inputs,
    *,
    top_k: Annotated[int, "number of answers, most likely first"] = 1,
    length: Annotated[int | None, "tokens of a window over a long text (default: 384, or the model's limit)"] = None,
    stride: Annotated[int | None, "tokens that two windows share (default: a third of a window)"] = None,
    max_answer_tokens: Annotated[int, "longest answer, in tokens"] = 30,
    threshold: Annotated[
        float | None,
        "give no answer if 'no answer' scores higher than the best answer by more than this (default: always answer)",
    ] = None,
    **run_options: Unpack[RunOptions],
) -> list[FoundAnswer]:
    """Return [{"answer", "score", "start", "end", "no_answer"}, ...] for {"question", "context"}, most likely first.

    A long context is read in windows of `length` tokens with the question; two windows share `stride` tokens. `score`
    is the probability among the twenty most likely answers of all windows, and `answer` is context[start:end].
    `no_answer` is the lowest score of "no answer" over all windows, minus the score of this answer. With a `threshold`,
    the first answer is "" if "no answer" exceeds the best answer by more than the threshold (SQuAD 2.0).

    >>> answer("a/model/folder", {"question": "Who barks?", "context": "A dog barks."})  # doctest: +SKIP
    [{'answer': 'A dog', 'score': 0.93, 'start': 0, 'end': 5, 'no_answer': -7.1}]
    """
    for name, value in (("top_k", top_k), ("max_answer_tokens", max_answer_tokens)):
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    request = start_run("answer", model, inputs, run_options)
    limit = request.limit
    length = length or min(LENGTH, limit or LENGTH)
    if limit is not None and length > limit:
        raise ValueError(f"length is {length}, and this model takes at most {limit} tokens")
    stride = length // 3 if stride is None else stride
    if not 0 <= stride < length - 1:
        raise ValueError(f"stride is {stride}, and a window has {length} tokens")
    objective = Answer(length=length, stride=stride, question_length=length - stride - 1)
    objective.module(request.model)  # fails here if the head does not fit

    def prepare(row: Row) -> list[Any]:
        return objective.windows(row["question"], row["context"], request.tokenizer)

    def finish(run: TaskRun, windows: list[list[Any]]) -> list[Any]:
        with torch.inference_mode():
            records = [objective.record(window, None) for own in windows for window in own]
            scores = iter(objective.scores(run.job, records))
        results = []
        for row, own in zip(run.rows, windows, strict=True):
            context = row["context"]
            ranked, none = candidates(own, [next(scores) for _ in own], context, max_answer_tokens)
            results.append(result_of(context, ranked, none, top_k, threshold))
        return results

    return request.answer(prepare, finish)


def candidates(
    windows: list[Any], scores: list[Tensor], context: str, most: int
) -> tuple[list[tuple[float, int, int]], float]:
    """Return the spans of all windows as (score, start, end) in characters, each once, best first; and the lowest score
    of "no answer"."""
    best: dict[tuple[int, int], float] = {}
    none = float("inf")
    for window, (start, end) in zip(windows, scores, strict=True):
        none = min(none, float(start[0] + end[0]))
        for score, first, last in best_spans(start, end, window, context, most):
            if last > first:
                best[first, last] = max(score, best.get((first, last), float("-inf")))
    return sorted(((score, *span) for span, score in best.items()), key=lambda one: -one[0]), none


def result_of(
    context: str, ranked: list[tuple[float, int, int]], none: float, top_k: int, threshold: float | None
) -> list[dict[str, Any]]:
    """Return the answers to one question."""
    ranked = ranked[:20]
    empty = threshold is not None and (not ranked or none - ranked[0][0] > threshold)
    ranked = [(none, 0, 0), *ranked] if empty or not ranked else ranked
    shares = torch.tensor([score for score, _, _ in ranked], dtype=torch.float64).softmax(0).tolist()
    return [
        {"answer": context[first:last], "score": share, "start": first, "end": last, "no_answer": none - score}
        for share, (score, first, last) in zip(shares[:top_k], ranked)
    ]
