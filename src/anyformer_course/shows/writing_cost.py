"""Writing a long text: FLOPs and bytes of each new token, and of all tokens so far, for attention, RWKV and Mamba.

Attention reads a cache that grows with the text; a recurrence updates a state of fixed size. Without a cache, attention
reads the whole text again for every token.
"""

from __future__ import annotations

from typing import Any

from anyformer.look.figures import new
from anyformer_course.shown import Shown, Table

LENGTHS = (1024, 4096, 16384, 65536)


def example(*names: str) -> Shown:
    """Count descriptions by name (default: gpt2, rwkv-4-169m and mamba-130m)."""
    import torch

    import anyformer as af
    from anyformer.parts.base import HasLength

    names = names or ("gpt2", "rwkv-4-169m", "mamba-130m")
    steps, state, total = {}, {}, {}
    for name in names:
        spec: Any = af.spec(name)
        if not spec.left_to_right:
            raise ValueError(f"{name} does not write texts; give decoders, such as gpt2")
        position = spec.embedding.position
        if isinstance(position, HasLength) and position.length:
            spec = af.override(spec, {"embedding.position.length": max(LENGTHS)})
        counted = af.count(spec)
        # the cost of a step is a + b n: two counts give a and b, and n steps cost n a + b n (n + 1) / 2
        grows = counted.state(1, LENGTHS[0]) != counted.state(1, LENGTHS[-1])  # a fixed state has a fixed cost
        near = counted.decode(LENGTHS[0]).flops
        far = counted.decode(LENGTHS[-1]).flops if grows else near
        slope = (far - near) / (LENGTHS[-1] - LENGTHS[0])
        start = near - slope * LENGTHS[0]
        steps[name] = [start + slope * n for n in LENGTHS]
        state[name] = [counted.state(1, n, torch.bfloat16) for n in LENGTHS]
        total[name] = [n * start + slope * n * (n + 1) / 2 for n in LENGTHS]

    def draw() -> Any:
        figure, axes = new(3, 1, 13, 4)
        columns = (
            ("FLOPs of one token", steps),
            ("FLOPs of the whole text", total),
            ("bytes of the cache or state", state),
        )
        for axis, (title, values) in zip(axes[0], columns, strict=True):
            for name in names:
                axis.loglog(LENGTHS, values[name], marker="o", label=name, base=2)
            axis.set_yscale("log", base=10)
            axis.set(title=title, xlabel="tokens written")
            axis.grid(alpha=0.3)
        axes[0, 0].legend()
        return figure

    columns = tuple(f"after {n} tokens" for n in LENGTHS)
    growth = {name: steps[name][-1] / steps[name][0] for name in names}
    return Shown(
        f"From {LENGTHS[0]:,} to {LENGTHS[-1]:,} tokens, the FLOPs of a new token grow "
        + ", ".join(f"{growth[name]:.1f} times ({name})" for name in names) + ".",
        [
            Table(title, ("model", *columns), [[name, *(value / unit for value in values[name])] for name in names])
            for title, values, unit in (
                ("million FLOPs of one token", steps, 1e6), ("10^12 FLOPs of the whole text", total, 1e12),
                ("megabytes of the cache or state, bf16", state, 1e6),
            )
        ],
        draw,
    )  # fmt: skip
