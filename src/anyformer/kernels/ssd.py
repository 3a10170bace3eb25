"""Mamba-2's recurrence, where a head forgets at one pace [Dao and Gu 2024]:

    h[t] = exp(dt[t] A) h[t-1] + dt[t] x[t] b[t]^T,   y[t] = h[t] c[t]

`ssd_by_steps` is the definition, `ssd_step` one token of it. `ssd` works in chunks: inside one, a token reads others as
in attention, with decays for a mask; between chunks goes the state. Linear in the length, and matrix products.

B rows, T tokens, H heads of P channels in G groups, N states a channel; C chunks of Q tokens; all in fp32 (or fp64).
x (B, T, H, P)   dt (B, T, H)   A (H,), negative   b, c (B, T, G, N)   state (B, H, P, N)
keep (B, T), 0 where a document begins
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 64  # tokens: about as much work inside chunks as between them, at the published sizes


def ssd_by_steps(
    x: Tensor, dt: Tensor, A: Tensor, b: Tensor, c: Tensor, state: Tensor | None = None, keep: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The definition, a token at a time: what the other two are held against."""
    h = x.new_zeros(x.shape[0], *x.shape[2:], b.shape[3]) if state is None else state
    outs = []
    for t in range(x.shape[1]):
        if keep is not None:
            h = h * keep[:, t, None, None, None]
        y, h = ssd_step(x[:, t], dt[:, t], A, b[:, t], c[:, t], h)
        outs.append(y)
    return torch.stack(outs, dim=1), h


def ssd_step(x: Tensor, dt: Tensor, A: Tensor, b: Tensor, c: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One token: x (B, H, P), dt (B, H), b, c (B, G, N) -> y (B, H, P) and the new state."""
    groups = b.shape[1]
    written = (x * dt[..., None]).unflatten(1, (groups, -1))[..., None] * b[:, :, None, None]  # (B, G, H / G, P, N)
    h = torch.exp(dt * A)[..., None, None] * state + written.flatten(1, 2)
    return (h.unflatten(1, (groups, -1)) @ c[:, :, None, :, None]).squeeze(-1).flatten(1, 2), h


def ssd(
    x: Tensor, dt: Tensor, A: Tensor, b: Tensor, c: Tensor, state: Tensor | None = None, keep: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """y (B, T, H, P) and the last state, in chunks."""
    (B, T, H, P), (G, N) = x.shape, b.shape[2:]
    Q = min(CHUNK, T)

    def chunks(t: Tensor, value: float = 0.0) -> Tensor:
        """(B, T, ...) -> (B, C, Q, ...); no time passes at the tokens that are added."""
        return F.pad(t, (0, 0) * (t.dim() - 2) + (0, -T % Q), value=value).unflatten(1, (-1, Q))

    b, c = (chunks(t).transpose(2, 3) for t in (b, c))  # (B, C, G, Q, N)
    x = chunks(x * dt[..., None]).unflatten(3, (G, -1)).permute(0, 1, 3, 4, 2, 5)  # (B, C, G, H / G, Q, P)
    # (B, C, G, H / G, Q), in fp64, since decays are differences of what may be large
    past = chunks(dt.double() * A.double()).cumsum(2).unflatten(3, (G, -1)).permute(0, 1, 3, 4, 2)
    seen = torch.ones(Q, Q, dtype=torch.bool, device=x.device).tril()
    into = _decay(past, x)  # of the state before, at each token
    out = _decay(past[..., -1:] - past, x)  # of each token, at the end
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
    """e^fading. e^-70 is as good as nothing, and numbers too small to be normal are slow."""
    return fading.to(like.dtype).clamp(-70, 0).exp()
