"""Mamba-2's recurrence, with one decay per head [Dao and Gu 2024]:

    h[t] = exp(dt[t] A) h[t-1] + dt[t] x[t] b[t]^T,   y[t] = h[t] c[t]

`ssd_by_steps` is the definition, `ssd_step` computes one token. `ssd` works in chunks: inside a chunk, tokens are mixed
as in attention, with decays as the mask; the state connects chunks. It is linear in the length and uses matrix
products.

B rows, T tokens, H heads of P channels in G groups, N states per channel; C chunks of Q tokens; all in fp32 (or fp64).
x (B, T, H, P)   dt (B, T, H)   A (H,), negative   b, c (B, T, G, N)   state (B, H, P, N)
keep (B, T), 0 at the first token of a document
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 64  # tokens per chunk; at the published sizes, about equal work inside chunks and between them


def ssd_by_steps(
    x: Tensor, dt: Tensor, A: Tensor, b: Tensor, c: Tensor, state: Tensor | None = None, keep: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The definition, one token at a time: the reference for `ssd` and `ssd_step`."""
    h = x.new_zeros(x.shape[0], *x.shape[2:], b.shape[3]) if state is None else state
    outs = []
    for t in range(x.shape[1]):
        if keep is not None:
            h = h * keep[:, t, None, None, None]
        y, h = ssd_step(x[:, t], dt[:, t], A, b[:, t], c[:, t], h)
        outs.append(y)
    return torch.stack(outs, dim=1), h


def ssd_step(x: Tensor, dt: Tensor, A: Tensor, b: Tensor, c: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Compute one token: x (B, H, P), dt (B, H), b, c (B, G, N) -> y (B, H, P) and the new state."""
    groups = b.shape[1]
    written = (x * dt[..., None]).unflatten(1, (groups, -1))[..., None] * b[:, :, None, None]  # (B, G, H / G, P, N)
    h = torch.exp(dt * A)[..., None, None] * state + written.flatten(1, 2)
    return (h.unflatten(1, (groups, -1)) @ c[:, :, None, :, None]).squeeze(-1).flatten(1, 2), h


def ssd(
    x: Tensor, dt: Tensor, A: Tensor, b: Tensor, c: Tensor, state: Tensor | None = None, keep: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return y (B, T, H, P) and the last state, computed in chunks."""
    (B, T, H, P), (G, N) = x.shape, b.shape[2:]
    Q = min(CHUNK, T)

    def chunks(t: Tensor, value: float = 0.0) -> Tensor:
        """(B, T, ...) -> (B, C, Q, ...); padding tokens have dt = 0."""
        return F.pad(t, (0, 0) * (t.dim() - 2) + (0, -T % Q), value=value).unflatten(1, (-1, Q))

    b, c = (chunks(t).transpose(2, 3) for t in (b, c))  # (B, C, G, Q, N)
    x = chunks(x * dt[..., None]).unflatten(3, (G, -1)).permute(0, 1, 3, 4, 2, 5)  # (B, C, G, H / G, Q, P)
    # (B, C, G, H / G, Q), in fp64, because decays are differences of sums that may be large
    past = chunks(dt.double() * A.double()).cumsum(2).unflatten(3, (G, -1)).permute(0, 1, 3, 4, 2)
    seen = torch.ones(Q, Q, dtype=torch.bool, device=x.device).tril()
    into = _decay(past, x)  # decay of the previous state up to each token
    out = _decay(past[..., -1:] - past, x)  # decay of each token up to the end of its chunk
    if keep is not None:
        begun = chunks(1 - keep, 0.0).cumsum(2)[:, :, None, None]  # (B, C, 1, 1, Q) documents that began in the chunk
        seen = seen & (begun[..., None] == begun[..., None, :])
        into, out = into * (begun == 0), out * (begun == begun[..., -1:])
    between = _decay(past[..., None] - past[..., None, :], x) * seen
    y = ((c @ b.mT)[:, :, :, None] * between) @ x  # within chunks
    added = (x * out[..., None]).transpose(4, 5).flatten(3, 4) @ b  # (B, C, G, H P / G, N)
    h = x.new_zeros(B, G, H // G, P, N) if state is None else state.unflatten(1, (G, -1))
    before = []
    for whole, new in zip(into[..., -1].unbind(1), added.unflatten(3, (H // G, P)).unbind(1), strict=True):
        before.append(h)
        h = whole[..., None, None] * h + new
    read = c @ torch.stack(before, dim=1).flatten(3, 4).mT  # (B, C, G, Q, H P / G)
    y = torch.addcmul(y, read.unflatten(4, (H // G, P)).transpose(3, 4), into[..., None])
    y = y.permute(0, 1, 4, 2, 3, 5).reshape(B, -1, H, P)  # (B, C Q, H, P)
    return y[:, :T], h.flatten(1, 2)


def _decay(fading: Tensor, like: Tensor) -> Tensor:
    """Return e^fading, at least e^-70: smaller values do not matter, and denormal numbers are slow."""
    return fading.to(like.dtype).clamp(-70, 0).exp()
