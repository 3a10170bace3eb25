"""Runs a stranger's Jinja template: nothing it does reaches a file, a module or the network, and all is bounded.

Jinja's immutable sandbox guards attributes. Here every loop round, call, operator and filter also pays from a budget of
steps and seconds, and whatever would make a large value is refused before it is made.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Sequence, Sized
from typing import Any

MARK = "generation_mark"  # the variable that stands around what a template marks as the assistant's
CHARACTERS = 8_000_000  # of a value, and of the whole text
STEPS = 2_000_000  # loop rounds, calls, and elements of the values that take part in them
SECONDS = 10.0
BYTES = 256 * 2**20  # of all values that it makes, together: they may all be kept

# These make nothing larger than they are given, so their arguments may have any size.
SHRINKING = {
    "split", "rsplit", "splitlines", "partition", "rpartition", "strip", "lstrip", "rstrip", "startswith",
    "endswith", "find", "rfind", "index", "rindex", "count", "removeprefix", "removesuffix", "get", "trim",
    "default", "d", "length", "first", "last", "list", "string", "lower", "upper", "capitalize", "title", "items",
    "keys", "values", "selectattr", "rejectattr", "select", "reject", "map", "sort", "unique", "reverse",
    "raise_exception", "safe", "e", "escape", "dict", "namespace",
}  # fmt: skip
LOOKING = {"length", "count", "first", "last", "default", "d", "safe"}  # at one element or none
UNWANTED = {"urlize", "wordwrap", "xmlattr", "striptags", "pprint", "center", "random"}  # of no use in a conversation


class TooMuch(Exception):
    """The template spent its budget."""


class Budget(threading.local):
    """What a template may still spend; each thread has its own."""

    def __init__(self) -> None:
        self.refill()

    def refill(self) -> None:
        self.steps, self.bytes, self.until = STEPS, BYTES, time.monotonic() + SECONDS


budget = Budget()


def spend(*values: Any, deep: bool = True) -> int:
    """Takes a step for each value and, where `deep`, for each element of it. Returns how large they are together."""
    todo, size = list(values), 0
    steps = budget.steps
    if time.monotonic() > budget.until:
        raise TooMuch(f"more than {SECONDS:g} seconds")
    while True:
        steps -= 1
        if steps < 0:
            raise TooMuch(f"more than {STEPS:,} steps")
        if not todo:
            break
        value = todo.pop()
        size += 1
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, int):
            if abs(value) >= 2**64:
                raise TooMuch("a number beyond 64 bits")
        elif isinstance(value, (list, tuple, dict, range)):
            size += len(value)
            if deep and not isinstance(value, range):
                todo.extend(value)
                if isinstance(value, dict):
                    todo.extend(value.values())
        if size > CHARACTERS:
            raise TooMuch(f"a value of more than {CHARACTERS:,} characters")
    budget.steps = steps
    return size


def charge_memory(value: Any) -> Any:
    """Takes the memory of a new value out of the budget, and gives the value back."""
    spend(value, deep=False)
    elements = len(value) if isinstance(value, (list, tuple, dict)) else 0
    budget.bytes -= sys.getsizeof(value) + 64 * elements
    if budget.bytes < 0:
        raise TooMuch(f"more than {BYTES:,} bytes of values")
    return value


def check_size(name: str, value: Any, arguments: Sequence[Any]) -> None:
    """Refuses a call of `name` on `value` that could make something large: larger than the two together times over."""
    if name in SHRINKING:
        return
    if isinstance(value, str):
        if name == "replace" and len(arguments) > 1 and all(isinstance(a, str) for a in arguments[:2]):
            if value.count(arguments[0]) * len(arguments[1]) > CHARACTERS:
                raise TooMuch("replace")
            return
        if name in ("format", "format_map", "%") and re.search(r"\d{6}|\*", value):
            raise TooMuch("a width in a format")
    sizes = [abs(a) if isinstance(a, int) else len(a) if isinstance(a, Sized) else 1 for a in arguments]
    own = len(value) if isinstance(value, Sized) else 1
    if max(own, 1) * max(sizes, default=1) > CHARACTERS:
        raise TooMuch(f"{name} of {own} with {max(sizes)}")
