"""Answers after zero, one or a few examples [Brown et al. 2020]: nothing is learnt, the prompt shows what is wanted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from anyformer.evaluate.likelihood import Pair, encode_pair, likelihoods
from anyformer.generation import check_writer
from anyformer.messages import quote
from anyformer.objectives.examples import array
from anyformer.part import nearest
from anyformer.tasks.task import How, Inputs, Row, Source, TaskRun, ask, blaming
from anyformer.tasks.writing import write

Examples = str | Path | Sequence[Mapping[str, Any]]


class Answers(list[Any]):
    """The results of several inputs."""

    @property
    def accuracy(self) -> float | None:
        """The share of right answers among those that are known."""
        known = [result["right"] for result in self if "right" in result]
        return sum(known) / len(known) if known else None


def few_shot(
    model: Source, inputs: Inputs, *, examples: Examples | None = None, shots: int | None = None,
    template: str = "{text}\n{answer}", instruction: str = "", separator: str = "\n\n",
    choices: Sequence[str] | None = None, per_token: bool = False, stop: Sequence[str] | None = None,
    max_new_tokens: int | None = None, **how: Unpack[How],
) -> Any:  # fmt: skip
    r"""{"answer"}, and "right" where the input tells its answer; a list of them also has an `accuracy`.

    The prompt is the instruction, the first `shots` examples (each {"text", "answer"}; a file of JSON lines, or a list)
    and the input, by the template, with \n for the end of a line. Where there are `choices`, an input's own or for all
    of them, the answer is the likeliest, and "scores" has the log-probability of each, of its mean token with
    `per_token`. Else it is written, and ends before the first `stop`.

    >>> found = few_shot(
    ...     "a/model/folder", [{"text": "A fine film.", "answer": "good"}], examples="films.jsonl", shots=3,
    ...     template="{text} It was {answer}", choices=["good", "bad"],
    ... )  # doctest: +SKIP
    >>> found.accuracy  # doctest: +SKIP
    1.0
    """
    shown = chosen(examples, shots)
    template, instruction, separator = (text.replace("\\n", "\n") for text in (template, instruction, separator))
    before, _, after = template.partition("{answer}")
    if "{text}" not in before or after or "{answer}" not in template:
        raise ValueError(f"template {quote(template)}: it must have {{text}}, and {{answer}} at its end")
    asked = ask("few-shot", model, inputs, how)
    known = asked.each(lambda row: choices_of(row, choices))
    check_writer(asked.model)
    start = [instruction] if instruction else []
    start += [before.replace("{text}", example["text"]) + example["answer"] for example in shown]

    def prompt(row: Row) -> str:
        return separator.join([*start, before.replace("{text}", row["text"])])

    if any(own is None for own in known) and not all(own is None for own in known):
        raise ValueError(f"input {known.index(None) + 1} has no choices, and others have")
    if not known or known[0] is None:
        room = 32 if max_new_tokens is None else max_new_tokens
        results = spoken(asked, asked.each(prompt), ["\n"] if stop is None else list(stop), room)
    else:
        for name, value in (("stop", stop), ("max_new_tokens", max_new_tokens)):
            if value is not None:
                raise ValueError(f"{name}={quote(value)}: nothing is written where there are choices")
        results = picked(asked, asked.each(prompt), known, per_token)
    for row, result in zip(asked.rows, results, strict=True):
        if "answer" in row:
            result["right"] = result["answer"].strip() == row["answer"].strip()
    return asked.give(Answers(results))


def picked(asked: TaskRun, prompts: list[str], choices: list[list[str]], per_token: bool) -> list[dict[str, Any]]:
    """The likeliest choice of each prompt."""
    two = asked.model.spec.pair
    pairs: list[Pair] = []
    for number, (prompt, own) in enumerate(zip(prompts, choices, strict=True), 1):
        with blaming(None if asked.one else number):
            for choice in own:
                first, rest = encode_pair(asked.tokenizer, prompt, choice, two)
                fits(asked, max(len(first), len(rest)) if two else len(first) + len(rest) - 1)
                pairs.append((first, rest))
    reader = asked.reader
    found = likelihoods(asked.model, pairs, size=reader.batch, progress=reader.progress)
    scores = iter(
        one.log_probability / (len(rest) if per_token else 1) for one, (_, rest) in zip(found, pairs, strict=True)
    )
    results: list[dict[str, Any]] = []
    for own in choices:
        each = {choice: next(scores) for choice in own}
        best = max(each, key=each.__getitem__)
        results.append({"answer": best, "scores": each})
    return results


def spoken(asked: TaskRun, prompts: list[str], stop: list[str], room: int) -> list[dict[str, Any]]:
    """What is written after each prompt; spaces at its end are the answer's to write."""
    two = asked.model.spec.pair
    records = []
    for number, prompt in enumerate(prompts, 1):
        with blaming(None if asked.one else number):
            ids = asked.tokenizer.encode(prompt.rstrip(" ") or prompt)
            fits(asked, len(ids) if two else len(ids) + room)
            records.append({"input_ids": array(ids)})
    texts = write(asked, records, {"max_new_tokens": room, "stop_strings": stop or None})
    return [{"answer": text} for text in texts]


def fits(asked: TaskRun, size: int) -> None:
    if asked.limit is not None and size > asked.limit:
        size_of = f"the prompt and its answer have {size:,} tokens"
        raise ValueError(f"{size_of}, and this model takes at most {asked.limit:,}; give fewer examples (shots)")


# -- what is asked ----------------------------------------------------------------------------------------------------


def chosen(examples: Examples | None, shots: int | None) -> list[Row]:
    """The first so many examples."""
    if isinstance(examples, str | Path):
        examples = list(read(Path(examples).expanduser()))
    found = [example_of(example, f"example {number}") for number, example in enumerate(examples or (), 1)]
    if shots is None:
        return found
    if not 0 <= shots <= len(found):
        raise ValueError(f"shots is {shots}, and there are {len(found)} examples")
    return found[:shots]


def read(path: Path) -> Any:
    """The objects of a file of JSON lines."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield example_of(json.loads(line), "the object")
                except (ValueError, RecursionError) as error:
                    raise ValueError(f"{path}:{number}: {error}") from None


def example_of(example: Any, name: str) -> Row:
    if not isinstance(example, Mapping):
        raise ValueError(f"{name} is {type(example).__name__}, not an object with text and answer")
    for key in ("text", "answer"):
        if not isinstance(example.get(key), str) or not example[key].strip():
            raise ValueError(f"{name} has no {key}")
    return dict(example)


def choices_of(row: Row, shared: Sequence[str] | None) -> list[str] | None:
    """What an input may be answered with; its answer is one of them."""
    if "answer" in row and (not isinstance(row["answer"], str) or not row["answer"].strip()):
        raise ValueError("answer is empty" if row["answer"] == "" else f"answer is {quote(row['answer'])}, not text")
    own = row.get("choices", shared)
    if own is None:
        return None
    if isinstance(own, str) or not isinstance(own, Sequence):
        raise ValueError(f"choices are a list of texts, not {type(own).__name__}")
    if len(own) < 2:
        raise ValueError(f"{len(own)} choices; there must be two at least")
    for number, choice in enumerate(own, 1):
        if not isinstance(choice, str):
            raise ValueError(f"choice {number} is {type(choice).__name__}, not text")
        if not choice.strip():
            raise ValueError(f"choice {number} is empty")
        if choice in own[: number - 1]:
            raise ValueError(f"choice {number} is {quote(choice)} again")
    if "answer" in row and row["answer"] not in own:
        raise ValueError(f"the answer {quote(row['answer'])} is none of the choices; {nearest(row['answer'], own)}")
    return list(own)
