"""Tables of all named descriptions and kinds of Parts, so that `anyformer zoo` and `anyformer parts` can list them
without importing torch; the stub of `anyformer.parts`; and names for type checkers only.

python -m anyformer.cli.listing  # writes zoo.json, parts.json, parts/__init__.pyi, known_names.pyi; tests compare them
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.specs.extensions import extensions
from anyformer.specs.messages import plain

if TYPE_CHECKING:
    from anyformer.models import Model
    from anyformer.specs.part import Part

ZOO, PARTS = (Path(__file__).with_name(name) for name in ("zoo.json", "parts.json"))
STUB_HEADER = ("# Written by `python -m anyformer.cli.listing`.", "# fmt: off", "# ruff: noqa: E501")
STUB = Path(__file__).parents[1] / "parts" / "__init__.pyi"
NAMES = Path(__file__).parents[1] / "known_names.pyi"


def read_rows() -> list[dict[str, Any]]:
    """Read the rows of all named descriptions: from zoo.json and from other packages."""
    rows: list[dict[str, Any]] = json.loads(ZOO.read_text(encoding="utf-8"))
    if extensions("families"):
        known = {row["family"] for row in rows}
        rows += count_rows(known)
    return rows


def count_rows(known: Collection[str] = ()) -> list[dict[str, Any]]:
    """Compute the rows of all named descriptions, without the families in `known`."""
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
        if family.name not in known
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
    return "\n".join((*STUB_HEADER, "# ruff: noqa: I001", "", *stubs, ""))


def known_names() -> str:
    """Return the text of known_names.pyi: the keywords of `generate`, and the descriptions of three model shapes."""
    from anyformer import families
    from anyformer.models import DecoderModel, EncoderDecoderModel, EncoderModel

    descriptions = {name: family.read_size(name) for name, family in families.names()}
    shapes = {"DecoderName": DecoderModel, "EncoderName": EncoderModel, "EncoderDecoderName": EncoderDecoderModel}
    names = {alias: [n for n, spec in descriptions.items() if type(spec) is shape] for alias, shape in shapes.items()}
    first = (next(iter(family.sizes)) for family in families.catalogue().values() if family.sizes)
    options = generate_options(descriptions[name] for name in first)
    return "\n".join(
        (
            *STUB_HEADER,
            "",
            "from collections.abc import Callable, Sequence",
            "from typing import Any, Literal, TypedDict",
            "",
            "from torch import Tensor",
            "",
            "from anyformer.models import TransformerModule",
            "from anyformer.runtime.state import State",
            "",
            *(f"{alias} = Literal[{', '.join(map(json.dumps, each))}]" for alias, each in names.items()),
            "",
            "class GenerateOptions(TypedDict, total=False):",
            *(f"    {name}: {annotation}" for name, annotation in sorted(options.items())),
            "",
        )
    )


def generate_options(specs: Iterable[Model]) -> dict[str, str]:
    """Return the types of the keywords of `generate`: inputs of the models that can generate, fields of `Settings`, and
    arguments, without those that its overloads declare."""
    from anyformer.counting.shared_layers import Survey
    from anyformer.generation import Settings, generate
    from anyformer.models.construct import skeleton

    built = (skeleton(spec, Survey) for spec in specs)  # of equal layers one
    models = [model for model in built if model.spec.left_to_right or model.predicts_by_position]
    kinds = {name: model.input_kinds.get(name) for model in models for name in {*model.inputs} - {*model.common}}
    types = {None: "Any", "flag": "bool"}  # other kinds are tensors
    inputs = {name: types.get(kind, "Tensor") for name, kind in kinds.items() if kind != "labels"}
    settings = {field.name: str(field.type) for field in dataclasses.fields(Settings)}
    arguments = {each.name: each.annotation for each in inspect.signature(generate).parameters.values()}
    options = inputs | settings | arguments
    declared = ("model", "input_ids", "return_dict", "return_dict_in_generate", "options")
    return {name: annotation for name, annotation in options.items() if name not in declared}


def collect_kinds() -> dict[str, Any]:
    """Compute the tables of parts.json from our classes."""
    from anyformer.specs.part import kinds_for

    ours = our_kinds()
    return {
        "kinds": describe_kinds(kind for kind in ours.values() if not kind.is_abstract),
        "abstract": [
            {"name": name, "called": kind.called, "kinds": sorted(kinds_for(kind).keys() & ours.keys())}
            for name, kind in sorted(ours.items())
            if kind.is_abstract
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
    NAMES.write_text(known_names(), encoding="utf-8")


if __name__ == "__main__":
    write()
