"""Triton programs of `kernels/scan.py`: the state stays in registers. Imported only if Triton is installed.

One program loops over the tokens of one row for CHANNELS channels. Sums over channels (the gradients of b and c) are
written per program and added up afterwards, so that two runs are identical. The backward pass recomputes the states of
WINDOW steps at a time, from the state that the forward pass kept, into memory of the program.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def forward(
    x,
    dt,
    A,
    b,
    c,
    first,
    keep,
    y,
    last,
    starts,
    B,
    T,
    I,
    N,
    FIRST: tl.constexpr,
    KEEP: tl.constexpr,
    TRAIN: tl.constexpr,
    WINDOW: tl.constexpr,
    STATES: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    row, i, n = tl.program_id(0), tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS), tl.arange(0, STATES)
    here, known = i < I, n < N
    both = known[:, None] & here[None, :]
    place = n[:, None] * I + i[None, :]
    rate = tl.load(A + place, mask=both, other=0.0)
    h = tl.zeros((STATES, CHANNELS), tl.float32)
    if FIRST:
        h = tl.load(first + row * N * I + place, mask=both, other=0.0)
    for t in tl.range(0, T, num_stages=3):
        if TRAIN:
            if t % WINDOW == 0:
                tl.store(starts + ((t // WINDOW) * B + row).to(tl.int64) * N * I + place, h, mask=both)
        at = (row * T + t).to(tl.int64)
        step, value = tl.load(dt + at * I + i, mask=here, other=0.0), tl.load(x + at * I + i, mask=here, other=0.0)
        write, read = tl.load(b + at * N + n, mask=known, other=0.0), tl.load(c + at * N + n, mask=known, other=0.0)
        decay = tl.exp(step[None, :] * rate)
        if KEEP:
            decay *= tl.load(keep + at)
        h = decay * h + (step * value)[None, :] * write[:, None]
        tl.store(y + at * I + i, tl.sum(h * read[:, None], 0), mask=here)
    tl.store(last + row * N * I + place, h, mask=both)


@triton.jit
def backward(
    gy,
    glast,
    x,
    dt,
    A,
    b,
    c,
    starts,
    keep,
    room,
    gx,
    gdt,
    gA,
    gb,
    gc,
    gfirst,
    B,
    T,
    I,
    N,
    KEEP: tl.constexpr,
    WINDOW: tl.constexpr,
    STATES: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Write all gradients; gA (B, N, I) has one partial sum per row, gb and gc (blocks, B, T, N) one per channel
    block."""
    row, i, n = tl.program_id(0), tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS), tl.arange(0, STATES)
    here, known = i < I, n < N
    both = known[:, None] & here[None, :]
    place = n[:, None] * I + i[None, :]
    rate = tl.load(A + place, mask=both, other=0.0)
    own = (tl.program_id(1) * B + row).to(tl.int64)
    room += own * WINDOW * STATES * CHANNELS + n[:, None] * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    g = tl.load(glast + row * N * I + place, mask=both, other=0.0)
    grate = tl.zeros((STATES, CHANNELS), tl.float32)
    windows = tl.cdiv(T, WINDOW)
    for back in range(0, windows):
        begin = (windows - 1 - back) * WINDOW
        steps = tl.minimum(WINDOW, T - begin)
        h = tl.load(starts + ((windows - 1 - back) * B + row).to(tl.int64) * N * I + place, mask=both, other=0.0)
        for k in range(0, steps):
            tl.store(room + k * STATES * CHANNELS, h)  # state before this step
            at = (row * T + begin + k).to(tl.int64)
            step, value = tl.load(dt + at * I + i, mask=here, other=0.0), tl.load(x + at * I + i, mask=here, other=0.0)
            decay = tl.exp(step[None, :] * rate)
            if KEEP:
                decay *= tl.load(keep + at)
            h = decay * h + (step * value)[None, :] * tl.load(b + at * N + n, mask=known, other=0.0)[:, None]
        tl.debug_barrier()
        for k in range(0, steps):
            j = steps - 1 - k
            at = (row * T + begin + j).to(tl.int64)
            step, value = tl.load(dt + at * I + i, mask=here, other=0.0), tl.load(x + at * I + i, mask=here, other=0.0)
            write, read = tl.load(b + at * N + n, mask=known, other=0.0), tl.load(c + at * N + n, mask=known, other=0.0)
            above = tl.load(gy + at * I + i, mask=here, other=0.0)
            before = tl.load(room + j * STATES * CHANNELS)
            decay = tl.exp(step[None, :] * rate)
            if KEEP:
                decay *= tl.load(keep + at)
            written = step * value
            after = decay * before + written[None, :] * write[:, None]
            g += read[:, None] * above[None, :]  # gradient of the state after this step
            mine = (own * T + begin + j) * N + n
            tl.store(gc + mine, tl.sum(after * above[None, :], 1), mask=known)
            tl.store(gb + mine, tl.sum(g * written[None, :], 1), mask=known)
            into = tl.sum(g * write[:, None], 0)  # gradient of dt x
            g *= decay
            by_decay = g * before  # gradient of dt A
            tl.store(gx + at * I + i, into * step, mask=here)
            tl.store(gdt + at * I + i, into * value + tl.sum(by_decay * rate, 0), mask=here)
            grate += by_decay * step[None, :]
        tl.debug_barrier()
    tl.store(gA + row * N * I + place, grate, mask=both)
    tl.store(gfirst + row * N * I + place, g, mask=both)
