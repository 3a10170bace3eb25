"""Conversations about the standard library of the running Python, with answers from its docstrings and signatures."""

from __future__ import annotations

import ast
import json
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from anyformer.data.text_files import PythonDocs

Progress = Callable[[int, int], object]

ONE_IN = 20  # one conversation in 20 is held out
EXCLUDED = {"idlelib", "lib2to3", "turtledemo"}  # programs, not libraries
SHORTEST, LONGEST = 10, 400  # characters per paragraph
MOST_METHODS = 12  # listed in an answer
PLAIN_METHODS = {"staticmethod", "classmethod"}  # decorated methods that are called like other methods


class Subject(NamedTuple):
    """A function, method or class with a docstring."""

    module: str  # "textwrap"
    name: str  # "dedent", "TextWrapper.fill"
    paragraphs: Sequence[str]  # of its docstring
    call: str  # "dedent(text)"; "" for a class without its own __init__
    parameters: Mapping[str, bool]  # name -> whether it is optional
    methods: Mapping[str, Sequence[str]] | None  # for a class: public method -> paragraphs of its docstring


def write_conversations(folder: Path, seed: int, progress: Progress, most: int = 3000) -> None:
    """Write train.jsonl and valid.jsonl, one {"messages": [...]} per line. No module is in both files."""
    random = np.random.default_rng(seed)
    files = PythonDocs().files()
    order = (files[i] for i in random.permutation(len(files)))
    done, held_out = 0, -(-most // ONE_IN)
    for split, count in (("valid", held_out), ("train", most - held_out)):
        subjects: list[Subject] = []
        while len(subjects) < count and (file := next(order, None)):
            subjects += find_subjects(file)
        names = sorted({name for subject in subjects for name in subject.parameters if "*" not in name})
        with (folder / f"{split}.jsonl").open("w", encoding="utf-8", newline="\n") as out:
            for i in random.permutation(len(subjects))[:count]:
                out.write(json.dumps({"messages": converse(subjects[i], names, random)}, ensure_ascii=False) + "\n")
                progress(done := done + 1, most)


# -- subjects ----------------------------------------------------------------------------------------------------------


def find_subjects(file: Path) -> Iterator[Subject]:
    """Yield the subjects in a file of the standard library, without importing it."""
    parts = file.relative_to(sysconfig.get_paths()["stdlib"]).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    if parts[0] in EXCLUDED or any(part.startswith("_") for part in parts):
        return
    for node in ast.parse(file.read_bytes()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield from subjects_of(node, ".".join(parts))


def subjects_of(node: ast.FunctionDef | ast.ClassDef, module: str, owner: str = "") -> Iterator[Subject]:
    """Yield the subject of a function; for a class, also the subjects of its methods."""
    if node.name.startswith("_"):
        return
    name, paragraphs = owner + node.name, paragraphs_of(node)
    if isinstance(node, ast.FunctionDef):
        decorators = {ast.unparse(each) for each in node.decorator_list}
        if paragraphs and not (owner and decorators - PLAIN_METHODS):  # a property is not called
            bound = bool(owner) and "staticmethod" not in decorators
            yield Subject(module, name, paragraphs, *call_of(node.name, node.args, bound), None)
        return
    methods = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}
    for method in methods.values():
        yield from subjects_of(method, module, f"{name}.")
    if paragraphs:
        call = call_of(name, methods["__init__"].args, bound=True) if "__init__" in methods else ("", {})
        public = {each: paragraphs_of(method) for each, method in methods.items() if not each.startswith("_")}
        yield Subject(module, name, paragraphs, *call, public)


def paragraphs_of(node: ast.FunctionDef | ast.ClassDef) -> Sequence[str]:
    """Return the paragraphs at the beginning of a docstring, up to the first example, table or very long paragraph."""
    texts: list[str] = []
    for paragraph in (ast.get_docstring(node) or "").split("\n\n"):
        text = " ".join(paragraph.split())
        if paragraph.startswith((" ", ">>>")) or "\n " in paragraph or not SHORTEST <= len(text) <= LONGEST:
            break
        texts.append(text)
    return texts


def call_of(name: str, arguments: ast.arguments, bound: bool) -> tuple[str, dict[str, bool]]:
    """Return how a function is called, and its parameters. If `bound`, its first parameter (self) is omitted."""
    positional = [*arguments.posonlyargs, *arguments.args]
    optional = {each.arg for each in positional[len(positional) - len(arguments.defaults) :]}
    optional |= {a.arg for a, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if value}
    parameters = {each.arg: each.arg in optional for each in (*positional[bound:], *arguments.kwonlyargs)}
    starred = {"*": arguments.vararg, "**": arguments.kwarg}
    parameters |= {f"{mark}{each.arg}": True for mark, each in starred.items() if each is not None}
    for each in ast.walk(arguments):
        if isinstance(each, ast.arg):
            each.annotation = None
    signature = ast.unparse(arguments)
    if bound and positional:
        signature = signature.removeprefix(positional[0].arg).removeprefix(", ").removeprefix("/").removeprefix(", ")
    return f"{name}({signature})", parameters


# -- questions and answers ---------------------------------------------------------------------------------------------


def converse(subject: Subject, names: Sequence[str], random: np.random.Generator) -> list[dict[str, str]]:
    """Return a conversation of two to four questions about a subject; `names` are parameters of all subjects."""
    full = f"`{subject.module}.{subject.name}`"
    kind = "class" if subject.methods is not None else "method" if "." in subject.name else "function"
    first = (f"What does {full} do?", f"What is the {kind} {full} for?", f"Explain the {kind} {full} in short.")
    turns = [(first, subject.paragraphs[0])]
    more = list(follow_ups(subject, names, random))
    turns += [more[i] for i in random.permutation(len(more))[: random.integers(1, 4)]]
    messages = []
    for questions, answer in turns:
        messages.append({"role": "user", "content": draw(questions, random)})
        messages.append({"role": "assistant", "content": answer})
    return messages


def follow_ups(
    subject: Subject, names: Sequence[str], random: np.random.Generator
) -> Iterator[tuple[Sequence[str], str]]:
    """Yield (ways to ask a question, answer)."""
    first = subject.name.partition(".")[0]
    yield ("How do I import it?", f"Where is `{first}` imported from?"), f"`from {subject.module} import {first}`"
    if len(subject.paragraphs) > 1:
        yield ("Tell me more.", "What else should I know?"), subject.paragraphs[1]
    if subject.methods is not None:
        if 0 < len(subject.methods) <= MOST_METHODS:
            yield ("Which methods does it have?", "What methods does it define?"), f"{join_names(subject.methods)}."
        documented = [name for name, paragraphs in subject.methods.items() if paragraphs]
        if documented:
            method = draw(documented, random)
            yield (f"What does its method `{method}` do?",), subject.methods[method][0]
    if subject.call:
        takes = describe_parameters(subject.parameters)
        how = "How do I make one?" if subject.methods is not None else "How do I call it?"
        yield (how, "What is its signature?"), f"`{subject.call}`"
        yield ("Which parameters does it have?", "What does it take?"), takes
        plain = [name for name in subject.parameters if "*" not in name]
        if candidates := plain if plain and random.random() < 0.5 else names:
            name = draw(candidates, random)
            known = subject.parameters.get(name)
            answer = f"No. {takes}" if known is None else f"Yes. It {'can be left out' if known else 'must be given'}."
            yield (f"Does it have a parameter `{name}`?",), answer


def describe_parameters(parameters: Mapping[str, bool]) -> str:
    """ "It takes `text` and `width`; `width` can be left out." """
    if not parameters:
        return "It takes no parameters."
    optional = [name for name, is_optional in parameters.items() if is_optional]
    return f"It takes {join_names(parameters)}" + (f"; {join_names(optional)} can be left out." if optional else ".")


def join_names(names: Iterable[str]) -> str:
    """ "`a`, `b` and `c`" """
    *before, last = (f"`{name}`" for name in names)
    return f"{', '.join(before)} and {last}" if before else last


def draw(candidates: Sequence[str], random: np.random.Generator) -> str:
    return candidates[int(random.integers(len(candidates)))]
