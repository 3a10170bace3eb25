"""Triton program of `kernels/loss.py`. Imported only if Triton is installed."""

from __future__ import annotations

import triton
import triton.language as tl

LOW = tl.constexpr(-1e30)  # below any score; unlike -inf, its differences are finite


@triton.jit
def loss_and_gradient(
    scores,
    labels,
    losses,
    above,
    stride,
    smoothing,
    z_loss,
    V: tl.constexpr,
    IGNORED: tl.constexpr,
    BLOCK: tl.constexpr,
    WRITE: tl.constexpr,
    SMOOTH: tl.constexpr,
    SCALED: tl.constexpr,
):
    """Compute the loss of one row of scores and overwrite them by its gradient; SCALED: times the number at `above`.

    The scores are read a second time for the gradient, from the cache.
    """
    row = scores + tl.program_id(0).to(tl.int64) * stride
    label = tl.load(labels + tl.program_id(0))
    c = tl.arange(0, BLOCK)
    if label == IGNORED:
        tl.store(losses + tl.program_id(0), 0.0)
        if WRITE:
            for start in range(0, V, BLOCK):
                tl.store(row + start + c, tl.zeros((BLOCK,), row.dtype.element_ty), mask=start + c < V)
    else:
        # each lane keeps its own maximum and sum, with one exponential per element; they are reduced at the end
        tops, totals, added = tl.full((BLOCK,), LOW, tl.float32), tl.zeros((BLOCK,), tl.float32), 0.0
        for start in range(0, V, BLOCK):
            x = tl.load(row + start + c, mask=start + c < V, other=LOW).to(tl.float32)
            shrink = tl.exp(-tl.abs(x - tops))
            totals = tl.where(x > tops, totals * shrink + 1.0, totals + shrink)
            tops = tl.maximum(tops, x)
            if SMOOTH:
                added += tl.sum(tl.where(start + c < V, x, 0.0), 0)
        top = tl.max(tops, 0)
        log_total = top + tl.log(tl.sum(totals * tl.exp(tops - top), 0))
        hit = tl.load(row + label).to(tl.float32)
        loss = log_total - (1.0 - smoothing) * hit - smoothing * added / V + z_loss * log_total * log_total
        tl.store(losses + tl.program_id(0), loss.to(tl.float32))
        if WRITE:
            factor = 1.0 + 2.0 * z_loss * log_total
            scale = tl.load(above) if SCALED else 1.0
            for start in range(0, V, BLOCK):
                x = tl.load(row + start + c, mask=start + c < V, other=-float("inf")).to(tl.float32)
                gradient = tl.exp(x - log_total) * factor - smoothing / V
                gradient -= tl.where(start + c == label, 1.0 - smoothing, 0.0)
                tl.store(row + start + c, (gradient * scale).to(row.dtype.element_ty), mask=start + c < V)
