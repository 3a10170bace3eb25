"""Compute a worked example on your own text: `anyformer show attention "the cat sat down"`. Without a name: list them.

`anyformer show NAME --help` shows the options of an example."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any

from anyformer.cli import Parser
from anyformer.specs.messages import nearest, quote, shorten
from anyformer_course import lesson
from anyformer_course.examples import Example, Parameter, about, read_example
from anyformer_course.shown import names, show

UNSET: Any = object()  # an option that is not given
ABOUT = "Compute a worked example of the lectures on your own text, with numbers and a picture"


def main(given: Sequence[str]) -> None:
    if not given:
        return print_list()
    if given[0].startswith("-"):
        parser = Parser(prog="anyformer show", usage="anyformer show [NAME] [TEXT] [--option VALUE ...]", imports=False,
                        description=__doc__)  # fmt: skip
        parser.parse(given)
    name, *rest = given
    if name not in names():
        raise ValueError(f"no worked example is called {quote(name)}; {nearest(name, names())}")
    example = read_example(name)
    options = parser_of(example).parse(rest)
    given_options = {
        parameter.name: value
        for parameter in example.options
        if (value := getattr(options, parameter.name)) is not UNSET
    }
    try:
        shown = show(name, *read_inputs(example, options.inputs), **given_options)
    except ValueError as error:  # a message quotes the whole text, or its first 200 characters
        message = str(error)
        for text in options.inputs:
            for quoted in (quote(text), repr(text), text):
                message = message.replace(quoted, shorten(repr(text) if quoted != text else text, 80))
        raise ValueError(message) from None
    if options.picture:
        from anyformer_course.render import save_picture

        save_picture(shown, options.picture)
    if options.json:
        print(json.dumps(shown.json(), ensure_ascii=False))
        return
    from anyformer_course.render import console, print_shown

    print_shown(shown, console())
    if options.picture:
        print(f"written: {options.picture}")


def print_list() -> None:
    """Print every worked example with its line, under the first lesson that uses it. Nothing imports torch."""
    from rich.text import Text

    from anyformer_course.render import console

    to = console()
    remaining = names()
    width = max(map(len, remaining))
    groups: list[tuple[str, list[str]]] = []
    for number in lesson.numbers():
        text = (lesson.FOLDER / f"{number}.md").read_text(encoding="utf-8")
        used = [name for name in remaining if f'show("{name}"' in text]
        title = text.partition("\n")[0].lstrip("# ")
        groups.append((title, sorted(used, key=lambda name: text.index(f'show("{name}"'))))
        remaining = [name for name in remaining if name not in used]
    groups.append(("Other examples" if groups else "Worked examples", remaining))
    for title, used in groups:
        if used:
            to.print(Text(f"{title}", style="bold"))
            for name in used:
                to.print(Text.assemble("  ", (f"{name:{width}}", "cyan"), "  ", about(name)))
    to.print(Text("\n`anyformer show NAME --help` shows the options of an example."))


def words() -> list[str]:
    """Return what the shell completes after the verb: the names and the flags of every example."""
    flags = dict.fromkeys(flag for name in names() for flag in parser_of(read_example(name)).flags())
    return [*names(), *flags]


def parser_of(example: Example) -> Parser:
    inputs = (*example.inputs, *([example.rest] if example.rest else ()))
    names = " ".join(each.name.upper() for each in inputs)
    parser = Parser(prog=f"anyformer show {example.name}", description=example.text, imports=False)
    parser.add_argument("inputs", metavar=names or "TEXT", nargs="*", help="; ".join(map(describe, inputs)) or "none")
    for parameter in example.options:
        flag = f"--{parameter.name.replace('_', '-')}"
        if parameter.kind == "bool":
            action = argparse.BooleanOptionalAction
            parser.add_argument(
                flag, dest=parameter.name, action=action, default=UNSET, help=describe(parameter).partition(": ")[2]
            )
        else:
            parser.add_argument(flag, dest=parameter.name, metavar="VALUE", type=converter(parameter), default=UNSET,
                                help=describe(parameter).partition(": ")[2])  # fmt: skip
    parser.add_argument("--picture", metavar="FILE", help="save the picture: .svg, .png or .pdf")
    parser.add_argument("--json", action="store_true", help="print all numbers as JSON")
    return parser


def describe(parameter: Parameter) -> str:
    return f"{parameter.name}: {parameter.kind} ({parameter.default})".replace("%", "%%")


def converter(parameter: Parameter) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            return parameter.read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def read_inputs(example: Example, given: list[str]) -> list[Any]:
    """Convert the inputs of a command line to the types of the example's parameters."""
    if len(given) > len(example.inputs) and not example.rest:
        most = len(example.inputs)
        takes = "one input" if most == 1 else f"{most or 'no'} inputs"
        hint = '; put a text in quotes: "the cat sat down"' if most else ""
        raise ValueError(f"`anyformer show {example.name}` takes {takes}, got {len(given)}{hint}")
    kinds = [*example.inputs, *[example.rest] * (len(given) - len(example.inputs))]
    return [kind.read(text) for kind, text in zip(kinds, given) if kind is not None]
