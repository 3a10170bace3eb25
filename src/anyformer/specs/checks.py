"""Range checks for fields of Parts. Each raises ValueError with one line."""

from __future__ import annotations

from anyformer.specs.part import Part


def at_least(part: Part, low: float, *names: str) -> None:
    """Check that these fields are at least `low`, or None."""
    for name, value in _given(part, names):
        if not value >= low:  # also true for NaN
            raise ValueError(f"{type(part).__name__}.{name} is {value}; it must be at least {low}")


def at_most(part: Part, high: float, *names: str) -> None:
    """Check that these fields are at most `high`, or None."""
    for name, value in _given(part, names):
        if not value <= high:
            raise ValueError(f"{type(part).__name__}.{name} is {value:,}; it must be at most {high:,}")


def positive(part: Part, *names: str) -> None:
    """Check that these fields are above 0, or None."""
    for name, value in _given(part, names):
        if not value > 0:
            raise ValueError(f"{type(part).__name__}.{name} is {value}; it must be above 0")


def chance(part: Part, *names: str) -> None:
    """Check that these fields, such as dropout rates, are in [0, 1), or None."""
    for name, value in _given(part, names):
        if not 0 <= value < 1:
            raise ValueError(f"{type(part).__name__}.{name} is {value}; it must be in [0, 1)")


def _given(part: Part, names: tuple[str, ...]) -> list[tuple[str, float]]:
    return [(name, value) for name in names if (value := getattr(part, name)) is not None]
