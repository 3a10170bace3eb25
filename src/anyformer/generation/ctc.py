"""CTC decoding: the best path, or a prefix beam search.

A path assigns a token or the blank to every frame. Its text is the path with repeats merged and blanks removed. The
best path is quick to find, but the probability of a text is the sum over all its paths [Graves et al. 2006]. Prefix
beam search keeps two sums per prefix: paths that end in a blank, and paths that end in its last token [Hannun et al.
2014].

B rows, T frames, V vocabulary, N beams.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anyformer.generation.options import Settings
from anyformer.models import Call, TransformerModule
from anyformer.parts.head.ctc import CTCModule

ALLOWED = {"num_beams", "num_return_sequences", "pad_token_id"}
# text -> [log-probability of its paths that end in a blank, of those that end in its last token]
Running = dict[tuple[int, ...], list[float]]
MIN_CANDIDATES = 32  # likeliest tokens per frame that extend a prefix; 2 * num_beams if that is more


def decode(model: TransformerModule, inputs: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return sequences (B * num_return_sequences, longest), padded on the right, and their log-probabilities: of the
    best path or, with beams, of all paths that the search kept."""
    for name in options:
        if name not in ALLOWED:
            raise ValueError(f"{name}: not an option of CTC decoding, which takes only {', '.join(sorted(ALLOWED))}")
    s = Settings(**options)
    s.check(model.spec.head.vocab_size)
    x, ctx, _, _ = model.hidden_states(Call(inputs, kernel=model.kernel))
    assert isinstance(model.head, CTCModule)
    scores = model.head.out(x).float().log_softmax(-1)
    lengths = [x.shape[1]] * x.shape[0] if ctx.tokens is None else ctx.tokens.sum(-1).tolist()
    blank = model.spec.head.blank
    texts: list[tuple[list[int], float]] = []
    for row, length in zip(scores, lengths, strict=True):
        frames = row[: int(length)]
        best = [best_path(frames, blank)] if s.num_beams == 1 else prefixes([frames], blank, s.num_beams)
        texts += best[: s.num_return_sequences]
    fill = blank if s.pad_token_id is None else s.pad_token_id
    longest = max(len(text) for text, _ in texts)
    ids = torch.tensor([text + [fill] * (longest - len(text)) for text, _ in texts], device=x.device).long()
    return {
        "sequences": ids.view(len(texts), longest),
        "sequences_scores": torch.tensor([score for _, score in texts]),
        "finish_reasons": ["stop"] * len(texts),
    }


class TokenSpan(NamedTuple):
    """A token of a path and its frames, from `start` (inclusive) to `end` (exclusive)."""

    token: int
    start: int
    end: int


def path(scores: Tensor, blank: int) -> list[TokenSpan]:
    """Return the tokens of the best path, given log-probabilities (T, V)."""
    return merge_frames(scores.argmax(-1).tolist(), blank)


def merge_frames(tokens: Iterable[int], blank: int) -> list[TokenSpan]:
    """Merge repeats and drop blanks, given the token or blank of every frame."""
    spans, start = [], 0
    for token, run in itertools.groupby(tokens):
        end = start + sum(1 for _ in run)
        if token != blank:
            spans.append(TokenSpan(token, start, end))
        start = end
    return spans


def best_path(scores: Tensor, blank: int) -> tuple[list[int], float]:
    """Return the text of the best path and its log-probability, given log-probabilities (T, V)."""
    return [span.token for span in path(scores, blank)], float(scores.amax(-1).sum())


def prefixes(pieces: Iterable[Tensor], blank: int, beams: int) -> list[tuple[list[int], float]]:
    """Return the likeliest texts, best first, given log-probabilities (T, V) of consecutive pieces of a recording.
    After each piece, the common beginning of all texts is final, and only the rest of each text is searched further."""
    settled: list[int] = []
    running: Running = {(): [0.0, -math.inf]}
    for scores in pieces:
        likely = scores.topk(min(scores.shape[1], max(MIN_CANDIDATES, 2 * beams)), dim=-1)
        silent, frames = scores[:, blank].tolist(), zip(likely.values.tolist(), likely.indices.tolist(), strict=True)
        for quiet, frame in zip(silent, frames, strict=True):
            running = extend_prefixes(running, quiet, frame, blank, beams)
        alike = itertools.takewhile(lambda tokens: len({*tokens}) == 1, zip(*running, strict=False))
        common = [tokens[0] for tokens in alike][:-1]  # not the last one: the next token may repeat it
        settled += common
        running = {text[len(common) :]: ends for text, ends in running.items()}
    return [([*settled, *text], plus(*ends)) for text, ends in running.items()]


def extend_prefixes(running: Running, quiet: float, frame: Any, blank: int, beams: int) -> Running:
    """Extend prefixes by a frame: `quiet` is the blank's log-probability, `frame` the candidates' and their ids."""
    after: Running = {}
    for text, (ends_blank, ends_token) in running.items():
        whole = plus(ends_blank, ends_token)
        add(after, text, 0, whole + quiet)
        for p, c in zip(*frame, strict=True):
            if c == blank:
                continue
            if text and text[-1] == c:  # the same token is a new one only after a blank
                add(after, text, 1, ends_token + p)
                add(after, (*text, c), 1, ends_blank + p)
            else:
                add(after, (*text, c), 1, whole + p)
    return dict(sorted(after.items(), key=lambda item: -plus(*item[1]))[:beams])


def add(sums: Running, text: tuple[int, ...], ending: int, score: float) -> None:
    if score > -math.inf:
        ends = sums.setdefault(text, [-math.inf, -math.inf])
        ends[ending] = plus(ends[ending], score)


def plus(a: float, b: float) -> float:
    """log(exp(a) + exp(b))"""
    high, low = max(a, b), min(a, b)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))
