"""English texts of the folders in `--data`, for encoders that are pretrained from scratch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from anyformer.data import Data, Held, JSONLines, TextFiles
from anyformer.lab.trials import Place
from anyformer_course.lab.made_up_language import Language

SHORTEST = 8  # words: shorter documents are headings
HEADING = re.compile(r"^ ?= [^=].* =\s*$", re.MULTILINE)  # the title of a Wikipedia article


def articles(home: Path) -> Iterator[str]:
    """Yield the articles of WikiText-2 (its validation and test parts), without headings."""
    for part in ("valid", "test"):
        for row in TextFiles(path=str(home / f"wikitext2_valid_test/wiki.{part}.raw.gz")).raw():
            text = "".join(row.example["text"]) if row.example else ""
            for article in HEADING.split(text):
                yield " ".join(line for line in article.splitlines() if not line.lstrip().startswith("="))


def paragraphs(home: Path) -> Iterator[str]:
    """Yield the distinct paragraphs of the part of SQuAD."""
    rows = JSONLines(path=str(home / "qa_squad11_part/squad11_train_part.jsonl.gz")).raw()
    yield from dict.fromkeys(row.example["context"] for row in rows if row.example)


def abstracts(home: Path) -> Iterator[str]:
    """Yield the abstracts of SciTLDR's training part."""
    for row in JSONLines(path=str(home / "summ_scitldr/train.jsonl.gz")).raw():
        yield " ".join(row.example["source"]) if row.example else ""


def captions(home: Path) -> Iterator[str]:
    """Yield the English captions of Multi30k, each a document of one sentence."""
    for row in TextFiles(path=str(home / "multi30k/train.en.gz"), unit="line").raw():
        yield row.example["text"] if row.example else ""


SOURCES: dict[str, Callable[[Path], Iterator[str]]] = {
    "wikitext": articles,
    "squad": paragraphs,
    "scitldr": abstracts,
    "multi30k": captions,
}


def documents(home: str, names: tuple[str, ...]) -> list[str]:
    """Return the documents of these sources as one line each, in a random order that is always the same."""
    lines = [" ".join(text.split()) for name in names for text in SOURCES[name](Path(home))]
    lines = [line for line in lines if len(line.split()) >= SHORTEST]
    return [lines[i] for i in np.random.default_rng(0).permutation(len(lines))]


def document_data(place: Place, home: str | None, names: tuple[str, ...] = tuple(SOURCES)) -> Data:
    """Return the documents of these sources, one in twenty held out. Without `home`: a few of a made-up language."""
    language = Language(topics=2, words=3)
    source = place.texts("documents", lambda: documents(home, names) if home else language.texts(60, 6, 0))
    return Data(train=Held(source=source), valid=Held(source=source, out=True))
