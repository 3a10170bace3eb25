"""Config fields and tensor names that DeepSeek V2 and V3 share: dense and sparse layers, shared experts, YaRN."""

from __future__ import annotations

import math
from typing import Any

from anyformer.families.base.template import Config, entry
from anyformer.families.shared.rope import read_rope
from anyformer.parts import Model
from anyformer.specs.addresses import edit, value_at
from anyformer.weights.rules import Rename, Rule, Stack

LAYER, MOE = "decoder.layers.{i}", "decoder.layers.sparse.feedforward.op"


def layer_kinds(dense: int, c: Config) -> tuple[str, ...]:
    """Return the kind of each layer: the first `dense` layers have no experts."""
    dense = min(dense, c.num_hidden_layers)
    return ("dense",) * dense + ("sparse",) * (c.num_hidden_layers - dense) or ("sparse",)


DENSE_LAYERS = entry("decoder.pattern", read=layer_kinds, write=lambda kinds: kinds.count("dense"))


def without_shared(spec: Model, count: int | None, c: Config) -> Model:
    return spec if count else edit(spec, {f"{MOE}.shared": None})


def shared_experts(spec: Model) -> int:
    moe = value_at(spec, MOE)
    return 0 if moe.shared is None else moe.shared.width // moe.expert.width


SHARED_EXPERTS = entry(
    f"{MOE}.shared.width",
    path=shared_experts,
    build=without_shared,
    read=lambda count, c: (count or 0) * c.moe_intermediate_size,
)


def score_scale(c: Config) -> float | None:
    """Return the score scale with YaRN's temperature on all channels, not only the rotated ones. Published code applies
    it with any scaling that has mscale_all_dim."""
    scaling: Any = read_rope(c).scaling
    mscale = (c.rope_scaling or c.rope_parameters or {}).get("mscale_all_dim")
    if not mscale or scaling is None:
        return None
    factor = scaling.factor
    temperature = 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0
    return temperature * temperature * (c.qk_nope_head_dim + c.qk_rope_head_dim) ** -0.5


def queries(theirs: str, spec: Model) -> list[Rule]:
    """Without compression, queries have one projection."""
    name = "q_proj" if value_at(spec, "decoder.layers.dense.attention.op.query_rank") is None else "q_b_proj"
    return [Rename(f"{theirs}.{name}.{{p}}", f"{LAYER}.attention.op.q.{{p}}")]


def experts(theirs: str, spec: Model) -> list[Rule]:
    """Files have one tensor per expert; we stack the experts of a layer."""
    ours, count = f"{LAYER}.feedforward.op.experts", value_at(spec, f"{MOE}.num_experts")
    return [
        Stack([f"{theirs}.{name}_proj.weight" for name in ("gate", "up")], f"{ours}.up", count, True),
        Stack(f"{theirs}.down_proj.weight", f"{ours}.down", count, True),
    ]


def yarn(mscale: float) -> dict[str, Any]:
    return {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 40.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": mscale,
        "mscale_all_dim": mscale,
        "original_max_position_embeddings": 4096,
    }
