"""`anyformer train --questions`: find the answers to your own questions in texts, from JSON lines or SQuAD's format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from anyformer.data import JSONLines, Source, SQuAD
from anyformer.data.source import detect_encoding, find, plain_suffix
from anyformer.models import position_limit
from anyformer.objectives.answer import Answer, answer_span, find_answer, first_answer
from anyformer.objectives.examples import text_of
from anyformer.recipes.shared.encoder import tiny_bert, vocabulary
from anyformer.recipes.shared.held_out import Notify, divide_steps, held_out, name_of, skipped_reasons, usable
from anyformer.recipes.shared.models import with_labels, with_vocabulary
from anyformer.specs.messages import nearest
from anyformer.train.optim import AdamW, Linear
from anyformer.train.run import Batch, Evaluate, Run, description_of

NAMES = {  # column -> its usual names
    "question": ("question", "query"),
    "context": ("context", "passage", "paragraph", "document", "text"),
    "answers": ("answers", "answer", "answer_text"),
}
READER = "ForQuestionAnswering"
SIZE, LENGTH = 4000, 256  # of the vocabulary and of a window, in tokens


def from_questions(
    path: str,
    columns: Sequence[str] = (),
    model: str | None = None,
    *,
    encoding: str | None = None,
    tell: Notify = lambda line: None,
) -> Run:
    """Return a run that learns to find answers in texts. `columns` are the columns of the question, the text and the
    answer. One text in ten is held out with its questions. `tell` receives a line on how the file is read."""
    source = questions_in(path, columns, encoding)
    skipped = Counter[str]()
    read = [*usable(source, tuple(NAMES), lambda example: (kind_of_answer(example), example["context"]), skipped)]
    count, kinds, contexts = len(read), Counter(kind for kind, _ in read), {context for _, context in read}
    if not count or count == kinds["none"]:
        reasons = skipped_reasons(skipped) if skipped else "no question has an answer"
        raise ValueError(f"{path}: no answer can be learnt; {reasons}")
    parts = [f"{path}: {count:,} questions about {len(contexts):,} texts, {kinds['none']:,} without an answer"]
    if located := kinds["found"] + kinds["ambiguous"]:
        parts.append(f"{located:,} answers without answer_start were searched for in their texts")
    if kinds["ambiguous"]:
        parts.append(f"{kinds['ambiguous']:,} of them occur several times: the first occurrence is learnt")
    tell("; ".join(parts))
    return questions_run(source, name_of(path), count, model)


def kind_of_answer(example: Mapping[str, Any]) -> str:
    """Return how the answer is located: "given", "found" or "ambiguous" by search, or "none" if there is no answer.
    Raise ValueError if it is not in the text."""
    context = text_of(example, "context")
    if answer_span(example, context) is None:
        return "none"
    text, start = first_answer(example) or ("", None)
    if start is not None or "start_token" in example:
        return "given"
    return "found" if len(find_answer(text, context)) == 1 else "ambiguous"


def questions_in(path: str, columns: Sequence[str], encoding: str | None) -> JSONLines | SQuAD:
    """Return the source of a file in SQuAD's format, or of JSON lines."""
    if columns and len(columns) != len(NAMES):
        raise ValueError("--questions takes --column three times: the question, the text, the answer")
    file = find(path, JSONLines(path=path).endings())[0]
    lines = JSONLines(path=path, encoding=encoding or detect_encoding(file))
    first = next((row for row in lines.raw()), None)
    if first is None:
        raise ValueError(f"{path}: it is empty")
    if plain_suffix(file) == ".json" and (first.example is None or "data" in first.example):
        return SQuAD(path=path)
    known = next((list(row.example) for row in lines.raw() if row.example is not None), None)
    if known is None:
        raise ValueError(f"{path}: no row can be read ({first.problem})")
    chosen = dict(zip(NAMES, columns))
    for name, usual in NAMES.items():
        column = chosen.get(name) or next((each for each in usual if each in known), None)
        if column is None or column not in known:
            wanted = column or name.removesuffix("s")
            fix = "choose the columns with --column QUESTION --column TEXT --column ANSWER"
            raise ValueError(f"{path}: no column {wanted!r}; {nearest(wanted, known)}; {fix}")
        chosen[name] = column
    return lines.replace(columns=chosen, required=("question", "context"))


def questions_run(source: Source, name: str, count: int, model: str | None) -> Run:
    run = Run(
        name=name,
        model=tiny_bert(f"Bert{READER}", SIZE, LENGTH),
        vocabulary=vocabulary(SIZE),
        data=held_out(source, group="context"),
        objective=objective_for(LENGTH),
        optimizer=AdamW(lr=5e-4, weight_decay=0.01),
        schedule=Linear(),
        batch=Batch(examples=16),
        steps=min(max(15 * count // 16, 100), 5000),  # fifteen epochs, between 100 and 5000 steps
        evaluate=Evaluate(metrics=("exact_match", "f1"), best="f1"),
    )
    if model is None:
        return divide_steps(run)
    given, new_vocabulary = with_vocabulary(model, with_labels(model, (), READER), vocabulary(SIZE))
    limit = min(position_limit(description_of(given)) or 384, 384)
    tuned = min(max(3 * count // 16, 100), 5000)  # three epochs, if the model is published
    run = run.replace(
        model=given,
        vocabulary=new_vocabulary,
        objective=objective_for(limit),
        optimizer=AdamW(lr=1e-4 if new_vocabulary is None else 5e-4, weight_decay=0.01),
    )
    return divide_steps(run.replace(steps=tuned if new_vocabulary is None else run.steps))


def objective_for(length: int) -> Answer:
    """Return the objective with windows of `length` tokens that share a third."""
    return Answer(length=length, stride=length // 3, question_length=min(64, length // 3))
