"""Runs a stranger's Jinja template: nothing it does reaches a file, a module or the network, and all is bounded.

Jinja's immutable sandbox guards attributes. Here every loop round, call, operator and filter also pays from a budget of
steps and seconds, and whatever would make a large value is refused before it is made.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

CHARACTERS = 8_000_000  # of a value, and of the whole text
STEPS = 2_000_000  # loop rounds, calls, and elements of the values that take part in them
SECONDS = 10.0

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


_budget = threading.local()


def refill() -> None:
    _budget.steps, _budget.until = STEPS, time.monotonic() + SECONDS


def spend(*values: Any, deep: bool = True) -> int:
    """Takes a step for each value and, where `deep`, for each element of it. Returns how large they are together."""
    if not hasattr(_budget, "steps"):
        refill()
    todo, size = list(values), 0
    steps = _budget.steps
    if time.monotonic() > _budget.until:
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
    _budget.steps = steps
    return size


def foresee(name: str, value: Any, arguments: Sequence[Any]) -> None:
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
    sizes = [abs(a) if isinstance(a, int) else len(a) if hasattr(a, "__len__") else 1 for a in arguments]
    own = len(value) if hasattr(value, "__len__") else 1
    if max(own, 1) * max(sizes, default=1) > CHARACTERS:
        raise TooMuch(f"{name} of {own} with {max(sizes)}")


@functools.lru_cache(maxsize=32)
def compiled(source: str) -> Any:
    return environment().from_string(source)


@functools.cache
def environment() -> Any:
    """Made on first use, for Jinja is an extra."""
    import jinja2
    import jinja2.ext
    import jinja2.sandbox
    from jinja2 import nodes
    from jinja2.compiler import CodeGenerator

    class Generator(CodeGenerator):
        """Code that pays: in each round of a loop, and for the texts, lists and dictionaries it makes."""

        def _through(self, function: str, parts: Iterator[Any], frame: Any) -> None:
            self.write(f"environment.{function}((")
            for part in parts:
                self.visit(part, frame)
                self.write(", ")
            self.write("))")

        def visit_Concat(self, node: nodes.Concat, frame: Any) -> None:
            self._through("joined", iter(node.nodes), frame)

        def visit_List(self, node: nodes.List, frame: Any) -> None:
            self._through("listed", iter(node.items), frame)

        def visit_Tuple(self, node: nodes.Tuple, frame: Any) -> None:
            if node.ctx == "load":
                self._through("kept", iter(node.items), frame)
            else:
                super().visit_Tuple(node, frame)

        def visit_Dict(self, node: nodes.Dict, frame: Any) -> None:
            self._through("paired", (part for item in node.items for part in (item.key, item.value)), frame)

        def visit_For(self, node: nodes.For, frame: Any) -> None:
            node.body.insert(0, nodes.ExprStmt(nodes.EnvironmentAttribute("pay")).set_lineno(node.lineno))
            super().visit_For(node, frame)

        def visit_ExprStmt(self, node: nodes.ExprStmt, frame: Any) -> None:
            if isinstance(node.node, nodes.EnvironmentAttribute):
                self.newline(node)
                self.write("environment.pay()")
            else:
                super().visit_ExprStmt(node, frame)

    class Generation(jinja2.ext.Extension):
        """{% generation %} marks the assistant's words for training; the text is the same."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class Bounded(jinja2.sandbox.ImmutableSandboxedEnvironment):
        code_generator_class = Generator
        intercepted_binops = frozenset({"+", "*", "**", "%"})

        pay = staticmethod(spend)

        def joined(self, parts: tuple[Any, ...]) -> str:
            spend(*parts)
            return "".join(map(str, parts))

        def kept(self, parts: tuple[Any, ...]) -> tuple[Any, ...]:
            spend(*parts)
            return parts

        def listed(self, parts: tuple[Any, ...]) -> list[Any]:
            spend(*parts)
            return list(parts)

        def paired(self, parts: tuple[Any, ...]) -> dict[Any, Any]:
            spend(*parts)
            return dict(zip(parts[::2], parts[1::2]))

        def call(self, context: Any, function: Any, *arguments: Any, **named: Any) -> Any:
            spend(*arguments, *named.values())
            bound = getattr(function, "__wrapped__", function)  # Jinja wraps str.format
            owner = getattr(bound, "__self__", None)
            foresee(getattr(bound, "__name__", ""), owner, (*arguments, *named.values()))
            result = super().call(context, function, *arguments, **named)
            spend(result, deep=False)
            return result

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            spend(left, right, deep=operator == "%")
            if operator == "*" and not all(isinstance(value, (int, float)) for value in (left, right)):
                foresee("*", left, (right,)) if isinstance(right, int) else foresee("*", right, (left,))
            if operator == "**" and isinstance(right, int) and abs(right) > 64:
                raise TooMuch(f"{left} ** {right}")
            if operator == "%" and isinstance(left, str):
                foresee("%", left, right if isinstance(right, tuple) else (right,))
            result = super().call_binop(context, operator, left, right)
            spend(result, deep=False)
            return result

    inner = (jinja2.Environment, jinja2.runtime.Context, nodes.EvalContext)

    def paid(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that pays for what it is given and for what it makes."""

        @functools.wraps(function)  # keeps the marks of those that want the context too
        def wrapped(*arguments: Any, **named: Any) -> Any:
            place = next((i for i, value in enumerate(arguments) if not isinstance(value, inner)), len(arguments))
            value, more = arguments[place] if place < len(arguments) else None, arguments[place + 1 :]
            if isinstance(value, Iterator):  # how long it is must be known
                value = list(itertools.islice(value, STEPS))
            spend(value, *more, *named.values(), deep=name not in LOOKING)
            foresee(name, value, (*more, *named.values()))
            result = function(*arguments[:place], value, *more, **named)
            spend(result, deep=False)
            return result

        return wrapped

    def finalize(value: Any) -> Any:
        spend(value)
        return value

    def raise_exception(message: Any) -> None:
        raise jinja2.TemplateError(str(message))

    def tojson(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        """Jinja's own is for HTML and escapes < and >."""
        if isinstance(indent, int) and indent * spend(value) > CHARACTERS:
            raise TooMuch(f"tojson with indent={indent}")
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def strftime_now(form: str) -> str:
        foresee("format", form, ())
        return datetime.datetime.now().strftime(form)

    made = Bounded(
        trim_blocks=True, lstrip_blocks=True, finalize=finalize, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    made.filters["tojson"] = tojson
    made.filters = {name: paid(name, function) for name, function in made.filters.items() if name not in UNWANTED}
    for name in ("lipsum", "cycler", "joiner"):
        del made.globals[name]
    made.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    return made
