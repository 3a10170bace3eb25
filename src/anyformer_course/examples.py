"""Read what a worked example is and which options it has from its source, without importing it (and so torch)."""

from __future__ import annotations

import ast
import dataclasses
import functools
import math
import re
import sys
import typing
from pathlib import Path
from typing import Any

from anyformer.specs.messages import nearest, quote, shorten

TRUE, FALSE = ("true", "yes", "1", "on"), ("false", "no", "0", "off")


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter of `example`: its name and its annotation without None."""

    name: str
    kind: str
    default: str  # "default: 4", "required" or "any number"
    optional: bool = False  # None is allowed

    def read(self, text: str) -> Any:
        """Convert a word of the command line: int, float, bool, str, Literal, or a sequence with commas."""
        if self.optional and text.lower() == "none":
            return None
        try:
            return read_value(self.kind, text)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from None


def read_value(kind: str, text: str) -> Any:
    kind = kind.strip()
    if sequence := re.fullmatch(r"(tuple|list|Sequence|Iterable)(?:\[(.*)\])?", kind):
        inner = [each for each in re.split(r",(?![^\[]*\])", sequence[2] or "str") if each.strip() != "..."]
        values = [read_value(inner[min(i, len(inner) - 1)], part.strip()) for i, part in enumerate(text.split(","))]
        return values if sequence[1] == "list" else tuple(values)
    if literal := re.fullmatch(r"(?:typing\.)?Literal\[(.*)\]", kind):
        choices = {str(choice): choice for choice in ast.literal_eval(f"({literal[1]},)")}
        if text not in choices:
            raise ValueError(f"{quote(text)} is not a choice; {nearest(text, choices)}")
        return choices[text]
    if "|" in kind:
        for each in sorted(kind.split("|"), key=lambda each: each.strip() == "str"):
            try:
                return read_value(each, text)
            except ValueError:
                continue
        raise ValueError(f"{quote(text)} is not {kind.replace('|', 'or')}")
    if kind == "bool":
        if text.lower() in (*TRUE, *FALSE):
            return text.lower() in TRUE
        raise ValueError(f"{quote(text)} is not true or false")
    if kind in ("int", "float"):
        try:
            value = int(text) if kind == "int" else float(text)
        except ValueError:
            value = math.nan
        if not abs(value) <= sys.float_info.max:
            raise ValueError(f"{quote(text)} is not {'an integer' if kind == 'int' else 'a number'}")
        return value
    return text


@dataclasses.dataclass(frozen=True)
class Example:
    name: str
    about: str  # first line of the module's docstring
    text: str  # both docstrings
    inputs: tuple[Parameter, ...]
    rest: Parameter | None  # `*words: str`
    options: tuple[Parameter, ...]


def about(name: str) -> str:
    """Return the first line of an example's docstring; quicker than `read_example`, for the list of all examples."""
    with source(name).open(encoding="utf-8") as file:
        return file.readline().strip().strip('"')


def source(name: str) -> Path:
    return Path(__file__).with_name("shows") / f"{name.replace('-', '_')}.py"


@functools.cache
def read_example(name: str) -> Example:
    path = source(name)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    text = ast.get_docstring(tree) or ""
    function = next((node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "example"), None)
    if function is None:
        raise ValueError(f"{path.name} has no function `example`")
    arguments = function.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults)) + [*arguments.defaults]
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    defaults = [constants.get(each.id, each) if isinstance(each, ast.Name) else each for each in defaults]
    texts = (text, ast.get_docstring(function) or "")
    return Example(
        name,
        text.partition("\n")[0],
        "\n\n".join(each for each in texts if each),
        tuple(parameter(*each) for each in zip(plain, defaults)),
        parameter(arguments.vararg, None, "any number") if arguments.vararg else None,
        tuple(parameter(*each) for each in zip(arguments.kwonlyargs, arguments.kw_defaults)),
    )


def parameter(argument: ast.arg, default: ast.expr | None, without: str = "required") -> Parameter:
    if argument.annotation is not None:
        kinds = [kind.strip() for kind in ast.unparse(argument.annotation).strip("'").split("|")]
    else:
        kinds = [type(ast.literal_eval(default)).__name__ if isinstance(default, ast.Constant) else "str"]
    plain, limits = zip(*map(read_type, kinds))
    default_text = f"default: {shorten(ast.unparse(default), 80)}" if default else without
    return Parameter(
        argument.arg,
        " | ".join(each for each in plain if each != "None"),
        "; ".join([default_text, *filter(None, limits)]),
        "None" in kinds,
    )


def read_type(kind: str) -> tuple[str, str]:
    """Return the type and the range of "Count" and other types of `field_types`: ("int", "at least 1")."""
    from anyformer.specs import field_types

    found = getattr(field_types, kind, None)
    if typing.get_origin(found) is not typing.Annotated:
        return kind, ""
    plain, limits = typing.get_args(found)
    return plain.__name__, str(limits)
