"""List every kind of Part that a description is made of; with NAME, its fields, the slots it fits, its paper.

NAME may be any name that people use: rotary, swiglu, mamba, gqa. If no Part is called NAME, everything that mentions
it is listed: Parts and fields, options, families, recipes, tasks, experiments. --slot lists the kinds that fit at an
address, such as decoder.layers.attention.op, or in a field of a kind, such as Attention.position."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import sys
from importlib.metadata import entry_points
from textwrap import shorten
from typing import Any

from anyformer.cli import listing, tell
from anyformer.cli.find_mentions import families_called, mentions
from anyformer.cli.texts import as_json
from anyformer.specs.messages import plain

MAX_WIDTH = 90  # characters of the one-line description of a kind
MAX_MENTIONS = 12  # most mentions of a term to show
IF_EMPTY = {"default": "(needed)"}

Kind = dict[str, Any]  # a specs.slots.About as a dict


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("name", metavar="NAME", nargs="?", help="show only this kind, by its name or another name for it")
    add("--slot", metavar="PATH", help="list the kinds that fit at this address of a model or a run")
    add("--json", action="store_true", help="print a JSON list")


def run(options: argparse.Namespace) -> None:
    if options.name is not None and options.slot is not None:
        raise ValueError("give NAME or --slot, not both")
    found = listing.find_kinds(options.name) if only_ours() and options.slot is None else None
    if found is None and (options.slot is not None or not only_ours()):
        with contextlib.suppress(ValueError) if options.slot is None else contextlib.nullcontext():
            found = ask_kinds(options.name, options.slot)
    if found is None:
        rows = [] if options.json else mentions(options.name, listing.read_kinds())
        if not rows:
            raise ValueError(
                f"no Part is called {options.name!r}, and nothing mentions it; {nearest_name(options.name)}"
            )
        show_mentions(options.name, rows)
        return
    kinds, whole = found
    if options.json:
        print(as_json(kinds, indent=1))
    elif whole:
        for each in kinds:
            show(each)
    else:
        show_all(kinds)
    if options.name is not None and not options.json:
        for family, about in families_called(options.name).items():
            print(f"family {family}: {about} (`anyformer zoo {family}`)")


def nearest_name(name: str) -> str:
    """Return the end of an error message: the kind with the most similar name."""
    names = {plain(own.partition(" (")[0]): each["name"] for each in listing.read_kinds()
             for own in (*each["called"], each["name"])}  # fmt: skip
    cutoff = 0.9 if " " in name else 0.8  # "paged attention" is not a typo of "sparse attention"
    close = difflib.get_close_matches(plain(name), names, n=1, cutoff=cutoff)
    return f"did you mean {names[close[0]]!r}?" if close else "`anyformer parts` lists every kind of Part"


def only_ours() -> bool:
    """Return whether parts.json, which is read without importing torch, lists all kinds: no other Part was defined (by
    --import or the calling program), and no installed package provides any."""
    return "anyformer.specs.part" not in sys.modules and not entry_points(group="anyformer.parts")


def ask_kinds(name: str | None, address: str | None) -> tuple[list[Kind], bool]:
    """Return the kinds with this name, or that fit at this address, and whether to show their details."""
    from anyformer.models import Model
    from anyformer.specs.field_types import type_name
    from anyformer.specs.part import Part, kinds_for, kinds_named, slot_types
    from anyformer.specs.slots import slot_at
    from anyformer.train.run import Run, every_kind

    every_kind()
    kinds = [] if name is None else kinds_named(name)
    slot = Part if address is None else slot_at(address, (Model, Run))
    if not slot_types(slot):
        raise ValueError(f"{address} takes no Part, but {type_name(slot)}")
    one = [kind for kind in kinds if not kind.is_abstract]
    return listing.describe_kinds(one or kinds_for(kinds[0] if kinds else slot).values()), bool(one)


def show_all(infos: list[Kind]) -> None:
    """Print one line per kind, grouped by base class; kinds without one are listed last."""
    from anyformer.cli.terminal import table

    ungrouped = [each for each in infos if each["group"] == each["name"]]
    names = dict.fromkeys(each["group"] for each in infos if each not in ungrouped)
    groups = {name: [each for each in infos if each["group"] == name] for name in names}
    if ungrouped:
        groups["others"] = ungrouped
    rows = []
    for group, kinds in groups.items():
        rows.append((group, "", ""))
        for each in kinds:
            called = ", ".join(name.partition(" (")[0] for name in each["called"])
            rows.append((f"  {each['name']}", brief(each["about"]), brief(called)))
    table(("kind", "what it is", "also called"), rows)


def brief(text: str) -> str:
    return shorten(text, MAX_WIDTH, placeholder=" ...")


def show_mentions(name: str, rows: list[tuple[str, str]]) -> None:
    from anyformer.cli.terminal import table

    tell(f"no Part is called {name!r}; it is mentioned here:")
    table(("where", "what it is"), [(where, brief(about)) for where, about in rows[:MAX_MENTIONS]])
    if len(rows) > MAX_MENTIONS:
        tell(f"and in {len(rows) - MAX_MENTIONS} more places")


def show(each: Kind) -> None:
    from anyformer.cli.terminal import table

    print(f"{each['name']}: {each['text']}")
    lines = (
        ("a kind of", each["group"] if each["group"] != each["name"] else ""),
        ("fits", ", ".join(each["fits"])),
        ("also called", ", ".join(each["called"])),
        ("paper", each["paper"]),
        ("in", each["module"]),
    )
    for label, value in lines:
        if value:
            print(f"{label}: {value}")
    if each["fields"]:
        print()
        columns = ("name", "default", "about", "type")
        rows = [[field[name] or IF_EMPTY.get(name, "") for name in columns] for field in each["fields"]]
        table(("field", "default", "", "type"), rows)
    name = each["name"]
    print(f'\nin JSON: {{"kind": "{name}", ...}}; in Python: af.parts.{name}(...)')
