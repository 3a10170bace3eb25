"""Generate pages of the site: README and examples from the repository, the catalogues from the code.

A hook of mkdocs (mkdocs.yml). `pages` does not need mkdocs; the tests call it directly.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
MOVED = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
NAMES = "<!-- generated: published names -->"  # in howto/transformers.md
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)")


# -- hooks of mkdocs --------------------------------------------------------------------------------------------------


def on_config(config: Any) -> Any:
    """Add pages that mkdocs.yml does not list to the menu; leave out the course if its pages are not generated."""
    if not (ROOT / "docs" / "course" / "index.md").exists():
        config.nav = [each for each in config.nav if "Course" not in each]
    for title, paths in unlisted(config.nav).items():
        if paths:
            menu(config.nav, title).extend(paths)
    return config


def unlisted(nav: Any) -> dict[str, list[str]]:
    """Title of a menu -> the pages of docs/ that it does not list."""
    docs = ROOT / "docs"
    found = [file.relative_to(docs).as_posix() for file in sorted(docs.rglob("*.md"))]
    missing = [path for path in found if f"'{path}'" not in repr(nav)]
    results = [path for path in missing if path.startswith("results/")]
    course = [path for path in missing if path.startswith("course/")]
    others = [path for path in missing if path not in (*results, *course)]
    return {"Course": course, "Results": results, "How to": others}


def menu(nav: Any, title: str) -> Any:
    """The menu with this title, at any depth."""
    for name, below in ((name, below) for each in nav if isinstance(each, dict) for name, below in each.items()):
        if name == title:
            return below
        if isinstance(below, list) and (found := menu(below, title)) is not None:
            return found
    return None


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for path, content in pages().items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links between files of the repository into links between pages."""
    back = {there: here for here, there in MOVED.items()}
    path = page.file.src_uri
    if path.startswith("catalogue/"):
        return markdown
    if NAMES in markdown:
        markdown = markdown.replace(NAMES, published_names())
    source = back.get(path) or (path if path.startswith("examples/") else f"docs/{path}")
    return relinked(markdown, source, path)


def relinked(markdown: str, source: str, path: str) -> str:
    """Rewrite the links of a file of the repository for its page on the site."""

    def moved(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[0]))
        return posixpath.relpath(site_path(target), posixpath.dirname(path) or ".")

    return LINK.sub(moved, markdown)


def site_path(file: str) -> str:
    """Path on the site of a file of the repository."""
    if file.startswith("examples/") and file.endswith(".py"):
        return file.removesuffix(".py") + ".md"
    return MOVED.get(file) or file.removeprefix("docs/")


# -- pages ------------------------------------------------------------------------------------------------------------


def pages() -> dict[str, str]:
    """path on the site -> content"""
    written = {there: (ROOT / here).read_text("utf-8") for here, there in MOVED.items()}
    return written | dict(examples()) | dict(families()) | dict(parts()) | {"catalogue/commands.md": commands()}


def examples() -> Iterator[tuple[str, str]]:
    folder = ROOT / "examples"
    yield "examples/README.md", (folder / "README.md").read_text("utf-8")
    for file in sorted(folder.glob("*.py")):
        yield f"examples/{file.stem}.md", f"# {file.name}\n\n```python\n{file.read_text('utf-8')}```\n"


def families() -> Iterator[tuple[str, str]]:
    from anyformer import families
    from anyformer.cli.listing import read_rows
    from anyformer.cli.terminal import short_number

    sizes: dict[str, list[dict[str, Any]]] = {}
    for row in read_rows():
        sizes.setdefault(row["family"], []).append(row)
    rows = []
    for name, family in families.catalogue().items():
        own = sizes.get(name, [])
        named = ", ".join(f"{row['name']} ({short_number(row['parameters'])})" for row in own)
        rows.append((f"[{name}](families/{name}.md)", family.about, named))
        picture = drawing(own[0]["name"] if own else family.read({}))
        if picture:
            yield f"catalogue/families/{name}.svg", picture
        yield f"catalogue/families/{name}.md", family_page(family, own, bool(picture))
    yield (
        "catalogue/families.md",
        (
            "# Families\n\nGenerated from `src/anyformer/families`. Each family has a page with its sizes, classes and "
            f"config fields.\n\n{table(('family', 'for', 'named descriptions (parameters)'), rows)}"
        ),
    )


def family_page(family: Any, sizes: list[dict[str, Any]], drawn: bool) -> str:
    from anyformer import families
    from anyformer.families.base.fields import Fixed

    spec: Any = family.read_size(sizes[0]["name"]) if sizes else family.read({})
    modules = [importlib.import_module(f"anyformer.families.{name}") for name in families._files()]
    module = next(each for each in modules if family in families._in_file(each.__name__.rpartition(".")[2]))
    home = " ".join((module.__doc__ or "").split())
    lines = [f"# {family.name}", f"{plain(home)}\n\nFor: {family.about}. In `{module.__name__}`."]
    if drawn:
        lines.append(f"![{family.name}]({family.name}.svg)")
    if sizes:
        shown = [(f"`{row['name']}`", f"{row['parameters']:,}", number(row["published"]), row["note"]) for row in sizes]
        lines.append(f"## Sizes\n\n{table(('name', 'parameters', 'as published', ''), shown)}")
    classes = "\n".join(f"- `{each}`" for each in family.architectures)
    lines.append(f"## Classes\n\n{classes or 'No published class; models are saved in our own layout.'}")
    lines.append(f"## Description\n\n```text\n{spec}\n```")
    fields = []
    for name, field in family.all_fields.items():
        if name in family.fields:  # all families have the other fields
            place = f"fixed: {field.why}" if isinstance(field, Fixed) else getattr(field, "why", None)
            place = place or addresses(field) or "computed from the description"
            fields.append((f"`{name}`", f"`{field.default!r}`", place))
    lines.append(f"## Config\n\n{table(('field', 'default', 'address or explanation'), fields)}")
    return "\n\n".join(lines) + "\n"


def addresses(field: Any) -> str:
    """The addresses of an entry; empty if it has none."""
    path = getattr(field, "path", None)
    found = getattr(field, "addresses", ()) or ((path,) if isinstance(path, str) else ())
    return ", ".join(f"`{address}`" for address in sorted(found))


def published_names(least: int = 3) -> str:
    """Table of the config fields that at least this many families have, with the addresses that most families use."""
    from anyformer import families

    names: dict[str, dict[str, int]] = {}
    for family in families.catalogue().values():
        for name, field in family.fields.items():
            if place := addresses(field):
                uses = names.setdefault(name, {})
                uses[place] = uses.get(place, 0) + 1
    rows = []
    for name, uses in sorted(names.items(), key=lambda item: (-sum(item[1].values()), item[0])):
        if sum(uses.values()) >= least:
            first = sorted(uses.items(), key=lambda use: -use[1])[:3]
            rows.append((f"`{name}`", f"{sum(uses.values())}", "; ".join(f"{place} ({n})" for place, n in first)))
    heads = ("published name", "families", "our addresses (families; the three most common)")
    return table(heads, rows)


def drawing(what: Any) -> str:
    """SVG of a description; empty without `anyformer.drawing`."""
    if importlib.util.find_spec("anyformer.drawing") is None:
        return ""
    return importlib.import_module("anyformer.drawing").draw(what).svg


def parts() -> Iterator[tuple[str, str]]:
    from anyformer.specs.slots import about
    from anyformer.train.run import every_kind

    groups: dict[str, list[Any]] = {}
    for _, kind in sorted(every_kind().items()):
        if not kind.is_abstract and kind.__module__.startswith("anyformer."):
            each = about(kind)
            groups.setdefault(each.group if each.group != each.name else "Others", []).append(each)
    lines = ["# Parts", "Generated from the code. `anyformer parts` prints the same."]
    for group in sorted(groups, key=lambda name: (name == "Others", name)):
        rows = [(f"[{each.name}](parts/{group}.md#{each.name.lower()})", each.about, ", ".join(each.called))
                for each in groups[group]]  # fmt: skip
        lines.append(f"## {group}\n\n{table(('kind', 'what it is', 'also called'), rows)}")
        yield f"catalogue/parts/{group}.md", "\n\n".join([f"# {group}", *map(part_section, groups[group])]) + "\n"
    yield "catalogue/parts.md", "\n\n".join(lines) + "\n"


def part_section(each: Any) -> str:
    facts = (("Also called", ", ".join(each.called)), ("Paper", each.paper),
             ("Fits", ", ".join(f"`{slot}`" for slot in each.fits)), ("In", f"`{each.module}`"))  # fmt: skip
    items = "\n".join(f"- {label}: {plain(text)}" for label, text in facts if text)
    lines = [f"## {each.name}", plain(each.text), items]
    if each.fields:
        names = ("name", "type", "default")
        rows = [(*(f"`{field[name]}`" if field[name] else "required" for name in names), field["about"])
                for field in each.fields]  # fmt: skip
        lines.append(table(("field", "type", "default", ""), rows))
    return "\n\n".join(line for line in lines if line)


def commands() -> str:
    from anyformer.cli import main, verbs

    lines = ["# Commands", "Generated from the code: the output of `anyformer VERB --help`."]
    for verb, line in verbs().items():
        out = io.StringIO()
        with mock.patch.dict(os.environ, {"COLUMNS": "112"}), contextlib.redirect_stdout(out):
            main([verb, "--help"])
        lines.append(f"## {verb}\n\n{plain(line[0].upper() + line[1:])}.\n\n```text\n{out.getvalue().strip()}\n```")
    return "\n\n".join(lines) + "\n"


# -- markdown ---------------------------------------------------------------------------------------------------------


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *(tuple(cell(value) for value in row) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def cell(text: str) -> str:
    return plain(text).replace("|", "\\|").replace("\n", " ")


def plain(text: str) -> str:
    """Escape markdown in text from the code, except in `code` and links."""
    kept = re.split(r"(`[^`]*`|!?\[[^\]]*\]\([^)]*\))", text)
    return "".join(piece if i % 2 else re.sub(r"([\\*_<>\[\]#~])", r"\\\1", piece) for i, piece in enumerate(kept))


def number(value: float | None) -> str:
    return f"{value:,.0f}" if value else ""
