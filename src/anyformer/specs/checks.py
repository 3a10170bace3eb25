"""Ranges that fields of Parts must keep, each with one clear line."""

from __future__ import annotations

from anyformer.specs.part import Part


def at_least(part: Part, low: float, *names: str) -> None:
    """Fields that are numbers from `low` up, or None."""
    for name, value in _given(part, names):
        if not value >= low:  # NaN is refused too
            raise ValueError(f"{type(part).__name__}.{name} is {value}; it must be at least {low}")


def at_most(part: Part, high: float, *names: str) -> None:
    """Fields that are numbers up to `high`, or None."""
    for name, value in _given(part, names):
        if not value <= high:
            raise ValueError(f"{type(part).__name__}.{name} is {value:,}; it must be at most {high:,}")


def positive(part: Part, *names: str) -> None:
    """Fields that are numbers above 0, or None."""
    for name, value in _given(part, names):
        if not value > 0:
            raise ValueError(f"{type(part).__name__}.{name} is {value}; it must be above 0")


def chance(part: Part, *names: str) -> None:
    """Fields that are probabilities of dropping something: 0 up to, not including, 1."""
    for name, value in _given(part, names):
        if not 0 <= value < 1:
            raise ValueError(f"{type(part).__name__}.{name} is {value}; it must be in [0, 1)")


def _given(part: Part, names: tuple[str, ...]) -> list[tuple[str, float]]:
    return [(name, value) for name in names if (value := getattr(part, name)) is not None]
