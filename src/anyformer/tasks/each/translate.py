"""Translate a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Unpack

from anyformer.objectives.batches import Record
from anyformer.specs.messages import nearest, quote
from anyformer.tasks.options import Beams, LengthPenalty, MaxNewTokens, Truncate
from anyformer.tasks.results import task
from anyformer.tasks.task import Inputs, Row, RunOptions, Source, TaskRun, start_run
from anyformer.tasks.writing import check_pair, options_of, task_params, write


@task
def translate(
    model: Source,
    inputs: Inputs,
    *,
    source: Annotated[
        str | None, "code of the language of the text, for models with several (default: the folder's)"
    ] = None,
    target: Annotated[str | None, "code of the language to write, for models with several"] = None,
    prefix: Annotated[str | None, "text before every input (default: the config's for these languages)"] = None,
    num_beams: Beams = None,
    length_penalty: LengthPenalty = None,
    max_new_tokens: MaxNewTokens = None,
    truncate: Truncate = None,
    **run_options: Unpack[RunOptions],
) -> str:
    """Return the translation, a text.

    `source` and `target` are language codes; an input may have its own. M2M-100 and multilingual Marian models need
    `target`. T5 needs both: they select the `prefix` in its config. A model of two languages needs neither. Other
    options default to the folder's.

    >>> translate("facebook/m2m100_418M", "Life is good.", source="en", target="fr")  # doctest: +SKIP
    'La vie est bonne.'
    """
    request = start_run("translate", model, inputs, run_options)
    check_pair(request)
    given = {"num_beams": num_beams, "length_penalty": length_penalty, "max_new_tokens": max_new_tokens}

    def prepare(row: Row) -> tuple[Record, Mapping[str, Any]]:
        codes = {"source": row.get("source", source), "target": row.get("target", target)}
        for name, code in codes.items():
            if code is not None and not isinstance(code, str):
                raise ValueError(f"{name} is {type(code).__name__}, not the code of a language")
        way, first, usual = direction(request, **codes, prefix=prefix)
        return way.record(first + row["text"], truncate=truncate), options_of(usual, given)

    def finish(run: TaskRun, prepared: list[tuple[Record, Mapping[str, Any]]]) -> list[Any]:
        texts: list[Any] = [None] * len(prepared)
        done: list[Any] = []
        for _, options in prepared:  # generate texts with the same options together
            if options in done:
                continue
            done.append(options)
            own = [i for i, (_, other) in enumerate(prepared) if other == options]
            for i, text in zip(own, write(run, [prepared[i][0] for i in own], options), strict=True):
                texts[i] = text
        return texts

    return request.answer(prepare, finish)


def direction(
    request: TaskRun, source: str | None, target: str | None, prefix: str | None
) -> tuple[TaskRun, str, dict[str, Any]]:
    """Return how to select the languages of a model: (request, prefix of the text, generation options)."""
    tokenizer = request.tokenizer
    if tokenizer.languages:
        if target is None:
            raise ValueError(f"target: this model writes {len(tokenizer.languages)} languages; which one?")
        reader = request if source is None else request.replace(tokenizer=tokenizer.in_language(source))
        return reader, prefix or "", {"forced_bos_token_id": tokenizer.language_id(target)}
    marks = {word[2:-2]: word for word in tokenizer.vocab if word.startswith(">>") and word.endswith("<<")}
    if marks and prefix is None:  # Marian
        if target not in marks:
            asking = f"no language {quote(target)}" if target else "target: which language?"
            raise ValueError(f"{asking}; {nearest(target or '', marks)}")
        return request, f"{marks[target]} ", {}
    usual = task_params(request, f"translation_{source}_to_{target}")
    if (source is not None or target is not None) and not usual and prefix is None:
        pairs = language_pairs(request)
        way = f"from {source or '?'} to {target or '?'}"
        hint = f"; it knows {', '.join(pairs)}" if pairs else ": give no languages, or a prefix"
        raise ValueError(f"{way}: this model does not take these languages{hint}")
    own = usual.pop("prefix", "")
    return request, own if prefix is None else prefix, usual


def language_pairs(request: TaskRun) -> list[str]:
    """Return the pairs of languages in a config."""
    names = request.model.spec.source.get("task_specific_params") or {}
    return [name.removeprefix("translation_").replace("_", " ") for name in names if name.startswith("translation_")]
