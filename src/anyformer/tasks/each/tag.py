"""Tag the words of a text: entities or parts of speech, with their positions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Unpack

import numpy as np
from tokenizers.models import BPE, WordPiece

from anyformer.objectives.examples import array
from anyformer.objectives.heads import head_of
from anyformer.objectives.tag import LABEL_ALL_TOKENS, split_words, token_words
from anyformer.parts.head.tag import TagModule
from anyformer.specs.messages import nearest, quote
from anyformer.tasks.results import Entity, task
from anyformer.tasks.task import Inputs, RunOptions, Source, TaskRun, labels_of, start_run

OUTSIDE = "O"


@dataclasses.dataclass(frozen=True)
class LabelledText:
    """A token or a word: the probabilities (C,) of its labels, and its characters start:end."""

    shares: np.ndarray
    start: int
    end: int
    inside: bool = False  # continues the previous word
    index: int = 0  # index of a token in its window


# how the probabilities of a word are computed from its tokens'
AGGREGATIONS: dict[str, Callable[[list[np.ndarray]], np.ndarray] | None] = {
    "none": None,
    "simple": None,
    "first": lambda tokens: tokens[0],
    "average": lambda tokens: np.mean(tokens, axis=0),
    "max": lambda tokens: max(tokens, key=lambda shares: shares.max()),
    "word": None,
}


@task
def tag(
    model: Source,
    inputs: Inputs,
    *,
    aggregation: Annotated[
        str | None,
        "how tokens become words: word, none, simple, first, average or max"
        " (default: word for models trained here, else simple)",
    ] = None,
    stride: Annotated[
        int | None, "tokens that two windows over a long text share (default: a quarter of a window)"
    ] = None,
    **run_options: Unpack[RunOptions],
) -> list[Entity]:
    """Return [{"entity_group", "score", "word", "start", "end"}, ...]. Neighbours with one type ("B-PER", "I-PER") are
    one span, words outside of entities ("O") are left out, and `word` is text[start:end].

    aggregation   "word": the text is divided into words and read as in training, and each word has one label; the
                  default for models trained here, whose saved description has the objective
                  "simple": each token has its most likely label; the default for all other models
                  "none": one result per token, {"entity", "index", ...}
                  "first", "average", "max": all tokens of a word have the most likely label of its first token,
                  of their mean, or of the most confident token

    A text longer than the model's limit is read in windows that share `stride` tokens (default: a quarter of a
    window). If spans overlap, the longest is kept; a word in two windows gets the mean of its scores.

    >>> tag("a/model/folder", "Ada Lovelace was born in London.")  # doctest: +SKIP
    [{'entity_group': 'PER', 'score': 0.99, 'word': 'Ada Lovelace', 'start': 0, 'end': 12}, ...]
    """
    if aggregation is not None and aggregation not in AGGREGATIONS:
        raise ValueError(f"no aggregation {quote(aggregation)}; {nearest(aggregation, AGGREGATIONS)}")
    request = start_run("tag", model, inputs, run_options)
    names = labels_of(request, head_of(request.model, TagModule, "tagging").out.out_features)
    label_all_tokens = request.model.spec.source.get(LABEL_ALL_TOKENS)
    aggregation = aggregation or ("simple" if label_all_tokens is None else "word")

    def read(row: dict[str, Any]) -> tuple[Any, list[Any]]:
        text: Any = row["text"] if aggregation != "word" else WordedText(row["text"], [*split_words(row["text"])])
        return text, request.windows(str(text), stride)

    def finish(run: TaskRun, texts: list[tuple[Any, list[Any]]]) -> list[Any]:
        records = [{"input_ids": array(run.tokenizer._ids(window))} for _, windows in texts for window in windows]
        shares = iter(run.map_outputs(records, lambda output, _: output["logits"].float().softmax(-1).cpu().numpy()))
        results = []
        for text, windows in texts:
            scored = [(window, next(shares)) for window in windows]
            if aggregation == "word":
                results.append(spans(text.word_scores(scored, bool(label_all_tokens)), aggregation, names, text.text))
                continue
            each = [spans(pieces(run, text, window, own), aggregation, names, text) for window, own in scored]
            merged = [span for own in each for span in own]
            results.append(merged if len(windows) == 1 else without_overlaps(merged))
        return results

    return request.answer(read, finish)


@dataclasses.dataclass(frozen=True)
class WordedText:
    """A text in the form used in training: its words, separated by single spaces."""

    text: str
    places: list[tuple[int, int]]  # start and end of each word in the text

    def __str__(self) -> str:
        return " ".join(self.words)

    @property
    def words(self) -> list[str]:
        return [self.text[start:end] for start, end in self.places]

    def word_scores(self, windows: list[tuple[Any, np.ndarray]], label_all_tokens: bool) -> list[LabelledText]:
        """Return the words that have tokens. The scores of a word are the mean over its first token, or over all of its
        tokens if training labelled all, in every window that has them."""
        words = self.words
        starts = np.cumsum([0, *(len(word) + 1 for word in words)])  # of each word in the joined text
        shares_of: dict[int, list[np.ndarray]] = {}
        for number, (window, shares) in enumerate(windows):
            before = -1
            for word, (start, _), own in zip(token_words(words, window), window.offsets, shares):
                inside = word == before or (before < 0 < number and start > starts[word])  # not a word's first token
                if word >= 0 and (label_all_tokens or not inside):
                    shares_of.setdefault(word, []).append(own)
                before = word if word >= 0 else before
        return [LabelledText(np.mean(own, axis=0), *self.places[word]) for word, own in sorted(shares_of.items())]


def pieces(request: TaskRun, text: str, window: Any, shares: np.ndarray) -> list[LabelledText]:
    """Return the tokens of a window in order, without special tokens."""
    tokenizer, model = request.tokenizer, request.tokenizer.core.model
    prefix = model.continuing_subword_prefix if isinstance(model, (BPE, WordPiece)) else None
    tokens = []
    columns = zip(window.ids, window.tokens, window.offsets, window.special_tokens_mask, shares)
    for index, (token, name, (start, end), special, own) in enumerate(columns):
        if special:
            continue
        if prefix:
            inside = name.startswith(prefix)
        else:
            inside = start > 0 and " " not in text[start - 1 : start + 1]
        tokens.append(LabelledText(own, start, end, inside and token != tokenizer.unk_token_id, index))
    return tokens


def spans(pieces: list[LabelledText], aggregation: str, names: Sequence[str], text: str) -> list[dict[str, Any]]:
    join = AGGREGATIONS[aggregation]
    if join is not None:
        pieces = [
            LabelledText(join([piece.shares for piece in word]), word[0].start, word[-1].end)
            for word in group_items(pieces, lambda before, piece: piece.inside)
        ]
    best = [(names[int(piece.shares.argmax())], float(piece.shares.max()), piece) for piece in pieces]
    if aggregation == "none":
        return [
            {"entity": name, "score": score, "index": piece.index, **span_of(text, piece.start, piece.end)}
            for name, score, piece in best
            if name != OUTSIDE
        ]
    # labels for all words (parts of speech) describe one word each; an entity may have several words
    joins = aggregation != "word" or OUTSIDE in names
    groups = []
    for group in group_items(best, lambda a, b: joins and kind(b[0]) == kind(a[0]) and not b[0].startswith("B-")):
        name = group[0][0].split("-", 1)[-1]
        score = float(np.mean([score for _, score, _ in group]))
        if name != OUTSIDE:
            groups.append({"entity_group": name, "score": score, **span_of(text, group[0][2].start, group[-1][2].end)})
    return groups


def group_items(items: Iterable[Any], joins: Callable[[Any, Any], bool]) -> list[list[Any]]:
    """Split items into runs; joins(previous, item) returns whether an item continues the run."""
    groups: list[list[Any]] = []
    for item in items:
        if groups and joins(groups[-1][-1], item):
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


def kind(label: str) -> str:
    """Return the entity type: PER for B-PER and I-PER."""
    return label[2:] if label.startswith(("B-", "I-")) else label


def span_of(text: str, start: int, end: int) -> dict[str, Any]:
    return {"word": text[start:end], "start": start, "end": end}


def without_overlaps(spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """If two spans overlap, keep the longer; if they are equally long, the likelier."""
    kept: list[dict[str, Any]] = []
    for span in sorted(spans, key=lambda span: span["start"]):
        if kept and span["start"] < kept[-1]["end"]:
            kept[-1] = max(kept[-1], span, key=lambda one: (one["end"] - one["start"], one["score"]))
        else:
            kept.append(span)
    return kept
