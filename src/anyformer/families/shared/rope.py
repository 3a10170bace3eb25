"""Published rotary settings (`rope_parameters`, and the older `rope_theta` and `rope_scaling`) <-> the Rope Part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from anyformer.families.base.template import Config, Entry, entry, read_only
from anyformer.parts import (
    DynamicScaling, LinearScaling, Llama3Scaling, LongScaling, ProportionalScaling, Rope, RopeScaling, YarnScaling,
)  # fmt: skip
from anyformer.specs.messages import nearest, quote

TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")
ROPE = frozenset({
    "rope_theta", "rope_type", "type", "factor", "original_max_position_embeddings", "attention_factor", "beta_fast",
    "beta_slow", "low_freq_factor", "high_freq_factor", "mscale", "mscale_all_dim", "truncate", "partial_rotary_factor",
    "short_factor", "long_factor",
})  # fmt: skip


def read_rope(c: Config, fraction: float = 1.0) -> Rope:
    """Return the Rope of a config. `rope_scaling` takes precedence over `rope_parameters`, as in published code."""
    given = {k: v for k, v in {**(c.rope_scaling or c.rope_parameters or {})}.items() if v is not None}
    kind, share = given.get("rope_type", given.get("type", "default")), given.get("partial_rotary_factor", fraction)
    if kind in ("yarn", "longrope", "llama3") and c.original_max_position_embeddings is not None:
        given["original_max_position_embeddings"] = c.original_max_position_embeddings
    base = given.get("rope_theta", 10000.0 if c.rope_theta is None else c.rope_theta)
    if kind == "proportional":
        scaling: RopeScaling | None = ProportionalScaling(share=share, factor=given.get("factor", 1.0))
        return Rope(base=base, scaling=scaling)
    if share != fraction and kind != "default":  # with a scaling, only families with this config field support it
        raise ValueError(f"rope_parameters: partial_rotary_factor={share} is not supported with {quote(kind)}")
    scaling = _scaling(kind, given, c.max_position_embeddings)
    return Rope(base=base, scaling=scaling, fraction=fraction)


def _scaling(kind: str, given: Mapping[str, Any], longest: int) -> RopeScaling | None:
    trained = given.get("original_max_position_embeddings", longest)

    def factor() -> Any:
        return given["factor"] if "factor" in given else longest / max(trained, 1)

    try:
        match kind:
            case "default":
                return None
            case "linear":
                return LinearScaling(factor=given["factor"])
            case "dynamic":
                return DynamicScaling(factor=given["factor"], length=longest)
            case "yarn":
                return YarnScaling(
                    factor=factor(),
                    length=trained,
                    beta_fast=given.get("beta_fast") or 32.0,
                    beta_slow=given.get("beta_slow") or 1.0,
                    **{n: given[n] for n in ("attention_factor", "mscale", "mscale_all_dim", "truncate") if n in given},
                )
            case "longrope":
                return LongScaling(
                    short=tuple(given["short_factor"]),
                    long=tuple(given["long_factor"]),
                    length=trained,
                    factor=factor(),
                    attention_factor=given.get("attention_factor"),
                )
            case "llama3":
                return Llama3Scaling(
                    factor=given["factor"],
                    length=trained,
                    low_frequency_factor=given["low_freq_factor"],
                    high_frequency_factor=given["high_freq_factor"],
                )
    except KeyError as error:
        raise ValueError(f"rope_parameters of type {quote(kind)} need {error.args[0]!r}") from None
    raise ValueError(f"rope_parameters: rope_type {quote(kind)} is not supported; {nearest(kind, TYPES)}")


def rope(
    address: str,
    theta: float | None = None,
    fraction: float = 1.0,
    interleaved: Callable[[Config], bool] | None = None,
    default: dict[str, Any] | None = None,
) -> dict[str, Entry]:
    """Return the entries of rotary positions at an address. `theta` and `default` are the family's published defaults
    of rope_theta and rope_parameters; `interleaved` is whether neighbouring channels form a rotated pair."""

    def read(value: Any, c: Config) -> Rope:
        return read_rope(c, fraction).replace(interleaved=interleaved is not None and interleaved(c))

    return {
        "rope_parameters": entry(address, default=default, within=ROPE, read=read, write=write_rope),
        "rope_theta": read_only(theta),
        "rope_scaling": read_only(within=ROPE),
        "original_max_position_embeddings": read_only(),
    }


def write_rope(rope: Rope) -> dict[str, Any]:
    """Return the published `rope_parameters` of a Rope."""
    out: dict[str, Any] = {"rope_theta": rope.base, "rope_type": "default"}
    match rope.scaling:
        case LinearScaling(factor=factor):
            out |= {"rope_type": "linear", "factor": factor}
        case DynamicScaling(factor=factor):
            out |= {"rope_type": "dynamic", "factor": factor}
        case YarnScaling() as yarn:
            names = ("factor", "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate")
            out |= {"rope_type": "yarn", "original_max_position_embeddings": yarn.length}
            out |= {name: value for name in names if (value := getattr(yarn, name)) is not None}
        case LongScaling() as long:
            out |= {"rope_type": "longrope", "short_factor": list(long.short), "long_factor": list(long.long)}
            out |= {"original_max_position_embeddings": long.length, "factor": long.factor}
            out |= {} if long.attention_factor is None else {"attention_factor": long.attention_factor}
        case ProportionalScaling(share=share, factor=factor):
            out |= {"rope_type": "proportional", "partial_rotary_factor": share, "factor": factor}
        case Llama3Scaling() as llama:
            out |= {
                "rope_type": "llama3",
                "factor": llama.factor,
                "original_max_position_embeddings": llama.length,
                "low_freq_factor": llama.low_frequency_factor,
                "high_freq_factor": llama.high_frequency_factor,
            }
    return out
