"""Extractive question answering [Rajpurkar et al. 2016]: predict the first and the last token of the answer in a text.

A long text is split into windows that overlap by `stride` tokens; each is read together with the question. If a window
does not contain the answer, or the question has no answer (SQuAD 2.0), the target is the window's first token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.inputs.truncation import count_truncated
from anyformer.models.base import TransformerModule
from anyformer.objectives.batches import Batch, Record, pad_texts, scalars
from anyformer.objectives.examples import array, field, text_of
from anyformer.objectives.heads import forward_to_head, head_of
from anyformer.objectives.metrics import ANSWERS, Metrics
from anyformer.objectives.objective import Example, Objective, Predictions, Predictor
from anyformer.parts.head.span import SpanModule
from anyformer.specs.field_types import Count, Natural
from anyformer.specs.messages import quote


class Answer(Objective):
    """Columns "question", "context" and "answers": {"text": [..], "answer_start": [..]} or a list of {"text": ..,
    "answer_start": ..}; the first answer is learnt. If "answers" is a text, its location is in the column
    "answer_start" (a character offset) or in "start_token" and "end_token" (word indices). Without a location, it is
    the first occurrence of the answer in the context. An empty answer means that there is none."""

    optional_columns: ClassVar[tuple[str, ...]] = ("answer_start", "start_token", "end_token")
    command: ClassVar[str] = "run answer RUN QUESTION CONTEXT"
    metrics: ClassVar[Metrics] = ANSWERS
    columns: ClassVar[tuple[str, ...]] = ("question", "context", "answers")

    length: int = 384
    stride: Natural = 128
    question_length: Count = 64  # longer questions are truncated

    def check(self) -> None:
        if self.length <= self.question_length + self.stride:
            raise ValueError(
                f"Answer: question_length={self.question_length} and stride={self.stride} leave no room"
                f" for the context in {self.length} tokens"
            )

    def encode(self, example: Mapping[str, Any], tokenizer: Any) -> list[Record]:
        context = text_of(example, "context")
        span = answer_span(example, context)
        return [self.record(window, span) for window in self.windows(text_of(example, "question"), context, tokenizer)]

    def windows(self, question: str, context: str, tokenizer: Any) -> list[Any]:
        """Return one encoding of the question and a piece of the context per window. If a token's entry in
        `sequence_ids` is 1, its `offsets` are character offsets in the context."""
        prompt = tokenizer.plain(question)
        count_truncated(len(prompt.ids) - self.question_length)
        prompt.truncate(self.question_length)
        text = tokenizer.plain(context)
        room = self.length - len(prompt.ids) - tokenizer.core.num_special_tokens_to_add(True)
        if room <= self.stride:
            raise ValueError(f"the question and stride={self.stride} leave no room for a text in {self.length} tokens")
        if not text.ids:
            raise ValueError("column 'context' is empty")
        text.truncate(room, stride=self.stride)
        return [tokenizer.core.post_process(prompt, piece) for piece in (text, *text.overflowing)]

    def record(self, window: Any, span: tuple[int, int] | None) -> Record:
        ids, start, end = array(window.ids), 0, 0
        inside = [i for i, sequence in enumerate(window.sequence_ids) if sequence == 1]
        offsets = window.offsets  # the tokenizer builds this list at every access
        if span is not None and offsets[inside[0]][0] <= span[0] and span[1] <= offsets[inside[-1]][1]:
            overlapping = [i for i in inside if offsets[i][0] < span[1] and span[0] < offsets[i][1]]
            if overlapping:
                start, end = overlapping[0], overlapping[-1]
        return {
            "input_ids": ids,
            "token_type_ids": array(window.type_ids),
            "start": np.asarray(np.int64(start)),
            "end": np.asarray(np.int64(end)),
        }

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        positions = {f"{name}_positions": scalars(records, name) for name in ("start", "end")}
        return {**pad_texts(records, pad), **positions}

    def module(self, model: TransformerModule) -> nn.Module:
        head_of(model, SpanModule, "span answering")
        return model

    def weights(self, batch: Batch) -> dict[str, float]:
        return {"loss": float(len(batch["start_positions"]))}

    def predict(self, job: Predictor, examples: Sequence[Example], records: Sequence[list[Record]]) -> Predictions:
        """Predict the most likely span of all windows over the text. If some questions have no answer (SQuAD 2.0), the
        answer is "" if the first token of every window is likelier."""
        scores = self.scores(job, [record for windows in records for record in windows])
        wanted = [right_answers(example) for example in examples]
        unanswered = not all(wanted)
        predicted, index = [], 0
        for example, own in zip(examples, records):
            context = example["context"]
            spans, none = [], []
            for window in self.windows(example["question"], context, job.tokenizer):
                start, end = scores[index]
                index += 1
                each = best_spans(start, end, window, context)
                none.append(float(start[0] + end[0]))
                spans += [span for span in each if span[2] > span[1]][:1]
            score, first, last = max(spans, default=(float("-inf"), 0, 0))
            predicted.append("" if unanswered and min(none) > score else context[first:last])
            assert len(none) == len(own)
        return Predictions(predicted, wanted)

    def scores(self, job: Predictor, records: Sequence[Record]) -> list[Tensor]:
        """Return the start and end scores (2, T) of each window."""
        scores: list[Any] = [None] * len(records)
        for which, batch in job.batches(self, records):
            inputs = {name: value for name, value in batch.items() if not name.endswith("_positions")}
            with job.autocast():
                states = forward_to_head(job.model, inputs)
                assert job.model.head is not None
                output = job.model.head(states.x, states.ctx, states.inputs)
            both = torch.stack([output[f"{name}_logits"].float() for name in ("start", "end")], 1).cpu()
            for i, row in zip(which, both):
                scores[i] = row[:, : len(records[i]["input_ids"])]
        return scores


def answer_span(example: Mapping[str, Any], context: str) -> tuple[int, int] | None:
    """Return the answer's (start, end) in characters of the context, `end` excluded; None if there is no answer."""
    if isinstance(field(example, "answers"), str) and "start_token" in example:
        return words_span(example, context)
    answer = first_answer(example)
    if answer is None:
        return None
    text, start = answer
    if start is None:
        offsets = find_answer(text, context)
        if not offsets:
            raise ValueError(f"the answer {quote(text)} is not in the context")
        start = offsets[0]
    elif not isinstance(start, int) or start < 0 or context[start : start + len(text)] != text:
        raise ValueError(f"the answer {quote(text)} is not at character {start} of the context")
    return start, start + len(text)


def first_answer(example: Mapping[str, Any]) -> tuple[str, Any] | None:
    """Return the first answer and its character offset in the context, None if the offset is not given. Return None if
    there is no answer."""
    answers = field(example, "answers")
    if isinstance(answers, Mapping):
        texts, starts = answers.get("text", ()), answers.get("answer_start", ())
        answers = [{"text": text, "answer_start": start} for text, start in zip_longest(texts, starts)]
    if isinstance(answers, str) or answers is None:
        answers = [{"text": answers, "answer_start": example.get("answer_start")}] if answers else []
    if not isinstance(answers, Sequence):
        raise ValueError(f"column 'answers' holds {type(answers).__name__}, not text, a list or {{text, answer_start}}")
    if not answers:
        return None
    first = {"text": answers[0]} if isinstance(answers[0], str) else answers[0]
    if not isinstance(first, Mapping):
        raise ValueError("column 'answers': each answer must be a text or {text, answer_start}")
    text = text_of(first, "text")
    return (text, first.get("answer_start")) if text else None


def find_answer(text: str, context: str) -> list[int]:
    """Return the offsets of an answer in a context: its occurrences in whole words, or all if there are none."""
    exact = re.escape(text)
    matches = [*re.finditer(rf"(?<!\w){exact}(?!\w)", context)] or [*re.finditer(exact, context)]
    return [match.start() for match in matches]


def words_span(example: Mapping[str, Any], context: str) -> tuple[int, int]:
    """Return the span of the words "start_token" to "end_token" (both included) of a context split at spaces."""
    words = [match.span() for match in re.finditer(r"\S+", context)]
    first, last = int(field(example, "start_token")), int(field(example, "end_token"))
    if not 0 <= first <= last < len(words):
        raise ValueError(f"start_token {first} and end_token {last} do not fit a context of {len(words)} words")
    return words[first][0], words[last][1]


def best_spans(
    start: Tensor, end: Tensor, window: Any, context: str, most: int = 30, top: int = 20
) -> list[tuple[float, int, int]]:
    """Return (score, start, end) of the best answers in a window, best first; `start` and `end` are characters of the
    context. The span (0, 0) means "no answer".

    The arguments `start` and `end` are the scores (T,) of the window's tokens; an answer has at most `most` tokens.
    Leading spaces are removed: in byte-level BPE and SentencePiece a token may begin with a space.
    """
    inside = {i for i, sequence in enumerate(window.sequence_ids) if sequence == 1}
    offsets = window.offsets
    spans = [(float(start[0] + end[0]), 0, 0)]
    firsts, lasts = (scores.topk(min(top, len(scores))).indices.tolist() for scores in (start, end))
    for first in firsts:
        for last in lasts:
            if first in inside and last in inside and first <= last < first + most:
                score = float(start[first] + end[last])
                after = offsets[last][1]
                spans.append((score, word_start(context, offsets[first][0], after), after))
    return sorted(spans, key=lambda answer: -answer[0])


def word_start(text: str, first: int, after: int) -> int:
    """Return the index of the first character of text[first:after] that is not a space; `after` if all are spaces."""
    return next((i for i in range(first, after) if text[i] != " "), after)


def right_answers(example: Example) -> list[str]:
    """Return all right answers; an empty list if there is no answer."""
    given = example["answers"]
    if isinstance(given, Mapping):
        given = given.get("text", ())
    if isinstance(given, str) or given is None:
        given = [given or ""]
    texts = (one["text"] if isinstance(one, Mapping) else str(one) for one in given)
    return list(dict.fromkeys(filter(None, texts)))
