"""The selective scan [Gu and Dao 2023]: h[t] = exp(dt[t] A) h[t-1] + dt[t] x[t] B[t],  y[t] = C[t] h[t].

Three forms of one function: `scan_by_steps` (the definition), `scan` (training, prompts) and `scan_step` (one token).
`scan` never stores the states of all tokens: it processes windows that fit the CPU's cache, keeps the state at the
start of each, and recomputes the others in the backward pass. A narrow model has too little work per step for the
processor, so its windows are cut into segments that run in parallel and are joined afterwards. Decays are only
multiplied, never divided, so no length overflows. On CUDA with Triton it is one program (`kernels/scan_triton.py`).

B rows, T tokens, I channels, N states per channel; G segments of L steps in a window; all in fp32 (or fp64).
x, dt (B, T, I)   A (N, I), negative   b, c (B, T, N)   state (B, N, I)   keep (B, T), 0 at a document's first token
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.kernels.triton_launch import HAS_TRITON

# numbers that a step and a window should touch per CPU thread; a GPU counts as 256 threads
SLAB, WINDOW, GPU = 2**14, 2**17, 256
STEPS = 16  # fewest steps in a window
SEGMENTS = 8  # fewest parallel segments that are worth joining
FUSED_WINDOW, CHANNELS = 32, 32  # Triton program: steps between kept states, and channels


def scan_by_steps(
    x: Tensor, dt: Tensor, A: Tensor, b: Tensor, c: Tensor, state: Tensor | None = None, keep: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The definition, one token at a time: the reference for `scan` and `scan_step`."""
    h = x.new_zeros(x.shape[0], *A.shape) if state is None else state
    outs = []
    for t in range(x.shape[1]):
        if keep is not None:
            h = h * keep[:, t, None, None]
        y, h = scan_step(x[:, t], dt[:, t], A, b[:, t], c[:, t], h)
        outs.append(y)
    return torch.stack(outs, dim=1), h


def scan_step(x: Tensor, dt: Tensor, A: Tensor, b: Tensor, c: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Compute one token: x, dt (B, I), b, c (B, N) -> y (B, I) and the new state."""
    h = torch.exp(dt[:, None] * A) * state + (dt * x)[:, None] * b[..., None]
    return (c[:, None] @ h)[:, 0], h


def scan(
    x: Tensor, dt: Tensor, A: Tensor, b: Tensor, c: Tensor, state: Tensor | None = None, keep: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return y (B, T, I) and the last state, computed in windows."""
    inputs = (x, dt, A, b, c, state)
    train = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)
    y, last, _ = _scan(x, dt, A, b, c, state, keep, train)
    return y, last


# -- windows ----------------------------------------------------------------------------------------------------------


class ScanPlan:
    """How B rows of T tokens are cut: `rows` at once, `segments` in parallel, `steps` in sequence."""

    def __init__(self, x: Tensor, num_states: int) -> None:
        B, self.T, I = x.shape
        scale = GPU if x.is_cuda else torch.get_num_threads()
        step = num_states * I  # numbers of one row that one step touches
        self.rows = min(max(SLAB * scale // step, 1), B)
        step *= self.rows
        window = max(WINDOW * scale // step, STEPS)
        self.segments = min(SLAB * scale // step, math.isqrt(min(window, self.T)))
        if self.segments < SEGMENTS:
            self.segments, self.steps, self.padded = 1, window, self.T
        else:  # only full windows: padding tokens have dt = 0, which changes no state
            windows = -(-self.T // window)
            self.steps = -(-self.T // (windows * self.segments))
            self.padded = windows * self.segments * self.steps
        self.size = self.segments * self.steps
        self.windows = -(-self.padded // self.size)
        self.B = B

    def pad(self, x: Tensor, value: float = 0.0) -> Tensor:
        more = (0, 0) * (x.dim() - 2) + (0, self.padded - self.T)
        return x if self.padded == self.T else F.pad(x, more, value=value)

    def blocks(self) -> Iterator[slice]:
        for row in range(0, self.B, self.rows):
            yield slice(row, min(row + self.rows, self.B))

    def window(self, x: Tensor, rows: slice, w: int) -> Tensor:
        """Return a view (L, R, G, ...) of window w of (B, T, ...), steps first."""
        x = x[rows, w * self.size : (w + 1) * self.size]
        return x.unflatten(1, (self.segments, -1)).movedim(2, 0)


class ScanBuffers:
    """Memory for the windows of a call, reused so that it stays in the CPU's cache."""

    def __init__(self, plan: ScanPlan, like: Tensor, A: Tensor, *names: str) -> None:
        shape = (plan.rows, plan.segments, *A.shape)
        steps = min(plan.steps, plan.padded)
        self.room = {n: like.new_empty((steps + (n == "h"), *shape)) for n in names}

    def __call__(self, name: str, window: Tensor) -> Tensor:
        """Return the buffer (L, R, G, N, I) for a window (L, R, G, ...); with one step more for the states ("h")."""
        steps, rows = window.shape[:2]
        return self.room[name][: steps + (name == "h"), :rows]


def _join(ends: Tensor, whole: Tensor, order: range) -> Tensor:
    """Return the state that enters each segment, given the end states (R, G, N, I) of segments that started from zero,
    and the decay over each whole segment."""
    enters = torch.zeros_like(ends)
    into, out, decay = enters.unbind(1), ends.unbind(1), whole.unbind(1)
    for before, g in itertools.pairwise(order):
        torch.addcmul(out[before], decay[before], into[before], out=into[g])
    return enters


def _states(
    room: ScanBuffers, dt: Tensor, dtx: Tensor, A: Tensor, b: Tensor, keep: Tensor | None, start: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the decay of each step (L, R, G, N, I) and the states before the first and after each step (L + 1,
    ...)."""
    a, h = room("a", dt), room("h", dt)
    torch.mul(dt[..., None, :], A, out=a).exp_()
    if keep is not None:
        a.mul_(keep[..., None, None])
    h[0] = 0
    h[0, :, 0] = start  # before h[1:] is overwritten: it may be the previous window's last state, in the same buffer
    torch.mul(dtx[..., None, :], b[..., None], out=h[1:])
    _recur(h.unbind(0), a.unbind(0))
    if a.shape[2] > 1:
        running = a.clone()
        _products(running.unbind(0))
        enters = _join(h[-1], running[-1], range(a.shape[2]))
        h[1:].addcmul_(running, enters)
        h[0, :, 1:] = enters[:, 1:]
    return a, h


def _recur(h: Sequence[Tensor], a: Sequence[Tensor]) -> None:
    """h[l + 1] += a[l] h[l], in order."""
    for l, decay in enumerate(a):
        h[l + 1].addcmul_(decay, h[l])


def _products(a: Sequence[Tensor]) -> None:
    """a[l + 1] *= a[l], in order (cumprod would access memory in a slower order)."""
    for before, each in itertools.pairwise(a):
        each.mul_(before)


@torch.library.custom_op("anyformer::selective_scan", mutates_args=())
def _scan(
    x: Tensor, dt: Tensor, A: Tensor, b: Tensor, c: Tensor, state: Tensor | None, keep: Tensor | None, train: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, the last state and, if `train`, the state at the start of each window (windows, B, N, I)."""
    if has_fused_kernel(x):
        return _scan_fused(x, dt, A, b, c, state, keep, train)
    plan = ScanPlan(x, A.shape[0])
    dtx, dt, b, c = plan.pad(dt * x), plan.pad(dt), plan.pad(b), plan.pad(c)
    keep = None if keep is None else plan.pad(keep, 1.0)
    y, last = torch.empty_like(dtx), x.new_empty(x.shape[0], *A.shape)
    starts = x.new_empty(plan.windows if train else 0, *last.shape)
    room = ScanBuffers(plan, x, A, "a", "h")
    for rows in plan.blocks():
        h0 = torch.zeros_like(last[rows]) if state is None else state[rows]
        for w in range(plan.windows):
            if train:
                starts[w, rows] = h0
            dt_, dtx_, b_, c_ = (plan.window(t, rows, w) for t in (dt, dtx, b, c))
            _, h = _states(room, dt_, dtx_, A, b_, None if keep is None else plan.window(keep, rows, w), h0)
            plan.window(y, rows, w).copy_((c_[..., None, :] @ h[1:]).squeeze(-2))
            h0 = h[-1, :, -1]
        last[rows] = h0
    return y[:, : plan.T].contiguous(), last, starts


@_scan.register_fake
def _(x, dt, A, b, c, state, keep, train):
    shape = (x.shape[0], *A.shape)
    windows = -(-x.shape[1] // FUSED_WINDOW) if has_fused_kernel(x) else ScanPlan(x, A.shape[0]).windows
    return x.new_empty(x.shape), x.new_empty(shape), x.new_empty(windows if train else 0, *shape)  # contiguous


@torch.library.custom_op("anyformer::selective_scan_backward", mutates_args=())
def _scan_backward(
    gy: Tensor,
    glast: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    b: Tensor,
    c: Tensor,
    starts: Tensor,
    keep: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x, dt, A, b, c and the first state. The gradient of h[t] is g[t] = C[t] gy[t] + a[t + 1]
    g[t + 1]; the others are sums of terms at t."""
    if has_fused_kernel(x):
        return _scan_fused_backward(gy, glast, x, dt, A, b, c, starts, keep)
    plan = ScanPlan(x, A.shape[0])
    dtx, dt_all, b, c, gy = plan.pad(dt * x), plan.pad(dt), plan.pad(b), plan.pad(c), plan.pad(gy)
    keep = None if keep is None else plan.pad(keep, 1.0)
    gdtx, gdt, gA = torch.empty_like(dtx), torch.empty_like(dtx), torch.zeros_like(A)
    gb, gc, gstate = torch.empty_like(b), torch.empty_like(c), torch.empty_like(glast)
    room = ScanBuffers(plan, x, A, "a", "h", "g")
    for rows in plan.blocks():
        enters = glast[rows]
        for w in reversed(range(plan.windows)):
            dt_, dtx_, b_, c_, gy_ = (plan.window(t, rows, w) for t in (dt_all, dtx, b, c, gy))
            kept = None if keep is None else plan.window(keep, rows, w)
            a, h = _states(room, dt_, dtx_, A, b_, kept, starts[w, rows])
            g = torch.mul(c_[..., None], gy_[..., None, :], out=room("g", dt_))
            g[-1, :, -1] += enters
            _recur(g.unbind(0)[::-1], a.unbind(0)[:0:-1])
            if a.shape[2] > 1:
                after = torch.ones_like(a)
                after[:-1] = a[1:]
                _products(after.unbind(0)[::-1])
                g.addcmul_(after, _join(a[0] * g[0], a[0] * after[0], range(a.shape[2])[::-1]))
            enters = a[0, :, 0] * g[0, :, 0]
            plan.window(gc, rows, w).copy_((gy_[..., None, :] @ h[1:].mT).squeeze(-2))
            plan.window(gb, rows, w).copy_((dtx_[..., None, :] @ g.mT).squeeze(-2))
            plan.window(gdtx, rows, w).copy_((b_[..., None, :] @ g).squeeze(-2))
            a.mul_(h[:-1]).mul_(g)  # the gradient of dt[t] A
            gA += torch.mul(a, dt_[..., None, :], out=g).sum((0, 1, 2))
            plan.window(gdt, rows, w).copy_(a.mul_(A).sum(-2))
        gstate[rows] = enters
    T = plan.T
    gdtx, gdt = gdtx[:, :T], gdt[:, :T]
    each = gdtx * dt, torch.addcmul(gdt, gdtx, x), gb[:, :T], gc[:, :T]
    gx, gdt, gb, gc = (t.contiguous() for t in each)
    return gx, gdt, gA, gb, gc, gstate


@_scan_backward.register_fake
def _(gy, glast, x, dt, A, b, c, starts, keep):
    return tuple(t.new_empty(t.shape) for t in (x, dt, A, b, c, glast))


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    x, dt, A, b, c, state, keep, _ = inputs
    ctx.had_state = state is not None
    ctx.save_for_backward(x, dt, A, b, c, output[2], keep)


def _backward(ctx: Any, gy: Tensor, glast: Tensor, _: Tensor) -> Any:
    *grads, gstate = _scan_backward(gy, glast, *ctx.saved_tensors)
    return *grads, gstate if ctx.had_state else None, None, None


_scan.register_autograd(_backward, setup_context=_save)


# -- Triton -----------------------------------------------------------------------------------------------------------


def has_fused_kernel(x: Tensor) -> bool:
    return HAS_TRITON and x.is_cuda and x.dtype == torch.float32


def _scan_fused(
    x: Tensor, dt: Tensor, A: Tensor, b: Tensor, c: Tensor, state: Tensor | None, keep: Tensor | None, train: bool
) -> tuple[Tensor, Tensor, Tensor]:
    from anyformer.kernels.scan_triton import forward

    (B, T, I), N = x.shape, A.shape[0]
    x, dt, A, b, c = (t.contiguous() for t in (x, dt, A, b, c))
    y, last = torch.empty_like(x), x.new_empty(B, N, I)
    starts = x.new_empty(-(-T // FUSED_WINDOW) if train else 0, B, N, I)
    first, kept = (x if t is None else t.contiguous() for t in (state, keep))
    asked = state is not None, keep is not None, train
    sizes = B, T, I, N, *asked, FUSED_WINDOW, 1 << max(N - 1, 1).bit_length(), CHANNELS
    forward[(B, -(-I // CHANNELS))](x, dt, A, b, c, first, kept, y, last, starts, *sizes, num_warps=1)
    return y, last, starts


def _scan_fused_backward(
    gy: Tensor,
    glast: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    b: Tensor,
    c: Tensor,
    starts: Tensor,
    keep: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    from anyformer.kernels.scan_triton import backward

    (B, T, I), N = x.shape, A.shape[0]
    gy, glast, x, dt, A, b, c = (t.contiguous() for t in (gy, glast, x, dt, A, b, c))
    blocks, states = -(-I // CHANNELS), 1 << max(N - 1, 1).bit_length()
    room = x.new_empty(blocks * B, FUSED_WINDOW, states, CHANNELS)
    gx, gdt, gA, gfirst = torch.empty_like(x), torch.empty_like(x), x.new_empty(B, N, I), torch.empty_like(glast)
    gb, gc = x.new_empty(blocks, B, T, N), x.new_empty(blocks, B, T, N)
    given = gy, glast, x, dt, A, b, c, starts, x if keep is None else keep.contiguous(), room
    sizes = keep is not None, FUSED_WINDOW, states, CHANNELS
    backward[(B, blocks)](*given, gx, gdt, gA, gb, gc, gfirst, B, T, I, N, *sizes, num_warps=1)
    return gx, gdt, gA.sum(0), gb.sum(0), gc.sum(0), gfirst
