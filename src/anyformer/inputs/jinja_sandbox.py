"""The Jinja environment of `sandbox.py`. Imported on first use, for Jinja is an extra."""

from __future__ import annotations

import datetime
import functools
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2 import nodes
from jinja2.compiler import CodeGenerator

from anyformer.inputs.sandbox import (
    CHARACTERS,
    LOOKING,
    MARK,
    STEPS,
    UNWANTED,
    TooMuch,
    charge_memory,
    check_size,
    spend,
)


class MeteredCodeGenerator(CodeGenerator):
    """Code that pays: in each round of a loop, and for the texts, lists and dictionaries it makes."""

    def _write_call(self, function: str, parts: Iterator[Any], frame: Any) -> None:
        self.write(f"environment.{function}((")
        for part in parts:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Concat(self, node: nodes.Concat, frame: Any) -> None:
        self._write_call("make_text", iter(node.nodes), frame)

    def visit_List(self, node: nodes.List, frame: Any) -> None:
        self._write_call("make_list", iter(node.items), frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Any) -> None:
        if node.ctx == "load":
            self._write_call("make_tuple", iter(node.items), frame)
        else:
            super().visit_Tuple(node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Any) -> None:
        self._write_call("make_dict", (part for item in node.items for part in (item.key, item.value)), frame)

    def visit_For(self, node: nodes.For, frame: Any) -> None:
        node.body.insert(0, nodes.ExprStmt(nodes.EnvironmentAttribute("pay")).set_lineno(node.lineno))
        super().visit_For(node, frame)

    def visit_ExprStmt(self, node: nodes.ExprStmt, frame: Any) -> None:
        if isinstance(node.node, nodes.EnvironmentAttribute):
            self.newline(node)
            self.write("environment.pay()")
        else:
            super().visit_ExprStmt(node, frame)


class GenerationTag(jinja2.ext.Extension):
    """{% generation %} marks the assistant's words for training: with the variable `MARK` on both sides where one is
    given. Otherwise the text is the same."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        before, after = (nodes.Output([nodes.Name(MARK, "load")]).set_lineno(line) for _ in range(2))
        return [before, *body, after]


class BoundedEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    code_generator_class = MeteredCodeGenerator
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    pay = staticmethod(spend)

    def make_text(self, parts: tuple[Any, ...]) -> str:
        spend(*parts)
        return charge_memory("".join(map(str, parts)))

    def make_tuple(self, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        spend(*parts)
        return charge_memory(parts)

    def make_list(self, parts: tuple[Any, ...]) -> list[Any]:
        spend(*parts)
        return charge_memory(list(parts))

    def make_dict(self, parts: tuple[Any, ...]) -> dict[Any, Any]:
        spend(*parts)
        return charge_memory(dict(zip(parts[::2], parts[1::2])))

    def call(self, context: Any, function: Any, *arguments: Any, **named: Any) -> Any:
        spend(*arguments, *named.values())
        bound = getattr(function, "__wrapped__", function)  # Jinja wraps str.format
        owner = getattr(bound, "__self__", None)
        check_size(getattr(bound, "__name__", ""), owner, (*arguments, *named.values()))
        return charge_memory(super().call(context, function, *arguments, **named))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        spend(left, right, deep=operator == "%")
        if operator == "*" and not all(isinstance(value, (int, float)) for value in (left, right)):
            check_size("*", left, (right,)) if isinstance(right, int) else check_size("*", right, (left,))
        if operator == "**" and isinstance(right, int) and abs(right) > 64:
            raise TooMuch(f"{left} ** {right}")
        if operator == "%" and isinstance(left, str):
            check_size("%", left, right if isinstance(right, tuple) else (right,))
        return charge_memory(super().call_binop(context, operator, left, right))


INNER = (jinja2.Environment, jinja2.runtime.Context, nodes.EvalContext)


def charge_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that pays for what it is given and for what it makes."""

    @functools.wraps(function)  # keeps the marks of those that want the context too
    def call_filter(*arguments: Any, **named: Any) -> Any:
        place = next((i for i, value in enumerate(arguments) if not isinstance(value, INNER)), len(arguments))
        value, more = arguments[place] if place < len(arguments) else None, arguments[place + 1 :]
        if isinstance(value, Iterator):  # how long it is must be known
            value = list(itertools.islice(value, STEPS))
        spend(value, *more, *named.values(), deep=name not in LOOKING)
        check_size(name, value, (*more, *named.values()))
        return charge_memory(function(*arguments[:place], value, *more, **named))

    return call_filter


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
    check_size("format", form, ())
    return datetime.datetime.now().strftime(form)


@functools.cache
def environment() -> BoundedEnvironment:
    bounded = BoundedEnvironment(
        trim_blocks=True, lstrip_blocks=True, finalize=finalize, extensions=[GenerationTag, jinja2.ext.loopcontrols]
    )
    bounded.filters["tojson"] = tojson
    bounded.filters = {
        name: charge_filter(name, function) for name, function in bounded.filters.items() if name not in UNWANTED
    }
    for name in ("lipsum", "cycler", "joiner"):
        del bounded.globals[name]
    bounded.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    return bounded


@functools.lru_cache(maxsize=32)
def compile_template(source: str) -> Any:
    return environment().from_string(source)
