"""A page of documentation, followed as a reader follows it: its blocks run in order in one folder.

    ```python               runs; the blocks of a page share their names
    ```pycon                runs as a doctest
    ```bash                 commands
    ```console              commands after `$ `, and below each what it shows
    ```text                 right below a block that runs: what that shows; elsewhere words, never a command
    ```LANGUAGE title="F"   is written to the file F

Before a block, `<!-- not run: REASON -->`. Anywhere, `<!-- given: NAMES -->`: what the page takes for granted. Commands
that would take their time get words that make them small (SMALLER).
"""

from __future__ import annotations

import contextlib
import dataclasses
import doctest
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from anyformer.cli import main

FENCE = re.compile(r"^( *)```(\w*)([^\n`]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"^ *<!-- (not run|given): (.*?) -->", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(\$ |>>> |anyformer |make |pip |python |import |from \w+ import )", re.MULTILINE)
DATA = ("text", "json", "toml", "yaml")
SMALLER = {
    "train": ["--set", "steps=3", "--set", "evaluate.every=3", "--set", "batch.examples=2", "--device", "cpu"],
    "generate": ["--max-new-tokens", "5", "--device", "cpu"],
}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclasses.dataclass(frozen=True)
class Block:
    where: str  # page and line
    kind: str
    title: str
    text: str
    comments: Mapping[str, str]
    shows: str | None  # what the text block below it says


class Wrong(AssertionError):
    """A block that does not do what its page says."""


def blocks(page: str, text: str) -> Iterator[Block]:
    """The blocks of a page in order, each with the comments since the one before."""
    found = [match for match in FENCE.finditer(text)]
    last, follows = 0, False
    for i, match in enumerate(found):
        between = text[last : match.start()]
        last = match.end()
        indent, kind, rest, code = match.groups()
        where = f"{page}:{text.count(chr(10), 0, match.start()) + 1}"
        if follows and not between.strip() and kind == "text":
            follows = False
            continue  # told with the block above
        comments = {name: " ".join(words.split()) for name, words in COMMENT.findall(between)}
        code = "".join(line.removeprefix(indent) for line in code.splitlines(keepends=True))
        title = (re.findall(r'title="(.+?)"', rest) or [""])[0]
        follows = kind in ("python", "bash") and "not run" not in comments and not title
        below = found[i + 1] if i + 1 < len(found) else None
        shown = follows and below is not None and below[2] == "text" and not text[last : below.start()].strip()
        yield Block(where, kind, title, code, comments, below[4] if shown and below else None)
    if "not run" in dict(COMMENT.findall(text[last:])):
        raise Wrong(f"{page}: a `not run` with no block behind it")


class Reader:
    """Whoever follows pages, in the current folder."""

    def __init__(self, given: Mapping[str, Callable[[Path], object]]) -> None:
        self.given, self.module = given, types.ModuleType("page")
        self.said: dict[str, str] = {}  # command -> what it showed

    def follow(self, page: str, text: str) -> None:
        for name in " ".join(words for kind, words in COMMENT.findall(text) if kind == "given").split():
            if not Path(name).exists():
                self.given[name](Path(name))
        for block in blocks(page, text):
            try:
                self.do(block)
            except Wrong as error:
                raise Wrong(f"{block.where}: {error}") from None
            except Exception as error:
                raise Wrong(f"{block.where}: {error!r}\n{traceback.format_exc()}\n{block.text}") from error

    def do(self, block: Block) -> None:
        if not block.kind:
            raise Wrong("a block without a language")
        if "not run" in block.comments:
            return
        if block.title:
            Path(block.title).write_text(block.text, encoding="utf-8")
        elif block.kind == "python":
            with shown() as out:
                exec(compile(block.text, block.where, "exec"), vars(self.module))
            compare(block.shows, out)
        elif block.kind == "pycon":
            test = doctest.DocTestParser().get_doctest(block.text, {}, block.where, None, None)
            test.globs, told = vars(self.module), io.StringIO()
            doctest.DocTestRunner(optionflags=FLAGS).run(test, out=told.write, clear_globs=False)
            if told.getvalue():
                raise Wrong(told.getvalue())
        elif block.kind in ("bash", "console"):
            for line, wanted in commands(block):
                out = command(line, wanted)
                self.said[line] = out.getvalue()
                compare(wanted, out)
        elif block.kind not in DATA:
            raise Wrong(f"nothing runs a block of {block.kind}")
        elif block.kind == "text" and COMMAND.search(block.text):
            raise Wrong("what looks like a command must run, or say why it does not")


@contextlib.contextmanager
def shown() -> Iterator[io.StringIO]:
    """What goes to the terminal, results and the rest together."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        yield out


def compare(wanted: str | None, out: io.StringIO) -> None:
    said = out.getvalue()
    if wanted is not None and not doctest.OutputChecker().check_output(wanted, said, doctest.ELLIPSIS):
        raise Wrong(f"it says that this is shown:\n{wanted}\nand what is shown is:\n{said}")


def commands(block: Block) -> Iterator[tuple[str, str | None]]:
    """(command, what the page says it shows)"""
    text = re.sub(r" *\\\n>? *", " ", block.text)
    if block.kind == "bash":
        lines = [line for line in text.splitlines() if shlex.split(line, comments=True)]
        if block.shows is not None and len(lines) != 1:
            raise Wrong("of several commands, which shows this?")
        yield from ((line, block.shows) for line in lines)
        return
    first, *rest = re.split(r"^\$ ", text, flags=re.MULTILINE)
    if first or not rest:
        raise Wrong("a console begins with `$ ` and a command")
    for each in rest:
        line, _, wanted = each.partition("\n")
        yield line, wanted


def command(line: str, wanted: str | None) -> io.StringIO:
    """Runs it; in this process where it is ours, since each other one would import torch again."""
    words = shlex.split(line, comments=True)
    with shown() as out:
        if words[0] == "anyformer":
            more = () if {"--list", "--show", "--help"} & {*words} else SMALLER.get(words[1], ())
            code = main([*words[1:], *more])
        elif words[0] == "python" and words[1].endswith(".py"):
            code, before = 0, sys.argv
            sys.argv = words[1:]
            try:
                runpy.run_path(words[1], run_name="__main__")
            finally:
                sys.argv = before
        elif words[0] in ("ls", "cat", "head", "mkdir", "cp", "echo"):
            sorting = {**os.environ, "LC_ALL": "C"}
            done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=sorting)
            code = done.returncode
            out.write(done.stdout + done.stderr)
        else:
            raise Wrong(f"nothing here runs `{words[0]}`")
    refusal = wanted is not None and wanted.startswith("anyformer: ")  # a page may show a mistake
    if code != (2 if refusal else 0):
        raise Wrong(f"`{line}` ended with {code}:\n{out.getvalue()}")
    return out
