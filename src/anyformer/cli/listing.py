"""Tables of all named descriptions and kinds of Parts, so that `anyformer zoo` and `anyformer parts` can list them
without importing torch; and the stub of `anyformer.parts`.

python -m anyformer.cli.listing  # writes zoo.json, parts.json and parts/__init__.pyi; tests fail if they are outdated
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.specs.extensions import extensions
from anyformer.specs.messages import plain

if TYPE_CHECKING:
    from anyformer.specs.part import Part

ZOO, PARTS = (Path(__file__).with_name(name) for name in ("zoo.json", "parts.json"))
STUB = Path(__file__).parents[1] / "parts" / "__init__.pyi"


def read_rows() -> list[dict[str, Any]]:
    """Read the rows of all named descriptions: from zoo.json, and those of other packages."""
    rows: list[dict[str, Any]] = json.loads(ZOO.read_text(encoding="utf-8"))
    if extensions("families"):
        known = {row["family"] for row in rows}
        rows += [row for row in count_rows() if row["family"] not in known]
    return rows


def count_rows() -> list[dict[str, Any]]:
    """Compute the rows of all named descriptions."""
    from anyformer import families
    from anyformer.counting import count

    return [
        {
            "name": name,
            "family": family.name,
            "parameters": count(family.read_size(name)).parameters,
            "published": size.published,
            "about": family.about,
            "note": size.note,
        }
        for family in families.catalogue().values()
        for name, size in family.sizes.items()
    ]


def read_kinds() -> list[dict[str, Any]]:
    """Read all of our kinds from parts.json."""
    return json.loads(PARTS.read_text(encoding="utf-8"))["kinds"]


def find_kinds(name: str | None) -> tuple[list[dict[str, Any]], bool] | None:
    """Return kinds from parts.json, and whether to show their details: the kinds with this name and True, or the kinds
    of an abstract kind of this name and False; without a name, all kinds and False. None if the name is unknown."""
    table = json.loads(PARTS.read_text(encoding="utf-8"))
    if name is None:
        return table["kinds"], False

    def is_called(each: dict[str, Any]) -> bool:
        return plain(name) in (plain(own.partition(" (")[0]) for own in (each["name"], *each["called"]))

    if one := [kind for kind in table["kinds"] if is_called(kind)]:
        return one, True
    names = next((each["kinds"] for each in table["abstract"] if is_called(each)), None)
    return None if names is None else ([kind for kind in table["kinds"] if kind["name"] in names], False)


def read_config_fields() -> dict[str, str]:
    """Return every known field of a published config.json, with the families that read it."""
    rows = json.loads(PARTS.read_text(encoding="utf-8"))["config fields"]
    return {row["name"]: row["read by"] for row in rows}


def collect_config_fields() -> list[dict[str, str]]:
    from anyformer import families

    readers: dict[str, list[str]] = {}
    for family in families.catalogue().values():
        for name in sorted({*family.fields, *family.aliases}):
            readers.setdefault(name, []).append(family.name)
    return [{"name": name, "read by": list_some(found)} for name, found in sorted(readers.items())]


def list_some(names: list[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def describe_kinds(kinds: Iterable[type[Part]]) -> list[dict[str, Any]]:
    """Describe each kind as a dict, sorted by group and name."""
    from anyformer.specs.slots import about

    infos = sorted(map(about, kinds), key=lambda each: (each.group, each.name))
    return [dataclasses.asdict(each) for each in infos]


def our_kinds() -> dict[str, type[Part]]:
    from anyformer.train.run import every_kind

    return {name: kind for name, kind in every_kind().items() if kind.__module__.startswith("anyformer.")}


def stub() -> str:
    """Return the text of parts/__init__.pyi, which imports every kind, including abstract ones."""
    names: dict[str, list[str]] = {}
    for name, kind in sorted(our_kinds().items()):
        names.setdefault(kind.__module__, []).append(f"{name} as {name}")
    stubs = [f"from {module} import {', '.join(names[module])}" for module in sorted(names)]
    return "\n".join(
        ("# Written by `python -m anyformer.cli.listing`.", "# ruff: noqa: E501, I001", "# fmt: off", "", *stubs, "")
    )


def collect_kinds() -> dict[str, Any]:
    """Compute the tables of parts.json from our classes."""
    from anyformer.specs.part import abstract, kinds_for

    ours = our_kinds()
    return {
        "kinds": describe_kinds(kind for kind in ours.values() if not abstract(kind)),
        "abstract": [
            {"name": name, "called": kind.called, "kinds": sorted(kinds_for(kind).keys() & ours.keys())}
            for name, kind in sorted(ours.items())
            if abstract(kind)
        ],
        "config fields": collect_config_fields(),
    }


def lines(rows: list[dict[str, Any]]) -> str:
    return "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]"


def write() -> None:
    ZOO.write_text(f"{lines(count_rows())}\n", encoding="utf-8")
    tables = ",\n".join(f'"{name}": {lines(rows)}' for name, rows in collect_kinds().items())
    PARTS.write_text(f"{{\n{tables}\n}}\n", encoding="utf-8")
    STUB.write_text(stub(), encoding="utf-8")


if __name__ == "__main__":
    write()
