"""The flags of `train` and `eval` for your own data."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anyformer.train.run import Run

KINDS = ("text", "csv", "jsonl", "images", "tags", "questions")  # flags that name the data
TABLES = ("csv", "jsonl")
APPLIES_TO = {  # a flag -> the data flags that it applies to
    "label": (*TABLES, "tags"),
    "target": TABLES,
    "column": (*TABLES, "tags", "questions"),
    "delimiter": ("csv",),
    "encoding": ("text", *TABLES, "tags", "questions"),
    "multi_label": TABLES,
    "prompt": TABLES,
    "answer": TABLES,
    "similar": TABLES,
}


class Once(argparse.Action):
    """A flag that may be given only once; otherwise the second value would silently replace the first."""

    def __call__(self, parser: Any, namespace: Any, value: Any, flag: str | None = None) -> None:
        if getattr(namespace, self.dest) is not None:
            parser.error(f"{flag} is given twice; give it once")
        setattr(namespace, self.dest, value)


def data_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--text", metavar="PATH", help="a text file or a folder of them, for a language model")
    add("--csv", metavar="FILE", help="a table, CSV or TSV; see --label")
    add("--jsonl", metavar="FILE", help="a file of JSON lines; see --label")
    add("--images", metavar="DIR", help="a folder with one folder of images per class")
    add("--tags", metavar="FILE", help="words with tags: CoNLL columns, or JSON lines")
    add("--questions", metavar="FILE", help="questions, texts and their answers: JSON lines, or SQuAD's format")
    add("--label", metavar="COLUMN", action=Once, help="column to predict; with --tags a name, or a number from 1")
    add("--target", metavar="COLUMN", action=Once, help="column of texts to write, such as translations")
    add(
        "--column",
        metavar="COLUMN",
        action="append",
        default=[],
        help="column of the texts (twice for pairs); with --tags of the words; with --questions three times: the"
        " question, the text, the answer",
    )
    add("--prompt", metavar="COLUMN", action=Once, help="column of prompts, for a decoder that learns to answer")
    add("--answer", metavar="COLUMN", action=Once, help="column of the answers to --prompt")
    add("--similar", action="store_true", help="the texts of two --columns belong together: train sentence embeddings")
    add("--multi-label", metavar="SEPARATOR", help="a row has any number of labels, with this text between them")
    add("--delimiter", metavar="CHAR", help="delimiter of --csv (default: detected)")
    add("--encoding", metavar="NAME", help="encoding of the files (default: detected)")


def given_kinds(options: argparse.Namespace) -> list[str]:
    """Return the flags that name data; ValueError if another flag does not apply to them."""
    given = [name for name in KINDS if getattr(options, name) is not None]
    for name, kinds in APPLIES_TO.items():
        if getattr(options, name) and not {*given} & {*kinds}:
            raise ValueError(f"--{name.replace('_', '-')} goes with {', '.join(f'--{kind}' for kind in kinds)}")
    if options.multi_label and not options.label:
        raise ValueError("--multi-label needs --label COLUMN")
    if bool(options.prompt) != bool(options.answer):
        raise ValueError("--prompt and --answer belong together: the columns of prompts and of answers")
    if sum(bool(value) for value in (options.label, options.target, options.prompt, options.similar)) > 1:
        raise ValueError("give one of --label, --target, --prompt and --similar")
    return given


def delimiter_of(options: argparse.Namespace) -> str | None:
    return {"tab": "\t", "\\t": "\t"}.get(options.delimiter, options.delimiter)


def own_run(options: argparse.Namespace, labels: Sequence[str] = ()) -> Run:
    """Return a run on the user's own data. Rank 0 reports on stderr how the data is read. `labels` are those of a
    trained model; a table need not contain all of them."""
    from anyformer.recipes.shared.own_text import from_table, from_text

    def tell(line: str) -> None:
        if os.environ.get("RANK", "0") == "0":
            print(line, file=sys.stderr)

    if options.csv and not (options.label or options.target or options.prompt or options.similar):
        raise ValueError(
            "--csv needs --label COLUMN, the column to predict, --target COLUMN, the texts to write, "
            "--prompt COLUMN and --answer COLUMN, for a decoder, or --similar, for sentence embeddings"
        )
    if options.images is not None:
        from anyformer.recipes.shared.own_images import from_images

        return from_images(options.images, options.model, tell=tell)
    if options.tags is not None:
        from anyformer.recipes.shared.own_tags import from_tags

        if len(options.column) > 1:
            raise ValueError("--tags reads one --column of words")
        words = options.column[0] if options.column else None
        return from_tags(options.tags, words, options.label, options.model, encoding=options.encoding, tell=tell)
    if options.questions is not None:
        from anyformer.recipes.shared.own_questions import from_questions

        return from_questions(options.questions, options.column, options.model, encoding=options.encoding, tell=tell)
    if options.text is not None:
        return from_text(options.text, options.model, encoding=options.encoding, tell=tell)
    path, jsonl = options.csv or options.jsonl, options.jsonl is not None
    reading: dict[str, Any] = {"encoding": options.encoding, "jsonl": jsonl, "delimiter": delimiter_of(options)}
    if options.prompt is not None:
        from anyformer.data import open_table
        from anyformer.data.conversations import Conversations
        from anyformer.recipes.shared.own_answers import answers_run

        source = open_table(path, (options.prompt, options.answer), **reading)
        source = source.replace(required=(options.prompt, options.answer))
        talks = Conversations(source=source, prompt=options.prompt, answer=options.answer)
        return answers_run(talks, path, options.model, tell)
    if options.similar:
        from anyformer.recipes.shared.own_similar import from_similar

        return from_similar(path, options.column, options.model, **reading, tell=tell)
    if options.target is not None:
        from anyformer.recipes.shared.own_pairs import from_pairs

        return from_pairs(path, options.target, options.column, options.model, **reading, tell=tell)
    reading |= {"separator": options.multi_label, "labels": labels}
    return from_table(path, options.label, options.column, options.model, **reading, tell=tell)
