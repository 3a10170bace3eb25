"""The program of `kernels/loss.py`. Imported only where Triton is."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def slopes(
    scores, labels, losses, stride, smoothing, z_loss, V: tl.constexpr, IGNORED: tl.constexpr, BLOCK: tl.constexpr,
    WRITE: tl.constexpr,
):  # fmt: skip
    """The loss of one row of scores, and its gradient in their place. The second reading comes from the cache."""
    row = scores + tl.program_id(0).to(tl.int64) * stride
    label = tl.load(labels + tl.program_id(0))
    c = tl.arange(0, BLOCK)
    if label == IGNORED:
        tl.store(losses + tl.program_id(0), 0.0)
        if WRITE:
            for start in range(0, V, BLOCK):
                tl.store(row + start + c, tl.zeros((BLOCK,), row.dtype.element_ty), mask=start + c < V)
    else:
        top, total, added = -float("inf"), 0.0, 0.0
        for start in range(0, V, BLOCK):
            x = tl.load(row + start + c, mask=start + c < V, other=-float("inf")).to(tl.float32)
            higher = tl.maximum(top, tl.max(x, 0))
            total = total * tl.exp(top - higher) + tl.sum(tl.exp(x - higher), 0)
            added += tl.sum(tl.where(start + c < V, x, 0.0), 0)
            top = higher
        log_total = top + tl.log(total)
        hit = tl.load(row + label).to(tl.float32)
        loss = log_total - (1.0 - smoothing) * hit - smoothing * added / V + z_loss * log_total * log_total
        tl.store(losses + tl.program_id(0), loss.to(tl.float32))
        if WRITE:
            factor = 1.0 + 2.0 * z_loss * log_total
            for start in range(0, V, BLOCK):
                x = tl.load(row + start + c, mask=start + c < V, other=-float("inf")).to(tl.float32)
                slope = tl.exp(x - log_total) * factor - smoothing / V
                slope -= tl.where(start + c == label, 1.0 - smoothing, 0.0)
                tl.store(row + start + c, slope.to(row.dtype.element_ty), mask=start + c < V)
