"""Decide whether the second text follows the first."""

from __future__ import annotations

from typing import Any, Unpack

from anyformer.objectives.batches import Record
from anyformer.objectives.sentences import FOLLOWS
from anyformer.parts.head.pretraining import NextSentenceHead, PretrainingHead
from anyformer.tasks.options import Truncate
from anyformer.tasks.results import Follows, task
from anyformer.tasks.task import Inputs, Row, RunOptions, Source, start_run


@task
def next_sentence(
    model: Source, inputs: Inputs, *, truncate: Truncate = None, **run_options: Unpack[RunOptions]
) -> Follows:
    """Return {"follows", "score"} for {"text", "pair"}: `score` is the probability that the pair follows the text, and
    `follows` whether it is above 0.5. For a model of sentence order (ALBERT): whether the two are in order.

    >>> pair = {"text": "It rains.", "pair": "The street is wet."}
    >>> next_sentence("a/model/folder", pair)  # doctest: +SKIP
    {'follows': True, 'score': 0.99}
    """
    request = start_run("next-sentence", model, inputs, run_options)
    head = request.model.spec.head
    if not isinstance(head, NextSentenceHead | PretrainingHead):
        actual = "no head" if head is None else f"a {type(head).__name__}"
        raise ValueError(f"next-sentence needs a head like BertForNextSentencePrediction's; this model has {actual}")
    output = head.output if isinstance(head, PretrainingHead) else "logits"

    def prepare(row: Row) -> Record:
        return request.record(row["text"], row["pair"], truncate=truncate)

    def result(outputs: Any, record: Record) -> dict[str, Any]:
        score = float(outputs[output].float().softmax(-1)[FOLLOWS])
        return {"follows": score > 0.5, "score": score}

    return request.answer(prepare, lambda run, records: run.map_outputs(records, result))
