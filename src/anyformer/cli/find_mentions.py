"""Find what mentions a term: Parts, their fields, options of commands and of `af.generate`, families, published config
fields, recipes, tasks, experiments, and the files of the package.

Nothing here imports torch."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from anyformer.cli import listing, verb_module, verb_parser, verbs
from anyformer.specs.messages import plain

STOP_WORDS = {"a", "an", "and", "by", "for", "in", "of", "on", "or", "the", "to", "with"}

PACKAGE = Path(__file__).parent.parent
LISTED = ("cli", "families", "recipes", "tasks/each")  # folders whose files have other rows

Row = tuple[str, str, str]  # where, what is searched, what is shown


def mentions(term: str, kinds: Iterable[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return (where, what it is) of everything that mentions all words of a term; matches in names are first."""
    found = {f"anyformer zoo {family}": about for family, about in families_called(term).items()}
    names = [*_names(kinds)]
    found |= {where: about for where, text, about in names if plain(text) == plain(term)}
    for rows in (names, _texts(kinds)):
        for where, text, about in rows:
            if is_in(term, text):
                found.setdefault(where, about)
    readers = listing.read_config_fields()
    found |= {f"config.json: {name}": f"read by {readers[name]}" for name in readers if plain(name) == plain(term)}
    return [*found.items()]


def families_called(name: str) -> dict[str, str]:
    """Return {family: what it is for} of all families whose names begin with `name`: deepseek, Qwen, BigBird."""
    wanted = plain(name)
    rows = listing.read_rows() if len(wanted) > 1 else []
    found = {row["family"]: row["about"] for row in rows if plain(row["family"]).startswith(wanted)}
    return dict(sorted(found.items(), key=lambda each: plain(each[0]) != wanted))  # an exact match is first


def is_in(term: str, text: str) -> bool:
    """Return whether a text has the words of a term, ignoring endings: masking is in "masked", "warm-up" in "warmup".

    >>> is_in("warm-up steps", "WarmupSteps"), is_in("act", "character")
    (True, False)
    """
    words = [word for word in _words(term) if word not in STOP_WORDS]
    there = _words(text)
    pairs = {first + second for first, second in pairwise(there)}
    stems = [word[: max(5, len(word) // 2 + 1)] for word in words]
    if stems and all(_begins(stem, there) for stem in stems):
        return True
    return plain(term) in {*there, *pairs} or "".join(words) in there


def _begins(stem: str, words: tuple[str, ...]) -> bool:
    """Return whether a word begins with `stem`; a short stem matches only a whole word or its plural."""
    if len(stem) > 4:
        return any(word.startswith(stem) for word in words)
    return stem.removesuffix("s") in (word.removesuffix("s") for word in words)


@functools.cache
def _words(text: str) -> tuple[str, ...]:
    return tuple(word.lower() for word in re.findall(r"[A-Z]+[0-9]*(?![a-z])|[A-Z]?[a-z]+[0-9]*|[0-9]+", text))


def _names(kinds: Iterable[dict[str, Any]]) -> Iterator[Row]:
    from anyformer.lab.registry import experiments
    from anyformer.recipes import recipes
    from anyformer.tasks import TASKS

    for kind in kinds:
        for name in (kind["name"], *kind["called"]):
            yield kind["name"], f"{name} {kind['group']}", kind["about"]
        for field in kind["fields"]:
            yield f"{kind['name']}.{field['name']}", field["name"], field["about"] or kind["about"]
    for row in listing.read_rows():
        yield f"anyformer zoo {row['family']}", f"{row['family']} {row['name']}", row["about"]
    for verb, about in verbs().items():
        yield f"anyformer {verb}", verb, about
        yield from _options(verb)
    for task, info in TASKS.items():
        for name in (task, *info.called, info.line):
            yield f"anyformer run {task}", name, info.line
    for name, about in experiments().items():
        yield f"anyformer lab run {name}", f"{name} {about}", about
    for name, about in recipes().items():
        yield f"anyformer train {name}", f"{name} {about}", about
    for name, about in generation_options().items():
        yield f"af.generate({name}=...)", f"{name} {about}", about


def _options(verb: str) -> Iterator[Row]:
    for action in verb_parser(verb)._actions:
        flag = action.option_strings[-1] if action.option_strings else ""
        yield f"anyformer {verb} {flag}".rstrip(), f"{flag} {action.help}", action.help or ""


def _texts(kinds: Iterable[dict[str, Any]]) -> Iterator[Row]:
    for kind in kinds:
        for field in kind["fields"]:
            yield f"{kind['name']}.{field['name']}", f"{kind['name']} {field['name']} {field['about']}", field["about"]
        yield kind["name"], " ".join((kind["name"], *kind["called"], kind["text"])), kind["about"]
    for row in listing.read_rows():
        yield f"anyformer zoo {row['family']}", f"{row['about']} {row['note']}", row["about"]
    for verb, about in verbs().items():
        text = verb_module(verb).__doc__ or ""
        yield f"anyformer {verb} --help", f"{about} {text}", about
    for path, about in files().items():
        yield path, f"{path} {about}", about


def generation_options() -> dict[str, str]:
    """Return the options of `af.generate` and their comments in the source."""
    source = (PACKAGE / "generation" / "options.py").read_text(encoding="utf-8")
    fields = source.partition("class Settings:")[2].partition("@property")[0]
    return dict(re.findall(r"^    (\w+): [^#\n]*(?:# (.*))?$", fields, re.MULTILINE))


@functools.cache
def files() -> dict[str, str]:
    """Return the files of the package without other rows, and the first paragraph of their docstrings."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(tuple(f"{folder}/" for folder in LISTED)) and path.name != "__init__.py":
            opening = re.match(r'"""(.*?)(?:"""|\n\n)', path.read_text(encoding="utf-8"), re.DOTALL)
            found[f"anyformer/{name}"] = " ".join(opening[1].split()) if opening else ""
    return found
