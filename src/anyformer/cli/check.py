"""Check the Parts that a Python file defines, with the checks of our own test suite.

Each Part is put into a small text model, in the slot that it fits. The checks: a token sees no more than the Part
declares, padding changes nothing, packed documents stay separate, cached decoding equals one pass, a batch equals its
rows, every parameter learns, half precision stays finite, saving and loading give the same model, and the Part can be
counted. The exit code is 1 if a check fails. `af.check(part)` does the same in Python."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.cli.settings import setting
from anyformer.cli.texts import as_json

if TYPE_CHECKING:
    from anyformer.specs.part import Part


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", metavar="FILE", help="a Python file that defines Parts")
    add("--part", metavar="NAME", help="check only this kind")
    what = "value of a field, for the kinds that have it; can be repeated"
    add("--set", metavar="FIELD=VALUE", action="append", default=[], help=what)
    add("--json", action="store_true", help="print a JSON list")


def run(options: argparse.Namespace) -> None:
    path = Path(options.file).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"{options.file}: no such file")

    from anyformer.cli.terminal import spinner, table
    from anyformer.specs.codec import kinds

    kinds()  # register our kinds first, so that errors about duplicate names are about the file
    fields = dict(map(setting, options.set))
    chosen = chosen_kinds(import_file(path), options)
    reports, skipped = [], []
    with spinner(f"checking {path.name}"):
        from anyformer.evaluate.part_checks import check

        for part, missing in parts_of(chosen, fields, options.part is not None):
            if missing:
                skipped.append(missing)
            elif part is not None:
                reports.append(check(part))
    if options.json:
        print(
            as_json(
                [
                    {
                        "part": type(each.part).__name__,
                        "address": each.address,
                        "passed": each.passed,
                        "checks": [dataclasses.asdict(check) for check in each.checks],
                    }
                    for each in reports
                ],
                indent=1,
            )
        )
    else:
        for number, each in enumerate(reports):
            print(f"{'' if number == 0 else chr(10)}{each.title}")
            table(("check", "result", "reason"), each.rows())
    for line in skipped:
        print(line, file=sys.stderr)
    if not reports:
        raise ValueError(f"{options.file}: none of its Parts could be checked")
    if not all(each.passed for each in reports):
        raise SystemExit(1)


def import_file(path: Path) -> str:
    """Import a file as a module and return the module's name."""
    name = path.stem
    if (loaded := sys.modules.get(name)) is not None:
        known = Path(getattr(loaded, "__file__", None) or "")
        if known.is_file() and known.read_bytes() == path.read_bytes():  # the same file, or a copy of it
            return name
        name = f"{name}_parts"  # another module has this name
    source = importlib.util.spec_from_file_location(name, path)
    if source is None or source.loader is None or not name.isidentifier():
        raise ValueError(f"{path}: not a Python file that can be imported")
    module = importlib.util.module_from_spec(source)
    sys.path.append(str(path.resolve().parent))  # so that it can import its neighbours; last, to shadow nothing
    sys.modules[name] = module
    try:
        source.loader.exec_module(module)
    except Exception as error:
        import traceback

        lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == str(path)]
        where = f"{path}:{lines[-1]}" if lines else str(path)
        reason = (str(error).splitlines() or [""])[0]
        raise ValueError(f"{where} cannot be imported ({type(error).__name__}: {reason})") from error
    return name


def chosen_kinds(module: str, options: argparse.Namespace) -> list[type[Part]]:
    from anyformer.specs.messages import nearest
    from anyformer.specs.part import Part

    kinds = {name: kind for name, kind in Part.kinds.items() if kind.__module__ == module and not kind.is_abstract}
    if not kinds:
        raise ValueError(f"{options.file} defines no Part")
    if options.part is None:
        return [*kinds.values()]
    if options.part not in kinds:
        raise ValueError(f"{options.file} defines no Part {options.part!r}; {nearest(options.part, kinds)}")
    return [kinds[options.part]]


def parts_of(chosen: list[type[Part]], fields: dict[str, Any], by_name: bool) -> Iterator[tuple[Part | None, str]]:
    """Yield a Part of each kind, or why it cannot be checked (ValueError if the kind was given by --part)."""
    from anyformer.evaluate.part_checks import addresses_for
    from anyformer.specs.codec import decode
    from anyformer.specs.messages import nearest
    from anyformer.specs.part import default_values, hints

    known = {name for kind in chosen for name in hints(kind)}
    for name in fields:
        if name not in known:
            raise ValueError(f"--set {name}: no Part here has this field; {nearest(name, known)}")
    for kind in chosen:
        values = {name: value for name, value in fields.items() if name in hints(kind)}
        missing = [name for name in hints(kind) if name not in values and name not in default_values(kind)]
        line = ""
        if not addresses_for(kind):
            line = f"{kind.__name__} is not checked: it fits no slot of a small text model"
        elif missing:
            line = f"{kind.__name__} is not checked: give {', '.join(f'--set {name}=VALUE' for name in missing)}"
        if line and by_name:
            raise ValueError(line)
        yield None if line else decode({"kind": kind.__name__, **values}), line
