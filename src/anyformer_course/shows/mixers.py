"""Efficient mixers: the T x T weights that each one replaces attention with, how many pairs it compares, its rank.

One head reads the same queries and keys with every mixer. Sparse mixers leave out pairs, low-rank mixers compare each
token with a few means or projections, kernel mixers replace exp(q k) by products of features, Synthesizer compares
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anyformer.look.figures import heat_maps
from anyformer.specs.field_types import Count
from anyformer.specs.messages import amount
from anyformer_course.shown import Shown, Table
from anyformer_course.words import label_rows, vectors

TEXT = "it was the best of times it was the worst of times"
K = 8  # channels of the head


@torch.no_grad()
def example(text: str = TEXT, *, mixer: str = "linformer", few: Count = 4, features: int = 64, seed: int = 0) -> Shown:
    """Compute the weights of every mixer, and list those of one `mixer`. `few`: number of projected keys or landmarks;
    `features`: of Performer."""
    from anyformer.parts.position.absolute import sinusoids

    words, x = vectors(text, K, seed)
    if len(words) < few or len(words) % few:
        count = amount(len(words), "word")
        raise ValueError(f"the text has {count}; Linformer and Nystromformer need a multiple of few={few}")
    draws = torch.Generator().manual_seed(seed)
    x = x + sinusoids(len(words), K, 10000.0, True)
    q, k = (x @ torch.randn(K, K, generator=draws) / math.sqrt(K) for _ in range(2))
    everything = {name: make(q, k, few, features, draws) for name, make in MIXERS.items()}
    if mixer not in everything:
        raise ValueError(f"no mixer is called {mixer!r}; use one of {', '.join(everything)}")
    full = everything["full"][0]
    rows = []
    for name, (weights, pairs) in everything.items():
        zeros = float((weights == 0).float().mean())
        rank = int(torch.linalg.matrix_rank(weights, rtol=1e-4))
        kind = "sparse" if zeros else "low rank" if rank < len(words) else "full"
        if name in ("performer", "linear", "synthesizer"):
            kind = "no comparison" if name == "synthesizer" else "kernel"
        rows.append([name, kind, zeros, rank, float((weights - full).abs().mean()), pairs(len(words)), pairs(4096)])

    def draw() -> Any:
        return heat_maps([each[0] for each in everything.values()], [*everything], "weights: rows read columns", words)

    chosen = next(row for row in rows if row[0] == mixer)
    return Shown(
        f"{mixer} computes {chosen[6]:,} numbers per head instead of the {4096**2:,} scores of 4,096 tokens; its "
        f"weights ({chosen[1]}) differ from full attention by {chosen[4]:.3f} on average.",
        [
            Table("mixers: difference from full attention, and the numbers that they compute",
                  ("mixer", "kind", "zeros", "rank", "difference", f"for {len(words)} words", "for 4,096"), rows),
            Table(f"weights of {mixer}", ("word", *words),
                  label_rows(words, everything[mixer][0])),
        ],
        draw,
    )  # fmt: skip


Mixer = Callable[[Tensor, Tensor, int, int, torch.Generator], tuple[Tensor, Callable[[int], int]]]


def softmax(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.T / math.sqrt(K)).softmax(-1)


def masked_attention(mask: Callable[..., Any], per_token: int) -> Mixer:
    """Attention to the keys that a library mask allows; `per_token`: scores per token of a long text."""

    def make(q: Tensor, k: Tensor, few: int, features: int, draws: torch.Generator) -> tuple[Tensor, Any]:
        from anyformer.runtime.visibility import Rows

        index = torch.arange(len(q))
        zero = torch.zeros(1, 1, dtype=torch.long)
        allowed = mask(len(q)).allows(zero, index[:, None], index[None, :], Rows()).expand(len(q), len(q))
        weights = (q @ k.T / math.sqrt(K)).masked_fill(~allowed, -math.inf).softmax(-1)
        return weights, lambda n: int(allowed.sum()) if n == len(q) else n * per_token

    return make


def longformer(q: Tensor, k: Tensor, *rest: Any) -> tuple[Tensor, Any]:
    from anyformer.parts.mask import Global, Window

    return masked_attention(lambda n: Window(size=2, ahead=True) | Global(first=1), 3 + 2)(q, k, *rest)


def big_bird(q: Tensor, k: Tensor, *rest: Any) -> tuple[Tensor, Any]:
    from anyformer.parts.mask import Global, RandomBlocks, Window

    return masked_attention(
        lambda n: Window(size=2, ahead=True) | Global(first=1) | RandomBlocks(size=1, per_row=2, num_blocks=n),
        3 + 2 + 2,
    )(q, k, *rest)


def linformer(q: Tensor, k: Tensor, few: int, features: int, draws: torch.Generator) -> tuple[Tensor, Any]:
    e = (
        torch.eye(few).repeat_interleave(len(k) // few, 1) * few / len(k)
    )  # E = F: means of segments, the simplest choice
    return softmax(q, e @ k) @ e, lambda n: n * few


def nystromformer(q: Tensor, k: Tensor, few: int, features: int, draws: torch.Generator) -> tuple[Tensor, Any]:
    ql, kl = (t.unflatten(0, (few, -1)).mean(1) for t in (q, k))  # landmarks: means of segments
    return softmax(q, kl) @ torch.linalg.pinv(softmax(ql, kl)) @ softmax(ql, k), lambda n: 2 * n * few + few**2


def performer(q: Tensor, k: Tensor, few: int, features: int, draws: torch.Generator) -> tuple[Tensor, Any]:
    from anyformer.parts.attention.linear import OrthogonalRows, SoftmaxFeatures
    from anyformer.specs.part import Site

    module = SoftmaxFeatures(count=features).build(Site(width=K, address="features"))
    OrthogonalRows().fill(module.weight, draws, 0)
    (fq, _), (fk, power) = module(q), module(k)
    return normalize_rows(fq @ (fk * power.exp()).T), lambda n: 2 * n * features


def linear(q: Tensor, k: Tensor, *rest: Any) -> tuple[Tensor, Any]:
    fq, fk = (torch.nn.functional.elu(t) + 1 for t in (q, k))
    return normalize_rows(fq @ fk.T), lambda n: 2 * n * K


def synthesizer(q: Tensor, k: Tensor, few: int, features: int, draws: torch.Generator) -> tuple[Tensor, Any]:
    return torch.randn(len(q), len(q), generator=draws).softmax(-1), lambda n: 0


def normalize_rows(products: Tensor) -> Tensor:
    return products / products.sum(-1, keepdim=True)


MIXERS: dict[str, Mixer] = {
    "full": lambda q, k, *rest: (softmax(q, k), lambda n: n * n),
    "longformer": longformer,
    "bigbird": big_bird,
    "linformer": linformer,
    "nystromformer": nystromformer,
    "performer": performer,
    "linear": linear,
    "synthesizer": synthesizer,
}
