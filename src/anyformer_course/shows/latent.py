"""DeepSeek's latent attention and experts: what is cached per token, and how many parameters a token uses.

Attention with 128 heads would cache a key and a value per head. Latent attention caches one short vector per layer,
from which keys and values are computed, and one rotated key for all heads [DeepSeek-AI 2024].
"""

from __future__ import annotations

from typing import Any

import anyformer as af
from anyformer.look.figures import new
from anyformer.parts.attention.latent import LatentAttention
from anyformer.specs.part import walk
from anyformer_course.shown import Shown, Table


def example(name: str = "deepseek-v2", *, tokens: int = 4096) -> Shown:
    """Compare the cache of a DeepSeek model with other kinds of attention of the same heads, after `tokens` tokens."""
    import torch

    counted = af.count(af.spec(name))
    part: Any = next((each for _, each in walk(counted.spec) if isinstance(each, LatentAttention)), None)
    if part is None:
        raise ValueError(f"{name} has no latent attention; use deepseek-v2-lite, deepseek-v2 or deepseek-v3")
    depth, H, K = dict(counted.spec.items())["decoder"].depth, part.num_heads, part.head_width
    forms = {
        f"every head its own (MHA, {H} heads)": 2 * H * K,
        "8 groups of heads (GQA)": 2 * 8 * K,
        "all heads together (MQA)": 2 * K,
        f"latent (MLA: {part.rank} + {part.rotary_width})": part.rank + part.rotary_width,
    }
    rows = [[form, size, size * depth, 2 * size * depth * tokens / 1e9] for form, size in forms.items()]
    measured = counted.state(1, tokens, torch.bfloat16) / 1e9

    def draw() -> Any:
        figure, axes = new(2, 1, 11, 2.8)
        axes[0, 0].barh(list(forms), [row[3] for row in rows])
        axes[0, 0].invert_yaxis()
        axes[0, 0].set_xscale("log")
        axes[0, 0].set_title(f"cache of {tokens:,} tokens, gigabytes", fontsize=10)
        axes[0, 1].barh(["all", "used by a token"], [counted.parameters / 1e9, counted.active / 1e9], color="C1")
        axes[0, 1].invert_yaxis()
        axes[0, 1].set_title("parameters, billions", fontsize=10)
        return figure

    return Shown(
        f"{name} caches {rows[-1][1]} numbers per token and layer instead of {rows[0][1]:,}, "
        f"{rows[0][1] / rows[-1][1]:.0f} times fewer. A token uses {counted.active / 1e9:.1f} of "
        f"{counted.parameters / 1e9:.1f} billion parameters.",
        [
            Table(f"cache, {depth} layers", ("attention", "numbers per token and layer", "numbers per token",
                  f"gigabytes of {tokens:,} tokens, bfloat16"), rows),
            Table("the library's count", ("of", "billions"), [
                ["parameters", counted.parameters / 1e9], ["used by a token", counted.active / 1e9],
                [f"bytes of the cache of {tokens:,} tokens", measured],
            ]),
        ],
        draw,
    )  # fmt: skip
