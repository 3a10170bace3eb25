"""Cost by length: operations of full attention and of efficient mixers, from short to long texts.

Two layers of each mixer (width 256, 4 heads) read one text. Operations are counted on shapes only, so the numbers do
not depend on your machine. An exponent of 1 is linear in the length, 2 is quadratic.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

import anyformer as af
from anyformer import families
from anyformer.look import figures
from anyformer.models import Model
from anyformer.specs.codec import override
from anyformer_course.lab.forward_cost import forward_cost
from anyformer_course.shown import Shown, Table

WIDTH, HEADS, DEPTH, VOCAB = 256, 4, 2, 500


def read(model_type: str, architecture: str | None = None, **config: Any) -> Callable[[int], Model]:
    """Return a function that describes this published family for texts of a given length."""
    shape: dict[str, Any] = {"vocab_size": VOCAB, "hidden_size": WIDTH, "num_hidden_layers": DEPTH}
    shape |= {"architectures": [architecture]} if architecture else {}
    return lambda length: families.find(model_type).read({**shape, **config})


def encoder(model_type: str, architecture: str | None = None, op: Any = None, **config: Any) -> Callable[[int], Model]:
    shape = {"num_attention_heads": HEADS, "intermediate_size": 2 * WIDTH, **config}
    changes = {} if op is None else {"encoder.layers.attention.op": op}
    return lambda length: override(
        read(model_type, architecture, **shape, max_position_embeddings=length + 2)(length), changes
    )


def mixers() -> dict[str, Callable[[int], Model]]:
    P = af.parts
    performer = P.LinearAttention(num_heads=HEADS, features=P.SoftmaxFeatures(count=128))
    points = P.Seeds(num_heads=HEADS, count=64)
    return {
        "full": encoder("roberta", "RobertaModel"),
        "longformer": encoder("longformer", "LongformerModel", attention_window=512),
        "bigbird": encoder("big_bird", "BigBirdModel"),
        "reformer": encoder("roberta", "RobertaModel", P.LSHAttention(num_heads=HEADS)),
        "linformer": encoder("linformer"),
        "nystromformer": lambda length: encoder(
            "nystromformer", "NystromformerModel", segment_means_seq_len=length
        )(length),
        "set-transformer": encoder("roberta", "RobertaModel", P.InducedAttention(num_heads=HEADS, points=points)),
        "luna": encoder("roberta", "RobertaModel", P.LunaAttention(num_heads=HEADS, tokens=64)),
        "performer": encoder("roberta", "RobertaModel", performer),
        "mamba": read("mamba", "MambaModel"),
        "rwkv": read("rwkv", "RwkvModel", context_length=2**20),
    }  # fmt: skip


GROUPS = {  # [Tay et al. 2020]
    "full": "all pairs", "longformer": "fixed pattern", "bigbird": "fixed pattern", "linformer": "low rank",
    "nystromformer": "low rank", "set-transformer": "memory", "luna": "memory", "performer": "kernel",
    "reformer": "learned pattern", "mamba": "recurrence", "rwkv": "recurrence",
}  # fmt: skip


def example(names: str = "", *, lengths: str = "1024 4096 16384") -> Shown:
    """Count the operations of the named mixers (default: all) for texts of each length in `lengths`."""
    known = mixers()
    chosen = names.split() or list(known)
    try:
        sizes = sorted(int(each) for each in str(lengths).split())
    except ValueError:
        sizes = []
    if len(sizes) < 2 or sizes[0] < 1024 or sizes[-1] > 2**17 or any(size % 1024 for size in sizes):
        raise ValueError(f"lengths is {lengths!r}; give two or more multiples of 1024, up to 131072")
    if unknown := [name for name in chosen if name not in known]:
        raise ValueError(f"no mixer is called {unknown[0]!r}; choose from {', '.join(known)}")
    flops = {name: [forward_cost(known[name](size), size).flops for size in sizes] for name in chosen}
    logs = [math.log(size) for size in sizes]
    exponents = {
        name: statistics.linear_regression(logs, [math.log(each) for each in row]).slope for name, row in flops.items()
    }

    def draw() -> Any:
        figure, axes = figures.new(1, 1, 7, 4.2)
        for i, (name, row) in enumerate(flops.items()):
            style = "o-" if name == "full" else "o--"
            axes[0, 0].loglog(sizes, row, style, label=f"{name} ({exponents[name]:.2f})", markersize=4, color=f"C{i}")
        axes[0, 0].set(xlabel="tokens", title="operations of a pass (exponent)")
        axes[0, 0].set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes[0, 0].set_xticks([], minor=True)
        axes[0, 0].legend(frameon=False, fontsize=8)
        return figure

    steepest = max(exponents, key=lambda name: exponents[name])
    others = [value for name, value in exponents.items() if name != steepest]
    return Shown(
        f"From {sizes[0]:,} to {sizes[-1]:,} tokens the operations of {steepest} grow with exponent "
        f"{exponents[steepest]:.2f}" + (f", of the others with {span(others)}." if others else "."),
        [
            Table(
                f"operations of a pass, {DEPTH} layers of width {WIDTH}",
                ("mixer", "kind", *(f"{size:,} tokens" for size in sizes), "exponent"),
                [[name, GROUPS[name], *row, exponents[name]] for name, row in flops.items()],
            )
        ],
        draw,
    )


def span(values: list[float]) -> str:
    """Return "1.00" or "0.98 to 1.02"."""
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"
