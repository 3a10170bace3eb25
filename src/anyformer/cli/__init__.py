"""The command line: `anyformer VERB ...`. Each verb is a file with `arguments(parser)` and `run(options)`.

Nothing here imports torch, so that help, versions and mistakes in the command are shown at once. A user's mistake is
one line on stderr and exit code 2. Only results are written to stdout.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from anyformer._version import __version__
from anyformer.specs.messages import nearest

# verb -> its line in the help; its code is in the file of the same name
VERBS = {
    "zoo": "List every named description: family, parameters, what it is for",
    "parts": "List every kind of Part: what it is, its fields, where it fits, its other names",
    "check": "Check the Parts that a Python file defines, with the checks of our own test suite",
    "count": "Count parameters, FLOPs and memory of a description, by part",
    "draw": "Draw an architecture, or two and their differences",
    "plan": "Plan a training: compute, layouts, time and cost",
    "convert": "Convert a model between the Hugging Face layout and ours",
    "generate": "Continue a prompt and stream the text",
    "chat": "Chat with a model, with a history and commands",
    "run": "Run a task: fill masks, classify, tag, answer, embed, translate, ...",
    "index": "Store the vectors of a file's texts, for search",
    "search": "Find texts by meaning in a file that `index` wrote",
    "train": "Train a model by a recipe or on your data, or resume a run",
    "glue": "Fine-tune a model for each of GLUE's nine tasks and report its score",
    "fetch": "Fetch or generate the data of a recipe",
    "schema": "Print the JSON schema of a run.json, for editors",
    "eval": "Evaluate a model: loss and published metrics on a data set",
    "lab": "Run experiments that check a claim, and grids of trainings",
    "scale": "Measure scaling laws: train several sizes and budgets, and fit the loss",
    "look": "Look inside a model while it reads: attention, residual stream, patching, as a page",
    "completion": "Print a completion script for bash, zsh or fish",
}
MAX_MESSAGE = 4000  # characters of an error message: a checkpoint may have 100,000 wrong names


class Mistake(ValueError):
    """A mistake in the command."""


class Parser(argparse.ArgumentParser):
    """An argument parser that raises instead of exiting, suggests the nearest flag, and adds --import to every verb."""

    def __init__(self, imports: bool = True, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)
        self.set_defaults(imports=[])
        if imports:
            what = "Python module with your own Parts; can be repeated"
            self.add_argument("--import", metavar="MODULE", dest="imports", action="append", default=[], help=what)

    def error(self, message: str) -> NoReturn:
        raise Mistake(f"{message} (see `{self.prog} --help`)")

    def flags(self) -> list[str]:
        return [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        # before argparse, which would report a missing NAME although the unknown flag is the mistake
        for given in arguments[: arguments.index("--") if "--" in arguments else None]:
            flag = given.partition("=")[0]
            if flag.startswith("-") and not flag[1:2].isdecimal() and flag not in (*self._option_string_actions, "-"):
                raise Mistake(f"`{self.prog}` has no flag {flag!r}; {nearest(flag, self.flags())}")
        known, unknown = self.parse_known_intermixed_args(arguments)  # flags may be between arguments
        if unknown and "=" in unknown[0] and "--set" in self.flags():
            self.error(f"did you mean '--set {unknown[0]}'?")
        if unknown:
            self.error(f"unexpected argument {unknown[0]!r}")
        for module in known.imports:
            import_parts(module)
        return known


def import_parts(module: str) -> None:
    """Import the module of --import; no other user code is ever imported."""
    from anyformer.specs.codec import kinds

    kinds()  # register our kinds first, so that errors about duplicate names are about the module
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)  # at the end, so that it does not shadow installed packages
    try:
        importlib.import_module(module)
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError)
        why = str(error) if missing else f"{type(error).__name__}: {error}".splitlines()[0]
        raise Mistake(f"--import {module} cannot be imported ({why})") from error


def commands() -> dict[str, Any]:
    """Return the verbs of other packages and their entry points. Verbs of anyformer cannot be replaced."""
    from anyformer.specs.extensions import extensions

    return {point.name: point for point in extensions("commands") if point.name not in VERBS}


def verbs() -> dict[str, str]:
    """Return every verb and its line in the help, also the verbs of other packages."""
    lines = {}
    for verb, point in commands().items():
        try:
            lines[verb] = point.load().ABOUT
        except Exception as error:  # a broken package must not break the help
            lines[verb] = f"Cannot be imported ({type(error).__name__}: {error})".splitlines()[0]
    return VERBS | lines


def verb_module(verb: str) -> Any:
    """Import the module of a verb."""
    if verb in VERBS:
        return importlib.import_module(f"anyformer.cli.{verb}")
    if verb not in (others := commands()):
        raise Mistake(f"no verb {verb!r}; {nearest(verb, (*VERBS, *others))}")
    try:
        return others[verb].load()
    except ImportError as error:
        raise Mistake(f"`anyformer {verb}` cannot be imported from {others[verb].value} ({error})") from error


def verb_parser(verb: str) -> Parser:
    """Return the parser of a verb whose options do not depend on its first argument."""
    module = verb_module(verb)
    parser = Parser(prog=f"anyformer {verb}", description=module.__doc__)
    if "arguments" in vars(module):
        module.arguments(parser)
    return parser


def top_parser() -> Parser:
    lines = "\n".join(f"  {verb:10} {about}" for verb, about in verbs().items())
    parser = Parser(
        imports=False,
        prog="anyformer",
        usage="anyformer [--help] [--version] VERB ...",
        description="One Transformer: every architecture of the family from one set of parts.",
        epilog=f"verbs:\n{lines}\n\n`anyformer VERB --help` shows its options.",
    )
    parser.add_argument("--version", action="version", version=f"anyformer {__version__}")
    return parser


def dispatch(arguments: Sequence[str]) -> None:
    if not arguments or arguments[0].startswith("-"):
        parser = top_parser()
        parser.parse(arguments)  # --help and --version end here
        parser.print_help()
        return
    verb, *rest = arguments
    module = verb_module(verb)
    if "main" in vars(module):  # its options depend on its first argument
        return module.main(rest)
    module.run(verb_parser(verb).parse(rest))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    return run_guarded(lambda: dispatch(sys.argv[1:] if arguments is None else list(arguments)))


def run_guarded(command: Callable[[], object]) -> int:
    """Run a command and return its exit code; print an error as one line on stderr."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *where: warn_once(str(message))
            warn_once = functools.cache(lambda message: tell(f"warning: {message}"))
            command()
        sys.stdout.flush()  # so that a full disk or a closed pipe is handled below
        return 0
    except SystemExit as stop:  # argparse after --help and --version
        return int(stop.code or 0)
    except KeyboardInterrupt:
        return say("stopped", 130)
    except BrokenPipeError:  # `anyformer zoo | head`: the reader closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (ValueError, FloatingPointError, OSError, MemoryError) as error:
        return say(describe(error), 2)
    except Exception as error:
        if "allocate memory" in str(error) or type(error).__name__ == "OutOfMemoryError":
            return say(describe(error), 2)
        from anyformer.specs.part_errors import error_origin

        hint = "" if debug_enabled() else "; ANYFORMER_DEBUG=1 shows where"
        if (origin := error_origin(error)) is not None:
            return say(f"{origin}: {type(error).__name__}: {error}{hint}", 2)
        return say(f"this is a bug in anyformer, please report it{hint}: {type(error).__name__}: {error}", 1)


def debug_enabled() -> bool:
    return os.environ.get("ANYFORMER_DEBUG", "") not in ("", "0")


def describe(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "not enough memory"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def say(message: str, code: int) -> int:
    """Print one line on stderr, after the traceback if ANYFORMER_DEBUG is set."""
    if debug_enabled() and code != 130:
        import traceback

        traceback.print_exc()
    tell(message)
    return code


def tell(message: str) -> None:
    line = "".join(c if c.isprintable() else " " for c in message)
    if len(line) > MAX_MESSAGE:
        line = f"{line[:MAX_MESSAGE]} ... ({len(line) - MAX_MESSAGE:,} more characters)"
    print(f"anyformer: {line}", file=sys.stderr)
