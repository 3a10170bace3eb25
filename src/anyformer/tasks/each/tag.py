"""What the words of a text are: entities, parts of speech, with their places in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Unpack

import numpy as np

from anyformer.messages import quote
from anyformer.objectives.examples import array
from anyformer.objectives.objective import head_of
from anyformer.part import nearest
from anyformer.parts.head import TagModule
from anyformer.tasks.task import How, Inputs, Source, TaskRun, ask, labels_of

OUTSIDE = "O"


@dataclasses.dataclass(frozen=True)
class LabelledText:
    """A token, or a word made of some: the probabilities (C,) of its labels, and its characters."""

    shares: np.ndarray
    start: int
    end: int
    inside: bool = False  # goes on with the word before
    index: int = 0  # of a token in its window


# a word's probabilities from its tokens'
AGGREGATIONS: dict[str, Callable[[list[np.ndarray]], np.ndarray] | None] = {
    "none": None,
    "simple": None,
    "first": lambda tokens: tokens[0],
    "average": lambda tokens: np.mean(tokens, axis=0),
    "max": lambda tokens: max(tokens, key=lambda shares: shares.max()),
}


def tag(
    model: Source, inputs: Inputs, *, aggregation: str = "simple", stride: int | None = None, **how: Unpack[How]
) -> Any:
    """[{"entity_group", "score", "word", "start", "end"}, ...]: neighbours that belong together ("B-PER", "I-PER") are
    one span, what is outside ("O") is left out, and `word` is text[start:end].

    aggregation   "none": every token by itself, as {"entity", "index", ...}
                  "simple": each token has its likeliest label
                  "first", "average", "max": all tokens of a word have the likeliest label of its first token, of their
                  mean, or of the token that is surest

    A text that the model cannot take at once is read in windows with `stride` tokens in common, a quarter of a window
    unless said; of spans that overlap the longest is kept.

    >>> tag("a/model/folder", "Ada Lovelace was born in London.")  # doctest: +SKIP
    [{'entity_group': 'PER', 'score': 0.99, 'word': 'Ada Lovelace', 'start': 0, 'end': 12}, ...]
    """
    if aggregation not in AGGREGATIONS:
        raise ValueError(f"no aggregation {quote(aggregation)}; {nearest(aggregation, AGGREGATIONS)}")
    asked = ask("tag", model, inputs, how)
    names = labels_of(asked, head_of(asked.model, TagModule, "tagging").out.out_features)
    windows = asked.each(lambda row: asked.windows(row["text"], stride))
    flat = [(row["text"], window) for row, own in zip(asked.rows, windows) for window in own]
    records = [{"input_ids": array(asked.tokenizer._ids(window))} for _, window in flat]
    shares = asked.found(records, lambda said, _: said["logits"].float().softmax(-1).cpu().numpy())
    each = iter([
        spans(pieces(asked, text, window, own), aggregation, names, text)
        for (text, window), own in zip(flat, shares)
    ])  # fmt: skip
    results = []
    for own in windows:
        found = [span for _ in own for span in next(each)]
        results.append(found if len(own) == 1 else without_overlaps(found))
    return asked.give(results)


def pieces(asked: TaskRun, text: str, window: Any, shares: np.ndarray) -> list[LabelledText]:
    """The tokens of a window that stand for characters of the text, in order."""
    tokenizer = asked.tokenizer
    prefix = getattr(tokenizer.core.model, "continuing_subword_prefix", None)
    found = []
    columns = zip(window.ids, window.tokens, window.offsets, window.special_tokens_mask, shares)
    for index, (token, name, (start, end), special, own) in enumerate(columns):
        if special:
            continue
        if prefix:
            inside = name.startswith(prefix)
        else:
            inside = start > 0 and " " not in text[start - 1 : start + 1]
        found.append(LabelledText(own, start, end, inside and token != tokenizer.unk_token_id, index))
    return found


def spans(found: list[LabelledText], aggregation: str, names: Sequence[str], text: str) -> list[dict[str, Any]]:
    join = AGGREGATIONS[aggregation]
    if join is not None:
        found = [
            LabelledText(join([piece.shares for piece in word]), word[0].start, word[-1].end)
            for word in grouped(found, lambda before, piece: piece.inside)
        ]
    best = [(names[int(piece.shares.argmax())], float(piece.shares.max()), piece) for piece in found]
    if aggregation == "none":
        return [
            {"entity": name, "score": score, "index": piece.index, **placed(text, piece.start, piece.end)}
            for name, score, piece in best if name != OUTSIDE
        ]  # fmt: skip
    groups = []
    for group in grouped(best, lambda before, one: kind(one[0]) == kind(before[0]) and not one[0].startswith("B-")):
        name = group[0][0].split("-", 1)[-1]
        score = float(np.mean([score for _, score, _ in group]))
        if name != OUTSIDE:
            groups.append({"entity_group": name, "score": score, **placed(text, group[0][2].start, group[-1][2].end)})
    return groups


def grouped(items: Iterable[Any], joins: Callable[[Any, Any], bool]) -> list[list[Any]]:
    """Runs of items; joins(the one before, item) says whether an item goes on with a run."""
    groups: list[list[Any]] = []
    for item in items:
        if groups and joins(groups[-1][-1], item):
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


def kind(label: str) -> str:
    """B-PER and I-PER are about the same."""
    return label[2:] if label.startswith(("B-", "I-")) else label


def placed(text: str, start: int, end: int) -> dict[str, Any]:
    return {"word": text[start:end], "start": start, "end": end}


def without_overlaps(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of spans that begin within another the longer one is kept, of equals the likelier."""
    kept: list[dict[str, Any]] = []
    for span in sorted(found, key=lambda span: span["start"]):
        if kept and span["start"] < kept[-1]["end"]:
            kept[-1] = max(kept[-1], span, key=lambda one: (one["end"] - one["start"], one["score"]))
        else:
            kept.append(span)
    return kept
