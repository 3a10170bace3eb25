"""Processing of the next token's scores before a token is chosen, in the order of transformers.

Each step maps (ids so far (B, T), scores (B, V)) to new scores (B, V).
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.generation.options import Settings, as_list
from anyformer.specs.messages import quote

Step = Callable[[Tensor, Tensor], Tensor]
NEVER = -math.inf
CHUNK = 2**18  # tokens of biased sequences that are compared with a text at once


def steps(s: Settings, prompt_length: int, max_length: int, source: Tensor | None, device: Any) -> list[Step]:
    """Return the steps that the settings require; `source` (B, S) are the encoder's ids, or the prompt."""
    ends = sorted(s.eos)
    eos = torch.tensor(ends, device=device, dtype=torch.long)
    out: list[Step] = []

    def known(scores: Tensor) -> Tensor:
        """Return the end tokens that are in the vocabulary. Some configs name one outside it."""
        return eos[: bisect.bisect_left(ends, scores.shape[1])]

    if s.biases:
        out.append(SequenceBias(s.biases))
    if source is not None and s.encoder_repetition_penalty != 1.0:
        out.append(
            lambda ids, scores: penalize_repeats(rows_like(source, scores), scores, 1 / s.encoder_repetition_penalty)
        )
    if s.repetition_penalty != 1.0:
        out.append(lambda ids, scores: penalize_repeats(ids, scores, s.repetition_penalty))
    if s.presence_penalty or s.frequency_penalty:
        out.append(
            lambda ids, scores: penalize_counts(ids[:, prompt_length:], scores, s.presence_penalty, s.frequency_penalty)
        )
    if s.no_repeat_ngram_size:
        out.append(lambda ids, scores: no_repeat(ids, ids, scores, s.no_repeat_ngram_size))
    if source is not None and s.encoder_no_repeat_ngram_size:
        size = s.encoder_no_repeat_ngram_size
        out.append(lambda ids, scores: no_repeat(rows_like(source, scores), ids, scores, size))
    if s.bad_words_ids:
        end_words = {(token,) for token in ends}
        out.append(SequenceBias((tuple(word), NEVER) for word in s.bad_words_ids if tuple(word) not in end_words))
    if s.min_length and s.eos:
        out.append(lambda ids, scores: ban_early_end(ids, scores, known(scores), s.min_length))
    if s.min_new_tokens and s.eos:
        at_least = prompt_length + s.min_new_tokens
        out.append(
            lambda ids, scores: scores.index_fill(1, known(scores), NEVER) if ids.shape[1] < at_least else scores
        )
    if (choose := s.prefix_allowed_tokens_fn) is not None:
        out.append(lambda ids, scores: keep_allowed(ids, scores, choose, s.num_beams, s.pad or 0))
    if s.forced_bos_token_id is not None:
        out.append(lambda ids, scores: force_tokens(scores, [s.forced_bos_token_id]) if ids.shape[1] == 1 else scores)
    if last := as_list(s.forced_eos_token_id):
        out.append(lambda ids, scores: force_tokens(scores, last) if ids.shape[1] == max_length - 1 else scores)
    if s.remove_invalid_values:
        out.append(lambda ids, scores: torch.nan_to_num(scores, nan=0.0))
    if s.exponential_decay_length_penalty is not None and s.eos:
        start, factor = s.exponential_decay_length_penalty
        out.append(
            lambda ids, scores: decay_length(scores, known(scores), factor, ids.shape[1] - prompt_length - start)
        )
    if s.suppress_tokens:
        unwanted = torch.tensor(s.suppress_tokens, device=device)
        out.append(lambda ids, scores: scores.index_fill(1, unwanted, NEVER))
    if s.begin_suppress_tokens:
        not_first = torch.tensor(s.begin_suppress_tokens, device=device)
        begin = prompt_length if prompt_length > 1 or s.forced_bos_token_id is None else prompt_length + 1
        out.append(lambda ids, scores: scores.index_fill(1, not_first, NEVER) if ids.shape[1] == begin else scores)
    if s.return_timestamps:
        first, latest = s.no_timestamps_token_id + 1, s.max_initial_timestamp_index  # type: ignore[operator]
        out.append(
            lambda ids, scores: order_timestamps(
                ids[:, prompt_length:], scores, first, min(s.eos, default=first), latest
            )
        )
    if s.do_sample:
        out += sampling_steps(s)
    if s.renormalize_logits:
        out.append(lambda ids, scores: scores.log_softmax(-1))
    return out


def sampling_steps(s: Settings) -> list[Step]:
    """Return the steps that restrict sampling to likely tokens."""
    out: list[Step] = []
    keep = len(s.eos) + 1 if s.num_beams > 1 else 1
    if s.temperature != 1.0:
        out.append(lambda ids, scores: scores / s.temperature)
    if s.top_k:
        out.append(lambda ids, scores: top_k(scores, max(s.top_k, keep)))
    if s.top_p < 1.0:
        out.append(lambda ids, scores: top_p(scores, s.top_p, keep))
    if (share := s.min_p) is not None:
        out.append(lambda ids, scores: min_p(scores, share, keep))
    if s.typical_p < 1.0:
        out.append(lambda ids, scores: typical(scores, s.typical_p, keep))
    if s.epsilon_cutoff:
        out.append(lambda ids, scores: unlikely(scores, torch.tensor(s.epsilon_cutoff), keep))
    if s.eta_cutoff:
        out.append(lambda ids, scores: unlikely(scores, eta(scores, s.eta_cutoff), keep))
    return out


def rows_like(source: Tensor, scores: Tensor) -> Tensor:
    """Repeat each row of `source` once per beam."""
    return source.repeat_interleave(scores.shape[0] // source.shape[0], dim=0)


def penalize_repeats(ids: Tensor, scores: Tensor, penalty: float) -> Tensor:
    """Lower the scores of tokens in `ids`: divide positive scores, multiply negative ones [Keskar et al. 2019]."""
    scores = F.pad(scores, (0, 1))  # padding has the id V
    seen = scores.gather(1, ids)
    return scores.scatter(1, ids, torch.where(seen < 0, seen * penalty, seen / penalty))[:, :-1]


def penalize_counts(ids: Tensor, scores: Tensor, presence: float, frequency: float) -> Tensor:
    times = torch.zeros_like(scores).scatter_add_(1, ids, torch.ones_like(ids, dtype=scores.dtype))
    return scores - presence * (times > 0) - frequency * times


def no_repeat(text: Tensor, ids: Tensor, scores: Tensor, size: int) -> Tensor:
    """Ban tokens that would complete an n-gram of `text` after the last n - 1 tokens of `ids`."""
    if text.shape[1] < size or ids.shape[1] < size - 1:
        return scores
    windows = text.unfold(1, size, 1)  # (B, W, n)
    prefix = ids[:, ids.shape[1] + 1 - size :]
    matches = (windows[..., :-1] == prefix[:, None]).all(-1)
    V = scores.shape[1]
    banned = torch.zeros(scores.shape[0], V + 1, dtype=torch.bool, device=scores.device)
    banned.scatter_(1, torch.where(matches, windows[..., -1], V), True)
    return scores.masked_fill(banned[:, :V], NEVER)


def ban_early_end(ids: Tensor, scores: Tensor, ends: Tensor, min_length: int) -> Tensor:
    """Ban the end tokens in rows of fewer than `min_length` tokens. Padding does not count."""
    is_short = (ids < scores.shape[1]).sum(1, keepdim=True) < min_length
    return torch.where(is_short, scores.index_fill(1, ends, NEVER), scores)


class SequenceBias:
    """Adds a bias to the last token of each sequence if the text ends with the sequence's other tokens.

    Sequences of equal length are compared together, N at a time, so that a step with a million of them takes
    milliseconds. If a sequence is given twice, its last bias counts, as in transformers."""

    def __init__(self, biases: Iterable[tuple[tuple[int, ...], float]]) -> None:
        self.biases = dict(biases)
        self.chunks: list[tuple[Tensor, Tensor]] = []  # (N, n) sequences of n tokens, (N,) their biases

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        self.chunks = self.chunks or [*self.make_chunks(scores)]
        bias, T = torch.zeros_like(scores), ids.shape[1]
        for sequences, values in self.chunks:
            n = sequences.shape[1] - 1
            if n and n >= T:  # as in transformers, the text must have one more token
                continue
            matches = (ids[:, None, T - n :] == sequences[:, :-1]).all(-1)  # (B, N)
            # no two of these sequences match and end in the same token: the order of the sums does not matter
            bias.index_add_(1, sequences[:, -1], torch.where(matches, values, 0.0))
        return scores + bias

    def make_chunks(self, scores: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        by_length: dict[int, list[tuple[int, ...]]] = {}
        for sequence in self.biases:
            by_length.setdefault(len(sequence), []).append(sequence)
        for length, sequences in by_length.items():
            size = max(1, CHUNK // length)
            for start in range(0, len(sequences), size):
                chunk = sequences[start : start + size]
                values = [self.biases[sequence] for sequence in chunk]
                yield torch.tensor(chunk, device=scores.device), scores.new_tensor(values)


Choose = Callable[[int, Tensor], list[int]]


def keep_allowed(ids: Tensor, scores: Tensor, choose: Choose, num_beams: int, pad: int) -> Tensor:
    out = torch.full_like(scores, NEVER)
    ids = torch.where(ids < scores.shape[1], ids, pad)
    for row in range(scores.shape[0]):
        tokens = choose(row // num_beams, ids[row])
        if not len(tokens):
            raise ValueError(f"prefix_allowed_tokens_fn allows no token for row {row // num_beams}")
        if not 0 <= min(tokens) <= max(tokens) < scores.shape[1]:
            raise ValueError(f"prefix_allowed_tokens_fn returned {quote(tokens)}; ids must be below {scores.shape[1]}")
        out[row, tokens] = scores[row, tokens]
    return out


def force_tokens(scores: Tensor, tokens: list[Any]) -> Tensor:
    out = torch.full_like(scores, NEVER)
    out[:, tokens] = 0
    return out


def decay_length(scores: Tensor, eos: Tensor, factor: float, late: int) -> Tensor:
    """Raise the scores of end tokens exponentially, `late` tokens after the start of the decay."""
    if late <= 0:
        return scores
    end = scores[:, eos]
    push = (end.abs() * (factor**late - 1)).masked_fill(~end.isfinite(), 0.0)
    return scores.index_add(1, eos, push)


def order_timestamps(written: Tensor, scores: Tensor, first: int, end: int, latest: int | None) -> Tensor:
    """Enforce the order of Whisper's timestamps [Radford et al. 2022]. Tokens from `first` on are timestamps.

    A text begins with a timestamp (at most first + latest). Then timestamps are in pairs, except the last one before
    `end`, and never decrease. If all timestamps together are likelier than any other token, the next token is one."""
    token = torch.arange(scores.shape[1], device=scores.device)
    time, n = token >= first, written.shape[1]
    if n == 0:
        never = ~time if latest is None else ~time | (token > first + latest)
        never = never.expand_as(scores)
    else:
        last = written[:, -1:] >= first
        before = written[:, -2:-1] >= first if n > 1 else torch.ones_like(last)
        opened = last & ~before  # a segment has just ended: the second timestamp of the pair, or the end, follows
        place = torch.where(written >= first, torch.arange(1, n + 1, device=scores.device), 0).amax(-1, keepdim=True)
        spent = torch.where(place > 0, written.gather(1, (place - 1).clamp(min=0)), first - 1) + ~opened
        never = time & (last & before | (token < spent)) | ((token < end) & opened)
    scores = scores.masked_fill(never | (token == first - 1), NEVER)
    log_p = scores.log_softmax(-1, dtype=torch.float32)
    surely = log_p[:, first:].logsumexp(-1, keepdim=True) > log_p[:, :first].amax(-1, keepdim=True)
    return scores.masked_fill(surely & ~time, NEVER)


def top_k(scores: Tensor, k: int) -> Tensor:
    return scores.masked_fill(scores < scores.topk(min(k, scores.shape[1])).values[:, -1:], NEVER)


def top_p(scores: Tensor, share: float, keep: int) -> Tensor:
    """Keep the fewest tokens whose probabilities sum to `share` [Holtzman et al. 2020], and at least `keep`."""
    ordered, index = scores.sort(descending=False)
    out = ordered.softmax(-1).cumsum(-1) <= 1 - share
    out[:, -keep:] = False
    return scores.masked_fill(out.scatter(1, index, out), NEVER)


def min_p(scores: Tensor, share: float, keep: int) -> Tensor:
    """Keep tokens whose probability is at least `share` times the highest one, and at least `keep` tokens."""
    p = scores.softmax(-1)
    out = p < share * p.amax(-1, keepdim=True)
    out.scatter_(1, p.topk(min(keep, p.shape[1])).indices, False)
    return scores.masked_fill(out, NEVER)


def typical(scores: Tensor, mass: float, keep: int) -> Tensor:
    """Keep tokens whose surprisal is nearest to the entropy, up to the probability `mass` [Meister et al. 2022]."""
    log_p = scores.log_softmax(-1)
    entropy = -(log_p * log_p.exp()).nansum(-1, keepdim=True)
    distance, index = (-log_p - entropy).abs().sort()
    cumulative = scores.gather(1, index).softmax(-1).cumsum(-1)
    last = (cumulative < mass).sum(1, keepdim=True).clamp(max=scores.shape[1] - 1)
    out = distance > distance.gather(1, last)
    out[:, :keep] = False
    return scores.masked_fill(out.scatter(1, index, out), NEVER)


def unlikely(scores: Tensor, least: Tensor, keep: int) -> Tensor:
    """Drop tokens less likely than `least` [Hewitt et al. 2022], but keep the `keep` likeliest."""
    out = scores.softmax(-1) < least.to(scores.device)
    top = scores.topk(min(keep, scores.shape[1])).values[:, -1:]
    return scores.masked_fill(out & (scores < top), NEVER)


def eta(scores: Tensor, epsilon: float) -> Tensor:
    """Return the minimal probability (B, 1) of eta sampling, lower if the entropy is high [Hewitt et al. 2022]."""
    log_p = scores.log_softmax(-1)
    entropy = -(log_p * log_p.exp()).nansum(-1, keepdim=True)
    return torch.minimum(torch.tensor(epsilon, device=scores.device), epsilon**0.5 * torch.exp(-entropy))
