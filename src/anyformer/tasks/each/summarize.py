"""Summarize a text."""

from __future__ import annotations

from typing import Annotated, Unpack

from anyformer.objectives.batches import Record
from anyformer.tasks.options import Beams, LengthPenalty, MaxNewTokens, Truncate
from anyformer.tasks.results import task
from anyformer.tasks.task import Inputs, Row, RunOptions, Source, start_run
from anyformer.tasks.writing import check_pair, check_settings, options_of, task_params, write


@task
def summarize(
    model: Source,
    inputs: Inputs,
    *,
    prefix: Annotated[str | None, "text before every input (default: the config's)"] = None,
    num_beams: Beams = None,
    length_penalty: LengthPenalty = None,
    no_repeat_ngram_size: Annotated[
        int | None, "never write the same N tokens twice (default: the folder's, else 0)"
    ] = None,
    min_new_tokens: Annotated[int | None, "shortest summary, in tokens"] = None,
    max_new_tokens: MaxNewTokens = None,
    truncate: Truncate = None,
    **run_options: Unpack[RunOptions],
) -> str:
    """Return the summary, a text. Options default to the folder's, including the `prefix` of the text ("summarize: ",
    T5). A text that is longer than the model's limit is an error, or is cut if `truncate` is set.

    >>> summarize("a/model/folder", "A long report ...", num_beams=4, max_new_tokens=60)  # doctest: +SKIP
    'It was a good year.'
    """
    request = start_run("summarize", model, inputs, run_options)
    check_pair(request)
    usual = task_params(request, "summarization")
    own = usual.pop("prefix", "")
    first = own if prefix is None else prefix
    options = options_of(
        usual,
        {
            "num_beams": num_beams,
            "length_penalty": length_penalty,
            "no_repeat_ngram_size": no_repeat_ngram_size,
            "min_new_tokens": min_new_tokens,
            "max_new_tokens": max_new_tokens,
        },
    )
    check_settings(request, options)

    def prepare(row: Row) -> Record:
        return request.record(first + row["text"], truncate=truncate)

    return request.answer(prepare, lambda run, records: write(run, records, options))
