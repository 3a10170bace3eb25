"""Fill in the last column of docs/lectures.md: `python docs/lectures.py [WORDS]`. With WORDS, only rows whose command
contains them.

Fast commands run here, and their results are written. Results of trainings and experiments are quotations: "figure
([page](results/page.md))", and the page must contain the figure ("..." replaces words). An experiment without a
quotation gets its figure from results/lab.md, or its claim if nothing is measured yet. Other cells are not changed.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import runpy
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "lectures.md"
ROW = re.compile(r"^\| (?!what |-)(.*?) \| (.*?) ?\| (?:`(.*)` )?\| (.*?) ?\|$")
QUOTATION = re.compile(r"(.*) \(\[\w+\]\((results/\w+\.md)\)\)")
HUB = re.compile(r"\b(?:openai-community|google-bert|google)/[\w-]+")  # a published model, which may not be cached


class Row(NamedTuple):
    what: str
    paper: str
    command: str
    result: str

    def __str__(self) -> str:
        command = f"`{self.command}` " if self.command else ""
        return f"| {self.what} | {self.paper}{' ' if self.paper else ''}| {command}| {self.result} |"


def rows(text: str) -> Iterator[Row]:
    for line in text.splitlines():
        if match := ROW.match(line):
            yield Row(*(cell or "" for cell in match.groups()))


def run(command: str, *more: str) -> Any:
    """Return the output of a command, or the value of an expression."""
    words = [*shlex.split(command), *more] if command.startswith(("anyformer ", "python ")) else []
    if not words:
        import torch

        import anyformer as af

        return eval(command, {"af": af, "torch": torch})
    with contextlib.redirect_stdout(io.StringIO()) as out:
        if words[0] == "anyformer":
            from anyformer.cli import main

            with contextlib.redirect_stderr(io.StringIO()) as errors:
                code = main(words[1:])
            assert code == 0, f"{command} ended with {code}: {errors.getvalue()}"
        else:
            import anyformer_course.lab.narang_table as module

            assert words[1:3] == ["-m", module.__name__], command
            before, sys.argv = sys.argv, words[2:]
            try:
                runpy.run_path(module.__file__, run_name="__main__")
            finally:
                sys.argv = before
    return out.getvalue()


# -- results ----------------------------------------------------------------------------------------------------------


def result(row: Row) -> str | None:
    """Run a fast command and return its result, or return the known result of an experiment; None for other rows."""
    command, words = row.command, (shlex.split(row.command) if row.command.startswith("anyformer ") else [])
    quoted, model = QUOTATION.match(row.result), HUB.search(command)
    if not command or {"--help", "--show"} & {*words}:
        return None
    if model is not None and not Path(model[0]).is_dir() and "--picture" not in words:
        return None
    if words[1:3] == ["lab", "run"]:
        return None if is_quoted(row.result) else experiment_result(words[3])
    if quoted or words[1:2] not in ([], ["count"], ["draw"], ["plan"], ["look"]) or ".html" in command:
        return None
    if words:
        return CELLS[words[1]](command, words)
    if not command.startswith("python "):
        return show(run(command))
    cells = [cell.strip() for cell in run(command).splitlines()[2].split("|")]
    return f"{cells[2]}M (paper {cells[3]}M), {cells[5]}T operations (paper {cells[6]}T)"


def count_cell(command: str, words: list[str]) -> str:
    if "--by" in words:
        first, *_, last = (line.split() for line in run(command).splitlines()[2:])
        return f"outside attention's products: {first[-1]} ({first[0]}) to {last[-1]} ({last[0]})"
    found = json.loads(run(command, "--json"))
    image = next((found["flops"][key] for key in ("image", "input") if key in found.get("flops", ())), 0)
    flops = f", {image / 2e9:.3g}G multiply-adds per image" if image else ""
    active = f", {short(found['active'])} active" if found["active"] != found["parameters"] else ""
    return f"{size(words[2])}{active}{flops}"


def draw_cell(command: str, words: list[str]) -> str:
    run(command)
    sizes = [size(name) for name in words[2 : words.index("-o")]]
    return f"a drawing; {sizes[0]}" if len(sizes) == 1 else f"both drawn, differences marked; {' and '.join(sizes)}"


def plan_cell(command: str, words: list[str]) -> str:
    plan = json.loads(run(command, "--json"))
    optimal = ", ".join(f"{each['law']} {short(each['parameters'])}" for each in plan["optimal"])
    losses = ", ".join(f"{loss:.2f} by {law}" for law, loss in (plan.get("loss") or {}).items())
    return (
        f"{plan['compute']:.3g} FLOPs" + f"; loss {losses}" * bool(losses) + f"; best size: {optimal}" * bool(optimal)
    )


def look_cell(command: str, words: list[str]) -> str:
    from anyformer_course.pictures.lectures import PICTURES

    if (model := HUB.search(command)) is None or Path(model[0]).is_dir():
        run(command)
    return f"a picture: {PICTURES[words[words.index('--picture') + 1]].about.partition('; INPUT')[0]}"


CELLS = {"count": count_cell, "draw": draw_cell, "plan": plan_cell, "look": look_cell}


def show(value: Any) -> str:
    if hasattr(value, "checks"):  # a report of af.check
        passed = [check.name for check in value.checks if check.result == "passed"]
        return f"{len(passed)} checks pass ({', '.join(passed)}), {len(value.failures)} fail"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else f"`{value}`"


def size(name: str) -> str:
    """Number of parameters, and the published number in parentheses."""
    from anyformer import families
    from anyformer.counting import count

    family = next(family for family in families.catalogue().values() if name in family.sizes)
    published = family.sizes[name].published
    return short(count(family.read_size(name)).parameters) + (f" ({short(published)})" if published else "")


def short(number: float) -> str:
    from anyformer.cli.terminal import short_number

    return short_number(int(number))


def experiment_result(name: str) -> str:
    from anyformer.lab.registry import experiment

    for line in (DOCS / "results" / "lab.md").read_text("utf-8").splitlines():
        if line.startswith(f"| {name} | "):
            first, *rest = re.split(r"(?<=[;.]) ", line.split(" | ")[2].replace("**", "").partition(" ([")[0])
            figure = next((first + f" {piece}" for piece in rest[:1] if len(first + piece) < 120), first)
            return f"{figure.rstrip(';.')} ([lab](results/lab.md))"
    return f"not measured yet; claim: {experiment(name).CLAIM}"


# -- quotations -------------------------------------------------------------------------------------------------------


def plain(text: str) -> str:
    return " ".join(text.replace("**", "").split())


def is_quoted(result: str) -> bool:
    """Whether the page that a result links to contains its words."""
    match = QUOTATION.fullmatch(result)
    page = plain((DOCS / match[2]).read_text("utf-8")) if match else ""
    return match is not None and all(piece in page for piece in plain(match[1]).split(" ... "))


def fill(text: str, words: str = "") -> str:
    """Return the page with new results in all rows whose command contains `words`."""
    found = {row: row._replace(result=(words in row.command and result(row)) or row.result) for row in rows(text)}
    return "\n".join(str(found[Row(*(cell or "" for cell in match.groups()))]) if (match := ROW.match(line)) else line
                     for line in text.split("\n"))  # fmt: skip


if __name__ == "__main__":
    before = PAGE.read_text("utf-8")
    folder = Path.cwd()
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        try:
            PAGE.write_text(fill(before, " ".join(sys.argv[1:])), "utf-8")
        finally:
            os.chdir(folder)
    for row in rows(PAGE.read_text("utf-8")):
        if not row.result or ("(results/" in row.result and not is_quoted(row.result)):
            print(f"needs a result: {row}")
