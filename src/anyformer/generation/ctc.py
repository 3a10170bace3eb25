"""Text from frames: scores that CTC trained, read by the likeliest path or by beams of prefixes.

A path gives every frame a token or the blank; its text is the path with repeats merged and blanks dropped. The best
path is quick to find, but a text is as likely as all its paths together [Graves et al. 2006]: a beam of prefixes adds
up, for every beginning of a text, the paths that end in a blank and those that end in its last token [Hannun et al.
2014].

B rows, T frames, V alphabet, N beams.
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
# text -> log-probability of its paths that end in a blank, and of those that end in its last token
Running = dict[tuple[int, ...], list[float]]
TRIED = 32  # tokens a frame at least, the likeliest first, that a prefix is continued with


def write(model: TransformerModule, inputs: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Sequences (B * num_return_sequences, longest) without blanks and repeats, filled up on the right, and the
    log-probability of each: of its best path, or with beams of all its paths that were kept."""
    for name in options:
        if name not in ALLOWED:
            raise ValueError(f"{name}: frames are read at once, and only {', '.join(sorted(ALLOWED))} apply")
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
        found = [best_path(frames, blank)] if s.num_beams == 1 else prefixes([frames], blank, s.num_beams)
        texts += found[: s.num_return_sequences]
    fill = blank if s.pad_token_id is None else s.pad_token_id
    longest = max(len(text) for text, _ in texts)
    ids = torch.tensor([text + [fill] * (longest - len(text)) for text, _ in texts], device=x.device).long()
    return {
        "sequences": ids.view(len(texts), longest),
        "sequences_scores": torch.tensor([score for _, score in texts]),
        "finish_reasons": ["stop"] * len(texts),
    }


class TokenSpan(NamedTuple):
    """A token of a path, and the frames that have it: from `start` up to `end`, that one not counted."""

    token: int
    start: int
    end: int


def path(scores: Tensor, blank: int) -> list[TokenSpan]:
    """(T, V) log-probabilities -> the tokens of the likeliest path."""
    return merge_frames(scores.argmax(-1).tolist(), blank)


def merge_frames(tokens: Iterable[int], blank: int) -> list[TokenSpan]:
    """Of a token or the blank for every frame."""
    found, start = [], 0
    for token, run in itertools.groupby(tokens):
        end = start + sum(1 for _ in run)
        if token != blank:
            found.append(TokenSpan(token, start, end))
        start = end
    return found


def best_path(scores: Tensor, blank: int) -> tuple[list[int], float]:
    """(T, V) log-probabilities -> the text of the likeliest path."""
    return [held.token for held in path(scores, blank)], float(scores.amax(-1).sum())


def prefixes(pieces: Iterable[Tensor], blank: int, beams: int) -> list[tuple[list[int], float]]:
    """Log-probabilities (T, V) of one piece of a recording after the other -> the likeliest texts, best first. What all
    the texts begin with is settled after each piece, so that only their ends are carried along."""
    settled: list[int] = []
    running: Running = {(): [0.0, -math.inf]}
    for scores in pieces:
        likely = scores.topk(min(scores.shape[1], max(TRIED, 2 * beams)), dim=-1)
        silent, frames = scores[:, blank].tolist(), zip(likely.values.tolist(), likely.indices.tolist(), strict=True)
        for quiet, frame in zip(silent, frames, strict=True):
            running = extend_prefixes(running, quiet, frame, blank, beams)
        alike = itertools.takewhile(lambda tokens: len({*tokens}) == 1, zip(*running, strict=False))
        common = [tokens[0] for tokens in alike][:-1]  # the last of them says whether the next is a repeat
        settled += common
        running = {text[len(common) :]: ends for text, ends in running.items()}
    return [([*settled, *text], plus(*ends)) for text, ends in running.items()]


def extend_prefixes(running: Running, quiet: float, frame: Any, blank: int, beams: int) -> Running:
    """One frame later: `quiet` is the blank's log-probability, `frame` those of the tokens that are tried."""
    after: Running = {}
    for text, (ends_blank, ends_token) in running.items():
        whole = plus(ends_blank, ends_token)
        add(after, text, 0, whole + quiet)
        for p, c in zip(*frame, strict=True):
            if c == blank:
                continue
            if text and text[-1] == c:  # the same token again is a new one only behind a blank
                add(after, text, 1, ends_token + p)
                add(after, (*text, c), 1, ends_blank + p)
            else:
                add(after, (*text, c), 1, whole + p)
    return dict(sorted(after.items(), key=lambda item: -plus(*item[1]))[:beams])


def add(sums: Running, text: tuple[int, ...], ending: int, score: float) -> None:
    if score > -math.inf:
        found = sums.setdefault(text, [-math.inf, -math.inf])
        found[ending] = plus(found[ending], score)


def plus(a: float, b: float) -> float:
    """log(exp(a) + exp(b))"""
    high, low = max(a, b), min(a, b)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))
