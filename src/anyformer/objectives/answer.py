"""Answers that are spans of a text [Rajpurkar et al. 2016]: where it begins and where it ends.

A long text is read in windows that overlap by `stride` tokens, each beside the question; a window without the answer
points at its first token, as one does where there is no answer at all (SQuAD 2.0).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn

from anyformer.inputs.truncation import count_truncated
from anyformer.models.base import TransformerModule
from anyformer.objectives.examples import array, field, text_of
from anyformer.objectives.objective import Batch, Objective, Record, head_of, pad_texts, scalars
from anyformer.parts.head.span import SpanModule
from anyformer.specs.checks import at_least
from anyformer.specs.messages import quote


class Answer(Objective):
    """Columns "question", "context" and "answers": {"text": [..], "answer_start": [..]} or a list of such pairs, of
    which the first is learnt; or a text, placed by a column "answer_start" (characters) or "start_token" (words)."""

    optional_columns: ClassVar[tuple[str, ...]] = ("answer_start", "start_token", "end_token")
    command: ClassVar[str] = "run answer RUN QUESTION CONTEXT"

    length: int = 384
    stride: int = 128
    question_length: int = 64  # longer questions are cut

    def check(self) -> None:
        at_least(self, 1, "question_length")
        at_least(self, 0, "stride")
        if self.length <= self.question_length + self.stride:
            raise ValueError(
                f"Answer: question_length={self.question_length} and stride={self.stride} leave no room in"
                f" {self.length} tokens"
            )

    @property
    def columns(self) -> tuple[str, ...]:
        return ("question", "context", "answers")

    def encode(self, example: Mapping[str, Any], tokenizer: Any) -> list[Record]:
        context = text_of(example, "context")
        span = place(example, context)
        return [self.record(window, span) for window in self.windows(text_of(example, "question"), context, tokenizer)]

    def windows(self, question: str, context: str, tokenizer: Any) -> list[Any]:
        """Encodings of question and piece of context, whose `offsets` are characters of the context where
        `sequence_ids` is 1."""
        asked = tokenizer.plain(question)
        count_truncated(len(asked.ids) - self.question_length)
        asked.truncate(self.question_length)
        text = tokenizer.plain(context)
        room = self.length - len(asked.ids) - tokenizer.core.num_special_tokens_to_add(True)
        if room <= self.stride:
            raise ValueError(f"the question and a stride of {self.stride} leave no room in {self.length} tokens")
        if not text.ids:
            raise ValueError("column 'context' is empty")
        text.truncate(room, stride=self.stride)
        return [tokenizer.core.post_process(asked, piece) for piece in (text, *text.overflowing)]

    def record(self, window: Any, span: tuple[int, int] | None) -> Record:
        ids, start, end = array(window.ids), 0, 0
        own = [i for i, sequence in enumerate(window.sequence_ids) if sequence == 1]
        offsets = window.offsets  # made anew each time it is asked for
        if span is not None and offsets[own[0]][0] <= span[0] and span[1] <= offsets[own[-1]][1]:
            touched = [i for i in own if offsets[i][0] < span[1] and span[0] < offsets[i][1]]
            if touched:
                start, end = touched[0], touched[-1]
        return {
            "input_ids": ids,
            "token_type_ids": array(window.type_ids),
            "start": np.asarray(np.int64(start)),
            "end": np.asarray(np.int64(end)),
        }

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        places = {f"{name}_positions": scalars(records, name) for name in ("start", "end")}
        return {**pad_texts(records, pad), **places}

    def module(self, model: TransformerModule) -> nn.Module:
        head_of(model, SpanModule, "span answering")
        return model

    def weights(self, batch: Batch) -> dict[str, float]:
        return {"loss": float(len(batch["start_positions"]))}


def place(example: Mapping[str, Any], context: str) -> tuple[int, int] | None:
    """(first character, the one after the last) of the answer in the context; None where there is none."""
    answers = field(example, "answers")
    if isinstance(answers, Mapping):
        texts, starts = answers.get("text", ()), answers.get("answer_start", ())
        answers = [{"text": text, "answer_start": start} for text, start in zip(texts, starts)]
    if isinstance(answers, str):
        if "start_token" in example:
            return words_span(example, context)
        answers = [{"text": answers, "answer_start": field(example, "answer_start")}] if answers else []
    if not isinstance(answers, Sequence):
        raise ValueError(f"column 'answers' holds {type(answers).__name__}; a text, a list or {{text, answer_start}}")
    if not answers:
        return None
    if not isinstance(answers[0], Mapping):
        raise ValueError("column 'answers': each is {text, answer_start}")
    text, start = text_of(answers[0], "text"), field(answers[0], "answer_start")
    if not isinstance(start, int) or start < 0 or context[start : start + len(text)] != text:
        raise ValueError(f"the answer {quote(text)} does not stand at {start} of the context")
    return start, start + len(text)


def words_span(example: Mapping[str, Any], context: str) -> tuple[int, int]:
    """Of the words "start_token" to "end_token", both included, as spaces divide the context."""
    words = [match.span() for match in re.finditer(r"\S+", context)]
    first, last = int(field(example, "start_token")), int(field(example, "end_token"))
    if not 0 <= first <= last < len(words):
        raise ValueError(f"words {first} to {last} of a context of {len(words)}")
    return words[first][0], words[last][1]


def best_spans(
    start: Tensor, end: Tensor, window: Any, context: str, most: int = 30, top: int = 20
) -> list[tuple[float, int, int]]:
    """Return (score, first character, character after the last) of the likeliest answers in a window, best first. The
    score for no answer is that of (0, 0).

    `start` and `end` are the scores (T,) of the window's tokens; an answer has at most `most` tokens. A span
    starts at a word, although a token may begin with the space before its word (byte-level BPE, SentencePiece).
    """
    own = {i for i, sequence in enumerate(window.sequence_ids) if sequence == 1}
    offsets = window.offsets
    spans = [(float(start[0] + end[0]), 0, 0)]
    firsts, lasts = (scores.topk(min(top, len(scores))).indices.tolist() for scores in (start, end))
    for first in firsts:
        for last in lasts:
            if first in own and last in own and first <= last < first + most:
                score = float(start[first] + end[last])
                after = offsets[last][1]
                spans.append((score, word_start(context, offsets[first][0], after), after))
    return sorted(spans, key=lambda answer: -answer[0])


def word_start(text: str, first: int, after: int) -> int:
    """Return the index of the first character of text[first:after] that is not a space; `after` if all are spaces."""
    return next((i for i in range(first, after) if text[i] != " "), after)
