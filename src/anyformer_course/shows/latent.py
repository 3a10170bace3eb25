"""DeepSeek's latent attention and experts: what is cached per token, and how many parameters a token uses.

Attention with 128 heads would cache a key and a value per head. Latent attention caches one short vector per layer,
from which keys and values are computed, and one rotated key for all heads [DeepSeek-AI 2024].
"""

from __future__ import annotations

from typing import Any

import torch

import anyformer as af
from anyformer.look.figures import new
from anyformer.parts.attention.latent import LatentAttention
from anyformer.specs.field_types import Count
from anyformer.specs.part import walk
from anyformer_course.shown import Shown, Table


def example(name: str = "deepseek-v2", *, tokens: Count = 4096) -> Shown:
    """Compare the cache of a DeepSeek model with other kinds of attention of the same heads, after `tokens` tokens."""
    counted = af.count(af.spec(name))
    part: Any = next((each for _, each in walk(counted.spec) if isinstance(each, LatentAttention)), None)
    if part is None:
        raise ValueError(f"{name} has no latent attention; use deepseek-v2-lite, deepseek-v2 or deepseek-v3")
    depth, H, K = dict(counted.spec.items())["decoder"].depth, part.num_heads, part.head_width
    forms = {
        f"MHA, {H} keys and values": 2 * H * K,
        "GQA, 8 keys and values": 2 * 8 * K,
        "MQA, 1 key and value": 2 * K,
        f"MLA, {part.rank} + {part.rotary_width} numbers": part.rank + part.rotary_width,
    }
    rows = [[form, size, size * depth, 2 * size * depth * tokens / 1e9] for form, size in forms.items()]
    experts: Any = next(each for _, each in walk(counted.spec) if isinstance(each, af.parts.MoE))
    always = experts.shared.width // experts.expert.width
    difference = compare(part)

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
        f"{rows[0][1] / rows[-1][1]:.0f} times fewer. A token uses {experts.router.top_k} of {experts.num_experts} "
        f"experts and {counted.active / 1e9:.1f} of {counted.parameters / 1e9:.1f} billion parameters.",
        [
            Table(f"cache, {depth} layers", ("attention", "numbers per token and layer", "numbers per token",
                  f"gigabytes, {tokens:,} tokens"), rows),
            Table("one token of one layer", ("what", "numbers"), [
                ["cached: latent vector c", part.rank], ["cached: rotated key for all heads", part.rotary_width],
                [f"keys of {H} heads, computed from c", H * K],
                [f"values of {H} heads, computed from c", H * part.value_width],
                ["difference of the results: from c only, and from all keys and values", difference],
            ]),
            Table("experts", ("what", "number"), [
                ["experts per layer", experts.num_experts], ["of these used by a token", experts.router.top_k],
                ["shared experts, used by every token", always],
                ["parameters, billions", counted.parameters / 1e9],
                ["used by a token, billions", counted.active / 1e9],
            ]),
        ],
        draw,
    )  # fmt: skip


def compare(part: LatentAttention, tokens: int = 6, seed: int = 0) -> float:
    """Attend once with the keys and values of every head, and once with the latent vectors only (random weights).

    Return the largest difference of the results, divided by the largest result. The matrix from latents to keys is
    applied to the query instead, and the matrix from latents to values to the mean of the latents.
    """
    H, K, V, R = part.num_heads, part.head_width, part.value_width, part.rank
    draws = torch.Generator().manual_seed(seed)
    c, q = torch.randn(tokens, R, generator=draws), torch.randn(H, K, generator=draws)
    to_key, to_value = (torch.randn(H, width, R, generator=draws) / R**0.5 for width in (K, V))
    k, v = (torch.einsum("hkr,tr->htk", each, c) for each in (to_key, to_value))
    expanded = torch.einsum("ht,htv->hv", (torch.einsum("hk,htk->ht", q, k) / K**0.5).softmax(-1), v)
    weights = (torch.einsum("hk,hkr->hr", q, to_key) @ c.T / K**0.5).softmax(-1)
    latent = torch.einsum("hr,hvr->hv", weights @ c, to_value)
    return float((expanded - latent).abs().max() / expanded.abs().max())
