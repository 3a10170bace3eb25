"""The point-wise MLP: z = W2 GELU(W1 x + b1) + b2, for each token by itself.

If one word changes, only its own result changes. The layer is a convolution of size 1, and with 4 d hidden numbers it
has twice the weights of attention [Vaswani et al. 2017].
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

import anyformer as af
from anyformer.look.figures import heat_maps
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._small import context, module
from anyformer_course.table import tiny
from anyformer_course.words import label_rows, vectors


@torch.no_grad()
def example(
    text: str = "the detective investigated the case", *, width: int = 8, change: int | None = None,
    mixing: bool = False, seed: int = 0,
) -> Shown:  # fmt: skip
    """Compute the MLP of each word, replace the word number `change` (if None, 2 or the last one), and compute again.
    `mixing`: attention instead."""
    words, x = vectors(text, width, seed)
    change = min(2, len(words) - 1) if change is None else change
    if not 0 <= change < len(words) or width % 2 or not 2 <= width <= 64:
        raise ValueError(f"change is {change} and width {width}; change: 0 to {len(words) - 1}, width: even, 2 to 64")
    mlp: Any = module(af.parts.MLP(width=4 * width, activation="gelu"), width, seed, std=width**-0.5)
    attention: Any = module(af.parts.Attention(num_heads=2), width, seed, std=width**-0.5)
    layer = attention if mixing else mlp
    replaced = x.clone()
    replaced[change] = vectors("other", width, seed)[1][0]
    z, moved = (layer(each[None], context(len(words)))[0] for each in (x, replaced))
    first, second = (parameter for parameter in mlp.parameters() if parameter.dim() == 2)
    b1, b2 = (parameter for parameter in mlp.parameters() if parameter.dim() == 1)
    hidden = F.gelu(x @ first.T + b1)  # (T, 4 D)
    results = mlp(x[None], context(len(words)))[0]
    by_hand = float((hidden @ second.T + b2 - results).abs().max())
    convolved = F.conv1d(F.gelu(F.conv1d(x.T[None], first[..., None], b1)), second[..., None], b2)[0].T
    error = float((convolved - results).abs().max())
    changes = (moved - z).norm(dim=-1)
    sizes = [sum(parameter.numel() for parameter in each.parameters()) for each in (mlp, attention)]
    name = "attention" if mixing else "the MLP"

    def draw() -> Any:
        maps = [x, hidden, results, changes[:, None]]
        titles = ["x", f"GELU(W1 x + b1): {4 * width} numbers", "z", "change of the result"]
        figure = heat_maps(maps, titles, f"rows are words; {words[change]!r} is replaced")
        for axis in figure.axes[:4]:
            axis.set_yticks(range(len(words)), words, fontsize=7)
        figure.axes[3].set_xticks([])
        return figure

    still = sum(float(each) < 1e-6 for each in changes)
    return Shown(
        f"If {words[change]!r} is replaced, {name} changes {len(words) - still} of {len(words)} results. The MLP and a "
        f"convolution of size 1 differ by {tiny(error)}; the MLP has {sizes[0] / sizes[1]:.1f} times the parameters of "
        f"attention.",
        [
            Table(f"results of {name}", ("word", "replaced", "change of the result"), [
                [word, "yes" if i == change else "", float(each)] for i, (word, each) in enumerate(zip(words, changes))
            ]),
            Table("z = W2 GELU(W1 x + b1) + b2", ("word", *(str(i) for i in range(width))), label_rows(words, results)),
            Table("shapes and parameters", ("what", "shape", "parameters"), [
                ["W1 and b1", f"{4 * width} x {width}", first.numel() + b1.numel()],
                ["W2 and b2", f"{width} x {4 * width}", second.numel() + b2.numel()],
                ["attention: q, k, v and output", f"4 times {width} x {width}", sizes[1]],
            ]),
            Table("the same by hand", ("computed as", "largest difference"), [
                ["products and GELU by hand", by_hand], ["two convolutions of size 1", error],
            ]),
        ],
        draw,
    )  # fmt: skip
