"""Predictions and right answers: one function per kind of prediction, by the published procedure."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anyformer.generation import generate
from anyformer.generation.defaults import settings_for
from anyformer.generation.writing import new_tokens
from anyformer.inputs.tokenizer import Tokenizer
from anyformer.kernels.loss import IGNORED
from anyformer.models import TransformerModule, position_limit
from anyformer.objectives.answer import Answer, best_spans
from anyformer.objectives.choose import Choose
from anyformer.objectives.classify import Classify
from anyformer.objectives.ctc import CTC
from anyformer.objectives.examples import text_of, texts_of
from anyformer.objectives.images import ClassifyImage
from anyformer.objectives.objective import Batch, Objective, Record, forward_to_head, logits_of, model_inputs
from anyformer.objectives.tag import Tag, word_list, word_tokens
from anyformer.objectives.transcribe import Transcribe
from anyformer.objectives.translate import Translate
from anyformer.objectives.wrapper import ObjectiveWrapper

Example = Mapping[str, Any]


class Predictions(NamedTuple):
    predicted: list[Any]
    wanted: list[Any]


@dataclasses.dataclass(frozen=True)
class Predictor:
    """A model with its tokenizer and the settings for predictions."""

    model: TransformerModule
    tokenizer: Tokenizer
    pad: int = 0
    size: int = 32  # records per batch
    num_beams: int = 1
    autocast: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext  # not used for generation
    progress: Callable[[int, int], object] = lambda done, total: None

    def batches(self, objective: Objective, records: Sequence[Record]) -> Iterator[tuple[list[int], Batch]]:
        """Yield (indices, batch), the longest first, so that lack of memory shows at once."""
        order = sorted(range(len(records)), key=lambda i: -objective.size(records[i]))
        for start in range(0, len(order), self.size):
            which = order[start : start + self.size]
            batch = objective.collate([records[i] for i in which], self.pad)
            self.progress(start, len(order))
            yield which, {name: tensor.to(self.model.device) for name, tensor in batch.items()}
        self.progress(len(order), len(order))

    def logits(self, objective: Objective, records: Sequence[Record]) -> list[Tensor]:
        """Return the logits of each record, on the CPU."""
        logits: list[Any] = [None] * len(records)
        for which, batch in self.batches(objective, records):
            with self.autocast():
                rows = logits_of(self.model, forward_to_head(self.model, batch)).cpu()
            for i, row in zip(which, rows):
                logits[i] = row
        return logits


def task_of(objective: Objective) -> Objective:
    """Return the objective inside all wrappers (auxiliary objectives)."""
    return task_of(objective.of) if isinstance(objective, ObjectiveWrapper) else objective


def kind_of(objective: Objective) -> str | None:
    """Return the kind of prediction: "labels", "numbers", "tags", "answers", "texts" or "transcripts"; None if an
    objective has only a loss."""
    if isinstance(objective, Classify):
        return "labels" if objective.labels else "numbers"
    kinds = {
        Choose: "labels",
        ClassifyImage: "labels",
        Tag: "tags",
        Answer: "answers",
        Translate: "texts",
        CTC: "transcripts",
        Transcribe: "transcripts",
    }
    return next((kind for cls, kind in kinds.items() if isinstance(objective, cls)), None)


def predictions(
    objective: Objective, job: Predictor, examples: Sequence[Example], records: Sequence[list[Record]]
) -> Predictions:
    """Return predictions and right answers; `records` has the objective's records of each example."""
    functions: dict[str | None, Any] = {f.__name__: f for f in (labels, numbers, tags, answers, texts, transcripts)}
    return functions[kind_of(objective)](objective, job, examples, records)


def labels(objective: Any, job: Predictor, examples: Sequence[Example], records: Sequence[list[Record]]) -> Predictions:
    rows = [record for (record,) in records]
    predicted = [int(scores.argmax()) for scores in job.logits(objective, rows)]
    return Predictions(predicted, [int(record["label"]) for record in rows])


def numbers(
    objective: Any, job: Predictor, examples: Sequence[Example], records: Sequence[list[Record]]
) -> Predictions:
    rows = [record for (record,) in records]
    return Predictions(
        [float(value) for value in job.logits(objective, rows)], [float(record["label"]) for record in rows]
    )


def tags(objective: Tag, job: Predictor, examples: Sequence[Example], records: Sequence[list[Record]]) -> Predictions:
    """Predict a tag per labelled word, from its first token. A word without tokens (its characters are not in the
    vocabulary) gets the tag "O"."""
    outside = "O" if "O" in objective.labels else objective.labels[0]
    predicted, wanted = [], []
    for example, scores in zip(examples, job.logits(objective, [record for (record,) in records])):
        words = [str(word) for word in word_list(example, "words")]
        tagged = [outside] * len(words)
        word_indices = word_tokens(words, job.tokenizer)[1].tolist()
        for index, best in reversed(list(zip(word_indices, scores.argmax(-1).tolist()))):
            if index >= 0:
                tagged[index] = objective.labels[best]
        labelled = [(i, number) for i, number in enumerate(objective.numbers(example)) if number != IGNORED]
        predicted.append([tagged[i] for i, _ in labelled])
        wanted.append([objective.labels[number] for _, number in labelled])
    return Predictions(predicted, wanted)


def answers(
    objective: Answer, job: Predictor, examples: Sequence[Example], records: Sequence[list[Record]]
) -> Predictions:
    """Predict the most likely span of all windows over the text. If some questions have no answer (SQuAD 2.0), the
    answer is "" if the first token of every window is likelier."""
    scores = span_scores(objective, job, [record for windows in records for record in windows])
    wanted = [right_answers(example) for example in examples]
    unanswered = not all(wanted)
    predicted, index = [], 0
    for example, own in zip(examples, records):
        context = example["context"]
        spans, none = [], []
        for window in objective.windows(example["question"], context, job.tokenizer):
            start, end = scores[index]
            index += 1
            each = best_spans(start, end, window, context)
            none.append(float(start[0] + end[0]))
            spans += [span for span in each if span[2] > span[1]][:1]
        score, first, last = max(spans, default=(float("-inf"), 0, 0))
        predicted.append("" if unanswered and min(none) > score else context[first:last])
        assert len(none) == len(own)
    return Predictions(predicted, wanted)


def span_scores(objective: Answer, job: Predictor, records: Sequence[Record]) -> list[Tensor]:
    """Return the start and end scores (2, T) of each window."""
    scores: list[Any] = [None] * len(records)
    for which, batch in job.batches(objective, records):
        inputs = {name: value for name, value in batch.items() if not name.endswith("_positions")}
        with job.autocast():
            states = forward_to_head(job.model, inputs)
            assert job.model.head is not None
            output = job.model.head(states.x, states.ctx, states.inputs)
        both = torch.stack([output[f"{name}_logits"].float() for name in ("start", "end")], 1).cpu()
        for i, row in zip(which, both):
            scores[i] = row[:, : len(records[i]["input_ids"])]
    return scores


def right_answers(example: Example) -> list[str]:
    """Return all right answers; an empty list if there is no answer."""
    given = example["answers"]
    if isinstance(given, Mapping):
        given = given.get("text", ())
    if isinstance(given, str):
        given = [given] if given else []
    return list(dict.fromkeys(one["text"] if isinstance(one, Mapping) else str(one) for one in given))


def texts(
    objective: Translate, job: Predictor, examples: Sequence[Example], records: Sequence[list[Record]]
) -> Predictions:
    to = objective.target_language
    language = {"forced_bos_token_id": job.tokenizer.language_id(to)} if to else {}
    room = {"max_new_tokens": objective.target_length} if objective.target_length else {}
    predicted = generate_texts(
        objective, job, [record for (record,) in records], num_beams=job.num_beams, **language, **room
    )
    right = [texts_of(example, "target") for example in examples]
    return Predictions(predicted, [own if len(own) > 1 else own[0] for own in right])


def transcripts(
    objective: CTC | Transcribe, job: Predictor, examples: Sequence[Example], records: Sequence[list[Record]]
) -> Predictions:
    predicted = [""] * len(records)
    for which, batch in job.batches(objective, [record for (record,) in records]):
        inputs = {name: value for name, value in model_inputs(job.model, batch).items() if name != "labels"}
        room: dict[str, Any] = {"compile": False, "do_sample": False} if isinstance(objective, Transcribe) else {}
        if room and settings_for(job.model, {}).max_new_tokens is None:
            room["max_new_tokens"] = 2 * batch["labels"].shape[1]
        ids = generate(job.model, **inputs, num_beams=job.num_beams, **room)
        for i, text in zip(which, job.tokenizer.batch_decode(ids.cpu(), skip_special_tokens=True)):
            predicted[i] = text.strip()
    return Predictions(predicted, [text_of(example, "text") for example in examples])


def generate_texts(objective: Objective, job: Predictor, records: Sequence[Record], **options: Any) -> list[str]:
    """Generate a text for each record, with the `options` of generate (default: greedy), up to a stop string. Without a
    length limit in the options or the model, the text has at most 2 T + 20 tokens for an input of T tokens."""
    texts = [""] * len(records)
    limit, usual = position_limit(job.model.spec), settings_for(job.model, options)
    for which, batch in job.batches(objective, records):
        T = batch["input_ids"].shape[1]
        free = usual.max_new_tokens is None and usual.max_length is None
        room = {"max_new_tokens": min(2 * T + 20, limit or 2 * T + 20)} if free else {}
        ids = generate(
            job.model,
            batch["input_ids"],
            attention_mask=batch.get("attention_mask"),
            tokenizer=job.tokenizer,
            **{"do_sample": False, "compile": False, **room, **options},
        )
        new = new_tokens(job.model, ids, T, usual.eos)
        for i, text in zip(which, job.tokenizer.batch_decode(new, skip_special_tokens=True), strict=True):
            for stop in options.get("stop_strings") or ():
                text = text.partition(stop)[0]
            texts[i] = text.strip()
    return texts
