"""The time-invariant linear recurrence of S4, with complex states [Gu et al. 2022]:

    h[t] = exp(pace) h[t-1] + x[t],   y[t] = 2 Re(sum over states of c h[t])       (2 Re: each state and its conjugate)

`s4_by_steps` is the definition, `s4_step` computes one token, `s4` the same as a convolution by Fourier transforms:
y[t] = sum over l of K[l] x[t - l] with K[l] = 2 Re(sum over states of c exp(pace l)).

B rows, T tokens, D channels, N states per channel. T powers are products of F fine and G coarse powers, about sqrt(T)
of each, so that no tensor has T N numbers per channel. All in fp32 (or fp64), or complex of these; pace in fp64,
because a fast state rotates by thousands of radians before it decays.
x (B, T, D)   pace, c (D, N), complex   state (B, D, N), complex
keep (B, T), 0 at the first token of a document   real (B, T), 0 for trailing padding, which does not change the state
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.kernels.capture import can_read_values


def s4_by_steps(
    x: Tensor, pace: Tensor, c: Tensor, state: Tensor | None = None, keep: Tensor | None = None,
    real: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The definition, one token at a time: the reference for `s4`."""
    h = c.new_zeros(x.shape[0], *c.shape) if state is None else state
    outs, decay = [], torch.exp(pace)
    for t in range(x.shape[1]):
        if keep is not None:
            h = h * keep[:, t, None, None]
        y, new = s4_step(x[:, t], decay, c, h)
        h = new if real is None else torch.where(real[:, t, None, None].bool(), new, h)
        outs.append(y)
    return torch.stack(outs, dim=1), h


def s4_step(x: Tensor, decay: Tensor, c: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Compute one token: x (B, D) and exp(pace) -> y (B, D) and the new state. The decay is in fp64: its rounding error
    would be the same at every token, and accumulate."""
    h = (decay * state + x[..., None]).to(c.dtype)
    return 2 * (c * h).sum(-1).real, h


def power(pace: Tensor, count: Tensor | int, like: Tensor) -> Tensor:
    """Return exp(pace count) in the type of `like`. The angle is reduced to one turn in fp64, so that fp32 is
    enough."""
    size, angle = torch.exp(pace.real * count), torch.remainder(pace.imag * count, 2 * math.pi)
    return torch.polar(size.to(like.real.dtype), angle.to(like.real.dtype))


def s4(
    x: Tensor, pace: Tensor, c: Tensor, state: Tensor | None = None, keep: Tensor | None = None,
    real: Tensor | None = None, last: bool = True,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Return y (B, T, D) and, if `last`, the last state."""
    if keep is not None:  # a convolution does not stop at documents
        steps = not can_read_values()  # then the number of documents is unknown
        return s4_by_steps(x, pace, c, state, keep, real) if steps else _by_document(x, pace, c, state, keep, real)
    B, T, D = x.shape
    x = x.transpose(1, 2)  # (B, D, T)
    step = math.isqrt(T - 1) + 1  # F
    index = torch.arange(step, device=x.device)
    fine = power(pace[..., None], index, c)  # (D, N, F)
    coarse = power(pace[..., None], index[: -(-T // step)] * step, c).mT  # (D, G, N)

    def sum_powers(c: Tensor) -> Tensor:
        """(..., D, N) -> (..., D, T): 2 Re(sum over states of c exp(pace l)) for each l."""
        return 2 * ((c[..., None, :] * coarse) @ fine).real.flatten(-2)[..., :T]

    # twice as long: a discrete Fourier transform wraps around, and this way it wraps into zeros
    spectrum = torch.fft.rfft(x, 2 * T) * torch.fft.rfft(sum_powers(c), 2 * T)
    y = torch.fft.irfft(spectrum, 2 * T)[..., :T]
    if state is not None:
        y = y + sum_powers(c * power(pace, 1, c) * state)
    if not last:
        return y.transpose(1, 2), None
    # x from its last real token backwards, times increasing powers
    lengths = index.new_full((B, 1), T) if real is None else real.sum(1, keepdim=True).long()
    back = lengths - 1 - torch.arange(T, device=x.device)  # (B, T)
    recent = x.gather(2, back.clamp(min=0)[:, None].expand_as(x)) * (back >= 0)[:, None]
    recent = F.pad(recent, (0, coarse.shape[1] * step - T)).unflatten(-1, (-1, step))  # (B, D, G, F)
    h = (recent.to(fine.dtype) @ fine.mT * coarse).sum(-2)
    return y.transpose(1, 2), h if state is None else h + power(pace, lengths[..., None], c) * state


def _by_document(
    x: Tensor, pace: Tensor, c: Tensor, state: Tensor | None, keep: Tensor, real: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Compute each document as a separate row."""
    B, T, D = x.shape
    first = keep == 0
    first[:, 0] = True
    starts = first.flatten().nonzero()[:, 0]
    document = first.flatten().cumsum(0) - 1  # (B T)
    offset = torch.arange(B * T, device=x.device) - starts[document]
    rows = x.new_zeros(len(starts), int(offset.max()) + 1, D)
    rows = rows.index_put((document, offset), x.flatten(0, 1))
    counted = torch.ones_like(keep) if real is None else real
    tokens = rows.new_zeros(rows.shape[:2]).index_put((document, offset), counted.flatten().to(rows.dtype))
    if state is not None:  # the first document of a row continues from the state
        state = state.new_zeros(len(starts), *pace.shape).index_put((document[::T],), state)
    y, last = s4(rows, pace, c, state, None, tokens)
    assert last is not None
    return y[document, offset].unflatten(0, (B, T)), last[document[T - 1 :: T]]
