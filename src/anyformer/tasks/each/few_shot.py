"""Answer after zero, one or a few examples in the prompt, without training [Brown et al. 2020]."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Unpack

from anyformer.evaluate.likelihood import Pair, encode_pair, likelihoods
from anyformer.generation import check_can_generate
from anyformer.objectives.batches import Record
from anyformer.objectives.examples import array
from anyformer.specs.messages import nearest, quote
from anyformer.tasks.options import Examples
from anyformer.tasks.results import FewShotAnswer, task_with
from anyformer.tasks.task import Inputs, Row, RunOptions, Source, TaskRun, start_run
from anyformer.tasks.writing import check_settings, write


class Answers(list[FewShotAnswer]):
    """The results of several inputs."""

    @property
    def accuracy(self) -> float | None:
        """The share of right answers among inputs with a known answer; None if there are none."""
        known = [result["right"] for result in self if "right" in result]
        return sum(known) / len(known) if known else None


@task_with(Answers)
def few_shot(
    model: Source,
    inputs: Inputs,
    *,
    examples: Annotated[Examples | None, "JSON lines, each with a text and its answer"] = None,
    shots: Annotated[int | None, "number of examples (default: all)"] = None,
    template: Annotated[str, "how a text and its answer are written"] = "{text}\n{answer}",
    instruction: Annotated[str, "text before the examples"] = "",
    separator: Annotated[str, "text between examples"] = "\n\n",
    choices: Annotated[Sequence[str] | None, "a possible answer; can be repeated"] = None,
    per_token: Annotated[bool, "choose by the mean log-probability per token, not by the sum"] = False,
    stop: Annotated[
        Sequence[str] | None, "end the answer before this text; can be repeated (default: the end of the line)"
    ] = None,
    max_new_tokens: Annotated[int | None, "longest answer, in tokens (default: 32)"] = None,
    **run_options: Unpack[RunOptions],
) -> FewShotAnswer:
    r"""Return {"answer"}, and "right" if the input has its answer; a list of results also has an `accuracy`.

    The prompt is the instruction, the first `shots` examples (each {"text", "answer"}; a file of JSON lines, or a list)
    and the input, all formatted by the template, in which \n is a newline. If there are `choices` (for all inputs, or
    in an input), the answer is the most likely choice, and "scores" has the log-probability of each choice (per token
    if `per_token`). Otherwise the model writes the answer, which ends before the first `stop`.

    >>> results = few_shot(
    ...     "a/model/folder", [{"text": "A fine film.", "answer": "good"}], examples="films.jsonl", shots=3,
    ...     template="{text} It was {answer}", choices=["good", "bad"],
    ... )  # doctest: +SKIP
    >>> results.accuracy  # doctest: +SKIP
    1.0
    """
    selected = select_examples(examples, shots)
    template, instruction, separator = (text.replace("\\n", "\n") for text in (template, instruction, separator))
    before, _, after = template.partition("{answer}")
    if "{text}" not in before or after or "{answer}" not in template:
        raise ValueError(f"template {quote(template)}: it must have {{text}}, and {{answer}} at its end")
    request = start_run("few-shot", model, inputs, run_options)
    check_can_generate(request.model)
    start = [instruction] if instruction else []
    start += [before.replace("{text}", example["text"]) + example["answer"] for example in selected]

    def prompt(row: Row) -> str:
        return separator.join([*start, before.replace("{text}", row["text"])])

    chooses = choices is not None or any("choices" in row for row in request.rows if isinstance(row, dict))
    for name, value in (("stop", stop), ("max_new_tokens", max_new_tokens)):
        if value is not None and chooses:
            raise ValueError(f"{name}={quote(value)}: it does not apply to choices")
    room, stops = 32 if max_new_tokens is None else max_new_tokens, ["\n"] if stop is None else list(stop)
    options = {"max_new_tokens": room, "stop_strings": stops or None}
    if not chooses:
        check_settings(request, options)

    def prepare(row: Row) -> Any:
        own = choices_of(row, choices)
        if not chooses:
            return written_record(request, prompt(row), room)
        if own is None:
            raise ValueError("this input has no choices, but other inputs have")
        return choice_pairs(request, prompt(row), own)

    def finish(run: TaskRun, prepared: list[Any]) -> list[dict[str, Any]]:
        if chooses:
            results = choose(run, prepared, per_token)
        else:
            results = [{"answer": text} for text in write(run, prepared, options)]
        for row, result in zip(run.rows, results, strict=True):
            if "answer" in row:
                result["right"] = result["answer"].strip() == row["answer"].strip()
        return results

    answers = request.answer(prepare, finish)
    results: Any = answers if request.one else Answers(answers)
    return results


def choice_pairs(request: TaskRun, prompt: str, choices: list[str]) -> dict[str, Pair]:
    """Return the token ids of the prompt and of each choice after it."""
    two = request.model.spec.pair
    pairs: dict[str, Pair] = {}
    for choice in choices:
        first, rest = encode_pair(request.tokenizer, prompt, choice, two)
        check_length(request, max(len(first), len(rest)) if two else len(first) + len(rest) - 1)
        pairs[choice] = (first, rest)
    return pairs


def choose(request: TaskRun, choices: list[dict[str, Pair]], per_token: bool) -> list[dict[str, Any]]:
    """Return the most likely choice for each prompt."""
    pairs = [pair for own in choices for pair in own.values()]
    scored = likelihoods(request.model, pairs, size=request.reader.batch, progress=request.reader.progress)
    scores = iter(
        one.log_probability / (len(rest) if per_token else 1) for one, (_, rest) in zip(scored, pairs, strict=True)
    )
    results: list[dict[str, Any]] = []
    for own in choices:
        each = {choice: next(scores) for choice in own}
        best = max(each, key=each.__getitem__)
        results.append({"answer": best, "scores": each})
    return results


def written_record(request: TaskRun, prompt: str, room: int) -> Record:
    """Encode a prompt without spaces at its end, so that the model can write them."""
    ids = request.tokenizer.encode(prompt.rstrip(" ") or prompt)
    check_length(request, len(ids) if request.model.spec.pair else len(ids) + room)
    return {"input_ids": array(ids)}


def check_length(request: TaskRun, size: int) -> None:
    if request.limit is not None and size > request.limit:
        size_of = f"the prompt and its answer have {size:,} tokens"
        raise ValueError(f"{size_of}, and this model takes at most {request.limit:,}; give fewer examples (shots)")


# -- examples ---------------------------------------------------------------------------------------------------------


def select_examples(examples: Examples | None, shots: int | None) -> list[Row]:
    """Return the first `shots` examples."""
    if isinstance(examples, str | Path):
        examples = list(read(Path(examples).expanduser()))
    rows = [example_of(example, f"example {number}") for number, example in enumerate(examples or (), 1)]
    if shots is None:
        return rows
    if not 0 <= shots <= len(rows):
        raise ValueError(f"shots is {shots}, and there are {len(rows)} examples")
    return rows[:shots]


def read(path: Path) -> Any:
    """Yield the objects of a file of JSON lines."""
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
    """Return the choices of an input; None if there are none."""
    if "answer" in row and (not isinstance(row["answer"], str) or not row["answer"].strip()):
        raise ValueError("answer is empty" if row["answer"] == "" else f"answer is {quote(row['answer'])}, not text")
    own = row.get("choices", shared)
    if own is None:
        return None
    if isinstance(own, str) or not isinstance(own, Sequence):
        raise ValueError(f"choices are a list of texts, not {type(own).__name__}")
    if len(own) < 2:
        raise ValueError(f"{len(own)} choices; there must be at least two")
    for number, choice in enumerate(own, 1):
        if not isinstance(choice, str):
            raise ValueError(f"choice {number} is {type(choice).__name__}, not text")
        if not choice.strip():
            raise ValueError(f"choice {number} is empty")
        if choice in own[: number - 1]:
            raise ValueError(f"choice {number} is {quote(choice)} again")
    if "answer" in row and row["answer"] not in own:
        raise ValueError(f"the answer {quote(row['answer'])} is not among the choices; {nearest(row['answer'], own)}")
    return list(own)
