"""Triton programs of `kernels/ctc.py`. Imported only if Triton is installed.

One program loops over the frames of one row and handles all states at once. After a barrier, it reads neighbouring
states from memory, as the previous frame wrote them.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOW = tl.constexpr(-1.0e30)  # stands for log(0), but finite


@triton.jit
def log_sum(a, b, c):
    highest = tl.maximum(tl.maximum(a, b), c)
    return highest + tl.log(tl.exp(a - highest) + tl.exp(b - highest) + tl.exp(c - highest))


@triton.jit
def forward(scores, states, skips, frames, number, alpha, nll, T, V, N, BLOCK: tl.constexpr):
    """Write alpha (B, T, N), the log-probability of being in a state after a frame, and nll (B,), the loss."""
    b, s = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    states, skips, alpha, scores = states + b * N, skips + b * N, alpha + b * T * N, scores + b * T * V
    inside, last, end = s < N, tl.load(frames + b), tl.load(number + b)
    symbol, skip = tl.load(states + s, mask=inside, other=0), tl.load(skips + s, mask=inside, other=0) != 0
    first = tl.where((s < 2) & (s < end), tl.load(scores + symbol, mask=inside, other=LOW), LOW)
    tl.store(alpha + s, tl.where(last > 0, first, LOW), mask=inside)
    for t in range(1, last):
        tl.debug_barrier()
        before = alpha + (t - 1) * N + s
        stay = tl.load(before, mask=inside, other=LOW)
        step = tl.load(before - 1, mask=inside & (s > 0), other=LOW)
        jump = tl.load(before - 2, mask=inside & (s > 1) & skip, other=LOW)
        score = tl.load(scores + t * V + symbol, mask=inside, other=LOW)
        tl.store(alpha + t * N + s, tl.maximum(log_sum(stay, step, jump) + score, LOW), mask=inside)
    tl.debug_barrier()
    ends = (s < end) & (s >= end - 2) & (last > 0)
    top = tl.load(alpha + (last - 1) * N + s, mask=ends, other=LOW)
    highest = tl.max(top, 0)
    total = highest + tl.log(tl.sum(tl.exp(top - highest), 0))
    # zero frames can emit only the empty text
    total = tl.where(last > 0, tl.sum(tl.where(s == 0, total, 0.0), 0), tl.where(end == 1, 0.0, LOW))
    tl.store(nll + b, tl.where(total <= LOW / 2, float("inf"), -total))


@triton.jit
def backward(scores, states, skips, frames, number, alpha, nll, above, beta, share, T, V, N, BLOCK: tl.constexpr):
    """Write share (B, T, N), the posterior of each state at a frame times the incoming gradient, and beta (B, T, N),
    the log-probability of all ways from a state to the end, including its own score."""
    b, s = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    states, skips, scores = states + b * N, skips + b * N, scores + b * T * V
    alpha, beta, share = alpha + b * T * N, beta + b * T * N, share + b * T * N
    inside, last, end = s < N, tl.load(frames + b), tl.load(number + b)
    symbol = tl.load(states + s, mask=inside, other=0)
    skip = tl.load(skips + s + 2, mask=s + 2 < N, other=0) != 0  # whether s may jump to s + 2
    total, weight = tl.load(nll + b), tl.load(above + b)
    for back in range(0, last):
        t = last - 1 - back
        score = tl.load(scores + t * V + symbol, mask=inside, other=LOW)
        after = beta + (t + 1) * N + s
        later = t + 1 < last
        stay = tl.load(after, mask=inside & later, other=LOW)
        step = tl.load(after + 1, mask=(s + 1 < N) & later, other=LOW)
        jump = tl.load(after + 2, mask=(s + 2 < N) & skip & later, other=LOW)
        way = tl.where(later, log_sum(stay, step, jump), tl.where((s < end) & (s >= end - 2), 0.0, LOW))
        tl.store(beta + t * N + s, tl.maximum(way + score, LOW), mask=inside)
        both = tl.load(alpha + t * N + s, mask=inside, other=LOW) + way + total
        likely = tl.where(total < -LOW, tl.exp(both), float("nan")) * weight  # NaN if the loss is infinite
        tl.store(share + t * N + s, tl.where(weight == 0, 0.0, likely), mask=inside)
        tl.debug_barrier()
