"""Name a Part and describe it in short phrases, from its class and fields.

>>> from anyformer.parts.feedforward.mlp import GatedMLP
>>> name(GatedMLP(width=256)), phrases(GatedMLP(width=256), 64)
('Gated MLP (SwiGLU)', ['64\xa0→\xa0256\xa0→\xa064'])
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from anyformer.parts.base import HasHeads, HasHeadWidth
from anyformer.parts.mask import Mask, Several
from anyformer.parts.norm import Norm
from anyformer.parts.op import Op, Reshaping
from anyformer.specs.messages import amount
from anyformer.specs.part import Part, default_values, hints, slot_types, values_in

# fields that do not affect shapes or wiring: dropout, eps, initial values, details of published checkpoints
OMITTED = re.compile(
    r"(^|_)(dropout|drop|path|eps|momentum|start|jitter|balance|float32|dtype|shown|index|token|stored|offset)$"
)
NBSP = "\N{NO-BREAK SPACE}"
ALWAYS = ("activation",)  # shown even at the default


def name(part: Part) -> str:
    """Return the class name in words, and the usual name of a Part with these fields: "Latent Attention (MLA)"."""
    words = in_words(type(part).__name__, part)
    other, _ = known_name(part)
    if other and words.lower() in other.lower():  # self-attention
        return other[0].upper() + other[1:]
    if not other or other.lower() in words.lower() or not (isinstance(part, Op) or fields_in_name(part)):
        return words
    return f"{words} ({other})"


def in_words(kind: str, part: Part | None = None) -> str:
    """LatentAttention -> Latent Attention. Names of norms do not change: LayerNorm, RMSNorm."""
    if isinstance(part, Norm):
        return kind
    return re.sub(r"(?<=[a-z])(?=[A-Z][a-z]|[A-Z]{2})|(?<=[A-Z])(?=[A-Z][a-z])", " ", kind)


def known_name(part: Part) -> tuple[str, dict[str, Any]]:
    """Return the most specific name in `called` that fits this Part, and the fields that the name implies."""
    best: tuple[int, str, dict[str, Any]] = (-1, "", {})
    for other in type(part).called:
        text, _, how = other.partition(" (")
        wanted = dict(pair.split("=", 1) for pair in how.removesuffix(")").split(", ") if "=" in pair)
        exact = {field: value for field, value in wanted.items() if _is(getattr(part, field, None), value)}
        loose = {field for field in wanted if _set(part, field) and _literal(wanted[field]) is ...}
        if len(exact) + len(loose) == len(wanted):
            rank = 2 * len(exact) + len(loose)
            best = max(best, (rank, text, exact), key=lambda candidate: candidate[0])
    return best[1], best[2]


def fields_in_name(part: Part) -> dict[str, Any]:
    """Return the fields whose values the name implies."""
    return known_name(part)[1]


def _literal(text: str) -> Any:
    """Return the value of a literal in `called`, or ... for a placeholder, which fits any value but the default
    ("skip=alpha")."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text if text in Part.kinds else ...


def _is(value: Any, text: str) -> bool:
    wanted = _literal(text)
    return wanted is not ... and (type(value).__name__ == wanted if isinstance(value, Part) else value == wanted)


def _set(part: Part, field: str) -> bool:
    return getattr(part, field, None) != default_values(type(part)).get(field)


# -- phrases ----------------------------------------------------------------------------------------------------------


def phrases(part: Part, width: int, apart: tuple[Part, ...] = ()) -> list[str]:
    """Return phrases for the fields of a Part, sizes first. Parts in `apart` have their own cards and no phrases."""
    sizes, parts, others = [], [], []
    known, defaults = fields_in_name(part), default_values(type(part))
    for field, value in part.items():
        is_empty = value is None or (value in (0, ()) and value is not False)
        if is_empty or field in known or OMITTED.search(field) or value in apart:
            continue
        is_op, default = isinstance(part, Op), defaults.get(field)
        if isinstance(value, Part):
            parts += [describe_part(field, value, part, width)] if value != default or isinstance(value, Mask) else []
        elif isinstance(value, bool):
            words = field_words(field) if value else f"no {field_words(field)}"
            others += [words] if is_op and value != default else []
        elif isinstance(value, int):
            sizes += [] if value == default and not is_op else [describe_int(field, value, part, width)]
        elif isinstance(value, float):
            others += [f"{field_words(field)} {number(value)}"] if value != default else []
        elif isinstance(value, str):
            others += [describe_str(field, value)] if value != default or field in ALWAYS else []
        elif isinstance(value, tuple) and value != default and not any(isinstance(v, str) for v in value):
            sizes += [f"{field_words(field)} {describe_tuple(value)}"] if not _holds_parts(value) else []
    return [phrase for phrase in dict.fromkeys((*sizes, *parts, *others)) if phrase]


def describe_int(field: str, value: int, part: Part, width: int) -> str:
    """Return a phrase for an integer field, or "" if another phrase contains it."""
    out = part.out_width(width) if isinstance(part, Reshaping) else width
    if field == "num_heads":
        each = (part.head_width if isinstance(part, HasHeadWidth) else None) or (None if out % value else out // value)
        heads = amount(value, "head")
        return f"{heads} × {each}" if each and isinstance(part, Op) else heads
    if field == "head_width" and isinstance(part, HasHeads):
        return ""
    if field == "width" and isinstance(part, Op):
        return f"{width} → {value} → {out}".replace(" ", NBSP)
    if field == "out" and isinstance(part, Reshaping):
        return ""  # the shape after the Part shows it
    if field.startswith("num_"):
        return amount(value, field_words(field[4:]).removesuffix("s"))
    return f"{field_words(field)} {number(value)}"


def field_words(field: str) -> str:
    return field.replace("_", " ").replace("kv ", "KV ")


def describe_str(field: str, value: str) -> str:
    if field in ALWAYS:
        return value.replace("_", " ") if value != "identity" else ""
    return f"{field_words(field)} {value}" if value else f"no {field_words(field)}"


def describe_tuple(values: tuple[Any, ...]) -> str:
    """(16, 16) -> 16 × 16; (2, 2, 2, 2) -> 2 (4 times); (1, 2, 3, 4) -> 1, 2, 3, 4"""
    if len(values) in (2, 3):
        return " × ".join(map(number, values))
    if len({*values}) == 1:
        return f"{number(values[0])} ({len(values)} times)"
    return ", ".join(map(number, values))


def number(value: Any) -> str:
    if isinstance(value, float):
        return number(int(value)) if value.is_integer() else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and value >= 10_000 else str(value)


def describe_part(field: str, part: Part, owner: Part, width: int) -> str:
    """Return a phrase for a Part that is a field of another Part."""
    if isinstance(part, Mask):
        return f"{describe_mask(part)} mask"
    others = [phrase for phrase in phrases(part, width) if phrase not in phrases_of_heads(owner)]
    # if several fields can contain this kind of Part, the field name distinguishes them
    slots = [hint for hint in hints(type(owner)).values() if type(part) in slot_types(hint)]
    text = ", ".join([field_words(field) if len(slots) > 1 else name(part), *others[:2]])
    return f"{field_words(field)}: {text}" if isinstance(part, Norm) else text


def phrases_of_heads(owner: Part) -> set[str]:
    return {amount(owner.num_heads, "head")} if isinstance(owner, HasHeads) else set()


def describe_mask(mask: Part) -> str:
    """Describe a mask, for example "Causal & Window 512"."""
    if isinstance(mask, Several):
        return mask.sign.join(
            f"({describe_mask(m)})" if isinstance(m, Several) else describe_mask(m) for m in mask.masks
        )
    words = [
        f"not {describe_mask(v)}" if isinstance(v, Part) else number(v)
        for _, v in values_in(mask, "")
        if v is not False
    ]
    return " ".join([in_words(type(mask).__name__), *words])


def _holds_parts(value: tuple[Any, ...]) -> bool:
    return any(isinstance(item, Part) for item in value)


def short(count: int) -> str:
    """124439808 -> 124.4M"""
    for size, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if count >= size:
            return f"{count / size:.1f}{unit}" if count < 1000 * size else f"{count / size:,.0f}{unit}"
    return str(count)


def runs(values: tuple[Any, ...]) -> Iterator[tuple[Any, int, int]]:
    """Yield (value, first index, last index) of runs of equal values."""
    first = 0
    for i in range(1, len(values) + 1):
        if i == len(values) or values[i] != values[first]:
            yield values[first], first, i - 1
            first = i
