"""The words that were not in the original text."""

from __future__ import annotations

from typing import Any, Unpack

from anyformer.objectives.examples import array
from anyformer.objectives.objective import head_of
from anyformer.parts.detect import DetectModule
from anyformer.tasks.task import How, Inputs, Source, ask


def detect_replaced(model: Source, inputs: Inputs, *, truncate: bool = False, **how: Unpack[How]) -> Any:
    """[{"word", "replaced", "score", "start", "end"}, ...] for every token of the text, in order: `score` is the
    probability that it was replaced, and `word` is text[start:end].

    >>> detect_replaced("a/model/folder", "The chef ate the meal.")  # doctest: +SKIP
    [{'word': 'The', 'replaced': False, 'score': 0.02, 'start': 0, 'end': 3}, ...]
    """
    asked = ask("detect-replaced", model, inputs, how)
    head_of(asked.model, DetectModule, "finding replaced words")

    def encode(row: dict[str, Any]) -> Any:
        encoding = asked.tokenizer._encode(row["text"], None, asked.limit if truncate else None, True)
        asked.fits(len(encoding.ids))
        return encoding

    encodings = asked.each(encode)
    records = [{"input_ids": array(asked.tokenizer._ids(encoding))} for encoding in encodings]
    scores = asked.found(records, lambda said, _: said["logits"].float().sigmoid().tolist())
    results = []
    for row, encoding, own in zip(asked.rows, encodings, scores):
        columns = zip(own, encoding.offsets, encoding.special_tokens_mask)
        results.append([
            {"word": row["text"][start:end], "replaced": score > 0.5, "score": score, "start": start, "end": end}
            for score, (start, end), special in columns if not special
        ])  # fmt: skip
    return asked.give(results)
