"""A page of documentation, followed as a reader follows it: its blocks run in order in one folder.

The Python blocks of a page share a new process, its `anyformer` commands share another, and each `python FILE` has its
own. These processes are forks of a server, so a page cannot profit from what another page imported. A `fresh` reader's
server has imported torch and other libraries but not anyformer; so has the server of files. The others have also read
the catalogue of families and imported the trainer, as nearly every page does first.

    ```python               runs; the blocks of a page share their names
    ```pycon                runs as a doctest
    ```bash                 commands
    ```console              commands after `$ `, each with its output below
    ```text                 directly below a block that runs: its output; elsewhere: text without commands
    ```LANGUAGE title="F"   is written to the file F

`<!-- not run: REASON -->` before a block skips it. `<!-- given: NAMES -->` anywhere creates these files before the page
runs. Slow commands get extra options that make them small (SMALLER).
"""

from __future__ import annotations

import contextlib
import dataclasses
import doctest
import gc
import importlib
import inspect
import io
import multiprocessing
import os
import re
import resource
import runpy
import shlex
import socket
import subprocess
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

FENCE = re.compile(r"^( *)```(\w*)([^\n`]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"^ *<!-- (not run|given): (.*?) -->", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(\$ |>>> |anyformer |make |pip |python |import |from \w+ import )", re.MULTILINE)
DATA = ("text", "json", "toml", "yaml")
SMALLER = {
    "train": ["--set", "steps=3", "--set", "evaluate.every=3", "--set", "evaluate.sample=null",
              "--set", "batch.examples=2", "--device", "cpu"],
    "generate": ["--max-new-tokens", "5", "--device", "cpu"],
}  # fmt: skip
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
SOURCES = Path(__file__).resolve().parents[1] / "src"
IMPORTED = (  # slow imports, done once by the server
    "torch", "torch._dynamo", "torch.distributed.fsdp", "torch.nn.attention.flex_attention", "numpy", "tokenizers",
    "safetensors.torch", "huggingface_hub", "rich.progress", "matplotlib.pyplot", "PIL.Image", "sklearn.metrics",
    "transformers.pipelines", "transformers.generation", "accelerate",
)  # fmt: skip
OURS = ("families", "cli", "train.start", "recipes.shared.own_text", "tasks", "evaluate.part_checks", "look.trace")
CPU_SECONDS = 600  # limit of one process


@dataclasses.dataclass(frozen=True)
class Block:
    where: str  # page and line
    kind: str
    title: str
    text: str
    comments: Mapping[str, str]
    shows: str | None  # the output in the text block below it


class Wrong(AssertionError):
    """A block fails, or its output differs from the page."""


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
            continue  # it is `shows` of the block above
        comments = {name: " ".join(words.split()) for name, words in COMMENT.findall(between)}
        code = "".join(line.removeprefix(indent) for line in code.splitlines(keepends=True))
        title = (re.findall(r'title="(.+?)"', rest) or [""])[0]
        follows = kind in ("python", "bash") and "not run" not in comments and not title
        below = found[i + 1] if i + 1 < len(found) else None
        shown = follows and below is not None and below[2] == "text" and not text[last : below.start()].strip()
        yield Block(where, kind, title, code, comments, below[4] if shown and below else None)
    if "not run" in dict(COMMENT.findall(text[last:])):
        raise Wrong(f"{page}: `not run` without a block after it")


class Reader:
    """Follows pages in the current folder. `server` starts the processes that run their blocks; with `fresh` they have
    not imported anyformer."""

    def __init__(self, server: Server, given: Mapping[str, Callable[[Path], object]], fresh: bool = False) -> None:
        self.server, self.given, self.fresh = server, given, fresh
        self.processes: dict[str, Process] = {}  # of the current page: "python" and "anyformer"
        self.outputs: dict[str, str] = {}  # command -> its output

    def follow(self, page: str, text: str) -> None:
        for name in " ".join(words for kind, words in COMMENT.findall(text) if kind == "given").split():
            if not Path(name).exists():
                self.given[name](Path(name))
        try:
            for block in blocks(page, text):
                try:
                    self.do(block)
                except Wrong as error:
                    raise Wrong(f"{block.where}: {error}\n{block.text}") from None
        finally:
            self.close()

    def close(self) -> None:
        """End the processes of a page."""
        for process in self.processes.values():
            process.close()
        self.processes.clear()

    def process(self, name: str) -> Process:
        if name not in self.processes:
            self.processes[name] = Process(self.server, ready=not self.fresh)
        return self.processes[name]

    def do(self, block: Block) -> None:
        if not block.kind:
            raise Wrong("the block has no language")
        if "not run" in block.comments:
            return
        if block.title:
            Path(block.title).write_text(block.text, encoding="utf-8")
        elif block.kind == "python":
            compare(block.shows, self.process("python").run(run_block, block.text, block.where))
        elif block.kind == "pycon":
            if differences := self.process("python").run(run_doctest, block.text, block.where):
                raise Wrong(differences)
        elif block.kind in ("bash", "console"):
            for line, wanted in commands(block):
                compare(wanted, self.command(line, wanted))
        elif block.kind not in DATA:
            raise Wrong(f"blocks of {block.kind} are not supported")
        elif block.kind == "text" and COMMAND.search(block.text):
            raise Wrong("a text block contains a command: use bash or console, or `<!-- not run: REASON -->`")

    def command(self, line: str, wanted: str | None = None) -> str:
        """Run a command and return its output. If `wanted` shows a user's mistake, the command must fail."""
        words = shlex.split(line, comments=True)
        if words[0] == "anyformer":
            more = () if {"--list", "--show", "--help"} & {*words} else SMALLER.get(words[1], ())
            code, out = self.process("anyformer").run(run_anyformer, [*words[1:], *more])
        elif words[0] == "python" and words[1].endswith(".py"):
            code, out = 0, run_alone(self.server, words[1:])
        elif words[0] in ("ls", "cat", "head", "mkdir", "cp", "echo"):
            sorting = {**os.environ, "LC_ALL": "C"}
            done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=sorting)
            code, out = done.returncode, done.stdout + done.stderr
        else:
            raise Wrong(f"the command `{words[0]}` is not supported")
        refusal = wanted is not None and wanted.startswith("anyformer: ")  # a page may show a mistake
        if code != (2 if refusal else 0):
            raise Wrong(f"`{line}` ended with {code}:\n{out}")
        self.outputs[line] = out
        return out


def compare(wanted: str | None, out: str) -> None:
    if wanted is not None and not doctest.OutputChecker().check_output(wanted, out, doctest.ELLIPSIS):
        raise Wrong(f"output of the page:\n{wanted}\nactual output:\n{out}")


def commands(block: Block) -> Iterator[tuple[str, str | None]]:
    """Yield (command, output on the page)."""
    text = re.sub(r" *\\\n>? *", " ", block.text)
    if block.kind == "bash":
        lines = [line for line in text.splitlines() if shlex.split(line, comments=True)]
        if block.shows is not None and len(lines) != 1:
            raise Wrong("an output below several commands: use a console block")
        yield from ((line, block.shows) for line in lines)
        return
    first, *rest = re.split(r"^\$ ", text, flags=re.MULTILINE)
    if first or not rest:
        raise Wrong("a console block must start with `$ ` and a command")
    for each in rest:
        line, _, wanted = each.partition("\n")
        yield line, wanted


# -- processes --------------------------------------------------------------------------------------------------------


class Server:
    """A process that imports the libraries in IMPORTED once and then forks itself for every `Process`. A fork of it,
    which has also imported OURS, does the same for the processes that are `ready`."""

    def __init__(self) -> None:
        pairs = [socket.socketpair() for _ in range(2)]
        theirs = [pair[1] for pair in pairs]
        self.bare, self.ready = (pair[0] for pair in pairs)
        path = os.pathsep.join((str(SOURCES), os.environ.get("PYTHONPATH", "")))
        self.own = subprocess.Popen(
            [sys.executable, __file__, *(str(each.fileno()) for each in theirs)],
            pass_fds=[each.fileno() for each in theirs],
            env={**os.environ, "PYTHONPATH": path},
        )
        for each in theirs:
            each.close()

    def fork(self, ready: bool) -> Connection:
        """Start a process; return the pipe to it."""
        pipe, theirs = multiprocessing.Pipe()
        socket.send_fds(self.ready if ready else self.bare, [b"."], [theirs.fileno()])
        theirs.close()
        return pipe

    def close(self) -> None:
        self.bare.close()
        self.ready.close()
        self.own.wait()


class Process:
    """A new Python in the current folder. It has not imported anyformer, unless it is `ready`."""

    def __init__(self, server: Server, ready: bool = False) -> None:
        self.pipe = server.fork(ready)
        self.pipe.send(os.getcwd())

    def run(self, function: Callable[..., Any], *values: Any) -> Any:
        """The result of one of the functions below. `Wrong` if it raises an exception."""
        self.pipe.send((function.__name__, *values))
        try:
            result, error = self.pipe.recv()
        except EOFError:
            raise Wrong("the process that ran this has died") from None
        if error:
            raise Wrong(error)
        return result

    def close(self) -> None:
        self.pipe.close()


def run_alone(server: Server, words: list[str]) -> str:
    """Run `python FILE ...` in a new process; return its output."""
    process = Process(server)
    try:
        return process.run(run_file, words)
    finally:
        process.close()


def start(bare: socket.socket, ready: socket.socket) -> None:
    """Import the libraries, fork the server that has imported anyformer too, and serve."""
    for name in IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    inspect.getmodule(sys._getframe())  # fills a cache; torch.library looks for the module of every operator
    gc.freeze()
    child = os.fork()
    if child == 0:
        bare.close()
        modules = [importlib.import_module(f"anyformer.{name}") for name in OURS]
        assert modules[0].catalogue()
        serve(ready)
        os._exit(0)
    ready.close()
    serve(bare)
    os.waitpid(child, 0)


def serve(control: socket.socket) -> None:
    """One fork for every pipe that arrives, until the tests close the connection."""
    children = []
    while fds := socket.recv_fds(control, 1, 1)[1]:
        child = os.fork()
        if child == 0:
            control.close()
            try:
                answer(Connection(fds[0]))
            finally:
                os._exit(0)
        children.append(child)
        os.close(fds[0])
    for child in children:
        os.waitpid(child, 0)


def answer(pipe: Connection) -> None:
    """In a forked process: run the requested functions until the pipe is closed."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    os.chdir(pipe.recv())
    sys.path[0] = ""  # as at Python's prompt, instead of the folder of this file
    sys.modules["page"] = types.ModuleType("page")
    while True:
        try:
            name, *values = pipe.recv()
        except EOFError:
            return
        try:
            result, error = globals()[name](*values), None
        except (Exception, SystemExit) as raised:
            result, error = None, f"{raised!r}\n{traceback.format_exc()}"
        pipe.send((result, error))


@contextlib.contextmanager
def shown() -> Iterator[io.StringIO]:
    """Collect stdout and stderr."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        yield out


# These run in forked processes.


def run_block(code: str, where: str) -> str:
    """Run Python code; return its output."""
    with shown() as out:
        exec(compile(code, where, "exec"), vars(sys.modules["page"]))
    return out.getvalue()


def run_doctest(text: str, where: str) -> str:
    """Run a session of Python's prompt; return a message about every result that differs."""
    test = doctest.DocTestParser().get_doctest(text, {}, where, None, None)
    test.globs, report = vars(sys.modules["page"]), io.StringIO()
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=report.write, clear_globs=False)
    return report.getvalue()


def run_anyformer(words: list[str]) -> tuple[int, str]:
    """Run `anyformer WORDS`; return its exit code and output."""
    from anyformer.cli import main

    with shown() as out:
        code = main(words)
    return code, out.getvalue()


def run_file(words: list[str]) -> str:
    """Run a Python file with arguments; return its output."""
    sys.argv, sys.path[0] = words, str(Path(words[0]).resolve().parent)
    with shown() as out:
        runpy.run_path(words[0], run_name="__main__")
    return out.getvalue()


if __name__ == "__main__":
    start(*(socket.socket(fileno=int(number)) for number in sys.argv[1:]))
