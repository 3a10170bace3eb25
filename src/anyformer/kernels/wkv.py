"""RWKV-4's weighted average over the past [Peng et al. 2023]: per channel,

    y[t] = (sum_{i<t} e^{(t-1-i) decay + k[i]} v[i] + e^{u + k[t]} v[t]) / (the same sum without v)

Three forms of one function: `wkv_by_steps` (the definition), `wkv` (training, prompts) and `wkv_step` (one token).
Numerator and denominator are stored divided by e^max, about the largest weight in them so far, so that no key
overflows. The value of max does not matter as long as both use the same: it cancels, and has no gradient. It is rounded
to an integer, because differences of integers are exact; if it changed by a thousandth per token, errors would
accumulate.

`wkv` processes windows as kernels/scan.py does. A window is cut into segments. A segment adds one sum to the state, so
a short loop over segments gives the state before each of them, and then all segments run in parallel. The state before
each window is kept for the backward pass, which recomputes the others.

B rows, T tokens, A channels; L steps in each of G segments, R rows at once; all in fp32 (or fp64).
k, v (B, T, A)   decay, negative, and u (A,)   state (B, 3, A): numerator, denominator, max; zeros are an empty past
keep (B, T), 0 at the first token of a document
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyformer.kernels.scan import ScanPlan

EMPTY = -1e30  # log of weight 0
MAX_LOG_RATIO = 40.0  # if a token outweighs the past by e^40, the past does not matter in any precision


def wkv_by_steps(
    decay: Tensor, u: Tensor, k: Tensor, v: Tensor, state: Tensor | None = None, keep: Tensor | None = None
) -> Tensor:
    """The definition, one token at a time: the reference for `wkv` and `wkv_step`."""
    state = k.new_zeros(k.shape[0], 3, k.shape[2]) if state is None else state
    outs = []
    for t in range(k.shape[1]):
        if keep is not None:
            state = state * keep[:, t, None, None]
        y, state = wkv_step(decay, u, k[:, t], v[:, t], state)
        outs.append(y)
    return torch.stack(outs, dim=1)


def wkv_step(decay: Tensor, u: Tensor, k: Tensor, v: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Compute one token: k, v (B, A) -> y (B, A) and the new state."""
    top = _top(state)
    r = torch.exp((u + k - top).clamp(max=MAX_LOG_RATIO))
    y = (state[:, 0] + r * v) / (state[:, 1] + r)
    new = torch.maximum(top + torch.log(state[:, 1]) + decay, k).round().detach()
    a, b = torch.exp(top - new + decay), torch.exp(k - new)
    return y, torch.stack((a * state[:, 0] + b * v, a * state[:, 1] + b, new), dim=1)


def wkv_last(decay: Tensor, k: Tensor, v: Tensor, state: Tensor, age: Tensor, seen: Tensor | None = None) -> Tensor:
    """Return the state after a text. `age` (B, 1 + T) is the number of tokens since the initial state and since each
    token; `seen` (B, 1 + T) is False for those that are forgotten or padding."""
    age = age[..., None].to(k.dtype)
    before, keys = _top(state)[:, None] + age[:, :1] * decay, torch.addcmul(k, age[:, 1:], decay)
    if seen is not None:
        first, seen = seen[:, :1, None], seen[:, 1:, None]
        before, keys = before.masked_fill(~first, EMPTY), keys.masked_fill(~seen, EMPTY)
    top = torch.maximum(before, keys.amax(1, keepdim=True)).clamp(min=EMPTY).round().detach()
    a, b = _exp(before - top), _exp(keys - top)
    if seen is not None:
        a, b = a * first, b * seen
    return torch.cat((a * state[:, :2] + torch.stack(((b * v).sum(1), b.sum(1)), dim=1), top), dim=1)


def _top(state: Tensor) -> Tensor:
    """Return max (B, A), the logarithm of the factor that a state is divided by."""
    return state[:, 2].masked_fill(state[:, 1] == 0, EMPTY)


def wkv(
    decay: Tensor, u: Tensor, k: Tensor, v: Tensor, state: Tensor | None = None, keep: Tensor | None = None
) -> Tensor:
    """Return y (B, T, A), computed in windows."""
    train = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (decay, u, k, v, state))
    return _wkv(decay, u, k, v, state, keep, train)[0]


# -- windows ----------------------------------------------------------------------------------------------------------


class _Room(dict[str, Tensor]):
    """Memory for the windows of a call, reused so that it stays in the CPU's cache."""

    def __call__(self, name: str, like: Tensor, *shape: int) -> Tensor:
        if name not in self or self[name].shape != shape:
            self[name] = like.new_empty(shape)
        return self[name]


def _exp(x: Tensor) -> Tensor:
    """Compute e^x in place, at least e^-70: smaller values do not matter, and denormal numbers are slow."""
    return x.clamp_(min=-70).exp_()


def _tops(m: Tensor, k: Tensor, decay: Tensor, drop: Tensor | None) -> None:
    """Compute the max after each key, m[1:], from the first, m[0], and round to integers."""
    tops = m.unbind(0)
    for l, key in enumerate(k.unbind(0)):
        faded = torch.add(tops[l], decay, out=tops[l + 1])
        if drop is not None:
            faded.add_(drop[l])
        torch.maximum(faded, key, out=faded)
    m[1:].round_()


def _fade(m: Tensor, decay: Tensor, drop: Tensor | None, out: Tensor) -> Tensor:
    """Compute the decay of the past at each key."""
    torch.sub(m[:-1], m[1:], out=out).add_(decay)
    return _exp(out if drop is None else out.add_(drop))


def _sums(h: Tensor, a: Tensor) -> None:
    """h[l + 1] += a[l] h[l], in order: numerators and denominators (L + 1, 2, ...)."""
    sums = h.unbind(0)
    for l, weight in enumerate(a.unbind(0)):
        sums[l + 1].addcmul_(weight, sums[l])


class _Window:
    """One window and the states before each of its tokens: k, v (L, R, G, A), keep (L, R, G), start (R, 3, A)."""

    def __init__(
        self, room: _Room, decay: Tensor, u: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, start: Tensor
    ) -> None:
        (L, R, G, A), self.room, self.decay = k.shape, room, decay
        self.k, self.v = room("k", k, L, R, G, A).copy_(k), room("v", k, L, R, G, A).copy_(v)
        self.drop = None if keep is None else (1 - keep[..., None]) * EMPTY
        self.m, r = room("m", k, L + 1, R, G, A), room("r", k, L, R, G, A)
        self.h = h = room("h", k, L + 1, 2, R, G, A)
        self.m[0, :, 0], h[0, :, :, 0] = _top(start), start[:, :2].transpose(0, 1)
        if G > 1:
            self.enter(r, L)
        _tops(self.m, self.k, decay, self.drop)
        self.m[-1, :, :-1] = self.m[0, :, 1:]  # both are the same max, possibly rounded differently: use one of them
        self.b = _exp(torch.sub(self.k, self.m[1:], out=h[1:, 1]))
        torch.mul(self.b, self.v, out=h[1:, 0])
        self.a = _fade(self.m, decay, self.drop, room("a", k, L, R, G, A))
        # weight of the token relative to the past before it
        torch.sub(self.k, self.m[:-1], out=r).add_(u)
        self.r = (r if self.drop is None else r.sub_(self.drop)).clamp_(-70, MAX_LOG_RATIO).exp_()

    def enter(self, e: Tensor, L: int) -> None:
        """Compute the state before each segment: a whole segment acts as one key with the sum of its weights."""
        since = torch.arange(L - 1, -1, -1, dtype=e.dtype, device=e.device).view(L, 1, 1, 1)
        torch.addcmul(self.k, since, self.decay, out=e)
        whole = None
        if self.drop is not None:
            later = self.drop.flip(0).cumsum(0).flip(0)
            e.add_(later - self.drop)
            whole = later[0].transpose(0, 1)
        key = e.amax(0).round_()
        b = _exp(e.sub_(key))
        weight = b.sum(0)
        added = torch.stack((b.mul_(self.v).sum(0), weight))  # (2, R, G, A)
        key, m, h = key.transpose(0, 1), self.m[0].transpose(0, 1), self.h[0].movedim(2, 0)
        tops, sums, decay = torch.cat((m, m[:1])), torch.cat((h, h[:1])), L * self.decay
        _tops(tops, key, decay, whole)
        a, b = _fade(tops, decay, whole, torch.empty_like(m)), _exp(key - tops[1:])
        torch.mul(added.movedim(2, 0), b[:, None], out=sums[1:])
        _sums(sums, a)
        self.m[0], self.h[0] = tops[:-1].transpose(0, 1), sums[:-1].movedim(0, 2)

    def out(self, y: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return y, the denominator, and the state after the window."""
        _sums(self.h, self.a)
        after = torch.cat((self.h[-1, :, :, -1].transpose(0, 1), self.m[-1, :, None, -1]), dim=1)
        total = torch.add(self.h[:-1, 1], self.r, out=self.room("total", self.r, *self.r.shape))
        top = torch.addcmul(self.h[:-1, 0], self.r, self.v, out=self.room("top", self.r, *self.r.shape))
        return torch.div(top, total, out=top if y is None else y), total, after

    def backward(self, gy: Tensor, enters: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return the gradients of k, v, u, decay and the state before (2, R, A), given those of y and the state
        after."""
        b = self.b.clone()
        y, total, _ = self.out()
        L, R, G, A = y.shape
        g = self.room("g", y, L + 1, 2, R, G, A)  # gradients of the sums before each token, and after the last
        torch.div(gy, total, out=g[:-1, 0])
        torch.mul(g[:-1, 0], y, out=g[:-1, 1]).neg_()
        gv = torch.mul(self.r, g[:-1, 0], out=total)
        gk = torch.mul(self.r, g[:-1, 1], out=y).addcmul_(gv, self.v)
        gu = gk.sum((0, 1, 2))
        g[-1, :, :, -1] = enters
        if G > 1:  # the gradient that each segment passes to the previous one
            steps = torch.arange(L + 1, dtype=y.dtype, device=y.device).view(-1, 1, 1, 1)
            left = (self.m[0] - self.m).addcmul_(steps, self.decay)  # log decay since the segment's start
            if self.drop is not None:
                left[1:] += self.drop.cumsum(0)
            _exp(left)
            handed = (left[:-1, None] * g[:-1]).sum(0)
            for s in range(G - 1, 0, -1):
                torch.addcmul(handed[:, :, s], left[-1, :, s], g[-1, :, :, s], out=g[-1, :, :, s - 1])
        sums = g.unbind(0)
        for l, weight in reversed(list(enumerate(self.a.unbind(0)))):
            sums[l].addcmul_(weight, sums[l + 1])
        after, before = g[1:], self.h[:-1]
        gv.addcmul_(b, after[:, 0])
        gk.addcmul_(b, torch.addcmul(after[:, 1], after[:, 0], self.v))
        gdecay = self.a.mul_(before.mul_(after).sum(1)).sum((0, 1, 2))
        return gk, gv, gu, gdecay, g[0, :, :, 0].clone()


@torch.library.custom_op("anyformer::wkv", mutates_args=())
def _wkv(
    decay: Tensor, u: Tensor, k: Tensor, v: Tensor, state: Tensor | None, keep: Tensor | None, train: bool
) -> tuple[Tensor, Tensor]:
    """Return y and, if `train`, the state before each window (windows, B, 3, A)."""
    plan = ScanPlan(k, 1)
    state = k.new_zeros(k.shape[0], 3, k.shape[2]) if state is None else state
    k, v = plan.pad(k), plan.pad(v)
    keep = None if keep is None else plan.pad(keep, 1.0)
    room, y, starts = _Room(), torch.empty_like(k), k.new_empty(plan.windows if train else 0, *state.shape)
    for rows in plan.blocks():
        start = state[rows]
        for w in range(plan.windows):
            if train:
                starts[w, rows] = start
            k_, v_ = plan.window(k, rows, w), plan.window(v, rows, w)
            kept = None if keep is None else plan.window(keep, rows, w)
            window = _Window(room, decay, u, k_, v_, kept, start)
            *_, start = window.out(plan.window(y, rows, w))
    return y[:, : plan.T].contiguous(), starts


@_wkv.register_fake
def _(decay, u, k, v, state, keep, train):
    return k.new_empty(k.shape), k.new_empty(ScanPlan(k, 1).windows if train else 0, k.shape[0], 3, k.shape[2])


@torch.library.custom_op("anyformer::wkv_backward", mutates_args=())
def _wkv_backward(
    gy: Tensor, decay: Tensor, u: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, starts: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    plan = ScanPlan(k, 1)
    gy, k, v = plan.pad(gy), plan.pad(k), plan.pad(v)
    keep = None if keep is None else plan.pad(keep, 1.0)
    gdecay, gu, gk, gv = (torch.zeros_like(t) for t in (decay, u, k, v))
    room, gstate = _Room(), torch.empty_like(starts[0])
    for rows in plan.blocks():
        enters = torch.zeros_like(gstate[rows, :2]).transpose(0, 1)
        for w in reversed(range(plan.windows)):
            gy_, k_, v_ = (plan.window(t, rows, w) for t in (gy, k, v))
            kept = None if keep is None else plan.window(keep, rows, w)
            window = _Window(room, decay, u, k_, v_, kept, starts[w, rows])
            one, two, three, four, enters = window.backward(gy_, enters)
            plan.window(gk, rows, w).copy_(one)
            plan.window(gv, rows, w).copy_(two)
            gu += three
            gdecay += four
        gstate[rows, :2] = enters.transpose(0, 1)
        gstate[rows, 2] = (starts[0, rows, :2] * gstate[rows, :2]).sum(1)
    return gdecay, gu, gk[:, : plan.T].contiguous(), gv[:, : plan.T].contiguous(), gstate


@_wkv_backward.register_fake
def _(gy, decay, u, k, v, keep, starts):
    return tuple(t.new_empty(t.shape) for t in (decay, u, k, v, starts[0]))


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    decay, u, k, v, state, keep, _ = inputs
    ctx.had_state = state is not None
    ctx.save_for_backward(decay, u, k, v, keep, output[1])


def _backward(ctx: Any, gy: Tensor, _: Tensor) -> Any:
    *grads, gstate = _wkv_backward(gy, *ctx.saved_tensors)
    return *grads, gstate if ctx.had_state else None, None, None


_wkv.register_autograd(_backward, setup_context=_save)
