"""BPE and WordPiece step by step: merges of the most frequent pairs, and your text in pieces after each merge.

Then each piece becomes an index of the vocabulary, and each index a vector: a row of a table that the model learns. The
table is random here, as before training.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from typing import Any

import numpy as np

from anyformer.inputs.words import BYTES
from anyformer.look.figures import new, plain
from anyformer.specs.messages import amount
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._trained import STORIES

WIDTH = 4  # numbers of a vector that are shown


def example(text: str = "the cat likes the warmest mats", *, merges: int = 40, corpus: str = STORIES) -> Shown:
    """Learn `merges` merges from `corpus`, then split `text`. WordPiece gets a vocabulary of the same size."""
    from anyformer.data.vocabulary import TrainedBPE, TrainedWordPiece

    if not text.split():
        raise ValueError("the text is empty; write a few words")
    core = TrainedBPE(size=258 + merges).core([corpus], ["<|endoftext|>", "<|padding|>"])
    learned = [tuple(pair) for pair in json.loads(core.to_str())["model"]["merges"]]
    split = core.pre_tokenizer.pre_tokenize_str
    words = Counter(word for line in corpus.splitlines() for word, _ in split(line))
    corpus_words = {word: list(word) for word in words}
    pieces = [list(word) for word, _ in split(text)]
    rows: list[list[Any]] = [[0, "", None, sum(map(len, pieces)), shown(pieces)]]
    for step, pair in enumerate(learned, 1):
        count = sum(words[w] * pairs_of(p).count(pair) for w, p in corpus_words.items())
        corpus_words = {word: merge(p, pair) for word, p in corpus_words.items()}
        pieces = [merge(word, pair) for word in pieces]
        rows.append([step, " + ".join(map(visible, pair)), count, sum(map(len, pieces)), shown(pieces)])
    assert [piece for word in pieces for piece in word] == core.encode(text).tokens
    encoded = core.encode(text)
    size = core.get_vocab_size()
    table = np.random.default_rng(0).normal(0, 1, (size, WIDTH))
    vectors = [[visible(piece), i, *table[i].tolist()] for piece, i in zip(encoded.tokens, encoded.ids, strict=True)]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = len({*re.sub(r"\s", "", corpus.lower())})
    wordpiece = TrainedWordPiece(size=len(special) + 2 * letters + merges).core([corpus], special)
    found = [[word, " ".join(wordpiece.encode(word).tokens)] for word in text.split()]

    in_bytes = "" if text.isascii() else f" ({amount(len(text.encode()), 'byte')})"

    def draw() -> Any:
        stages = [rows[i] for i in sorted({0, len(rows) // 3, 2 * len(rows) // 3, len(rows) - 1})]
        width = 1.15 * min(len(rows[0][4]), 120)  # the rest of a long text is not drawn
        figure, axes = new(1, 1, 1.5 + 0.15 * width, 0.6 + 0.4 * (len(stages) + 1))
        axis = axes[0, 0]
        for y, row in enumerate(stages):
            axis.text(
                -0.6, -y, f"{amount(row[0], 'merge')}, {amount(row[3], 'token')}", ha="right", va="center", fontsize=9
            )
            draw_pieces(axis, row[4].split(), -y, width)
        axis.text(-0.6, -len(stages), "indices", ha="right", va="center", fontsize=9)
        draw_pieces(axis, [str(i) for i in encoded.ids], -len(stages), width)
        axis.set(xlim=(-9, width), ylim=(-len(stages) - 0.6, 0.6))
        axis.set_axis_off()
        return figure

    return Shown(
        f"BPE: {len(text):,} letters and spaces{in_bytes} become {amount(rows[-1][3], 'token')} after "
        f"{amount(len(learned), 'merge')}; each token is one of {size} indices, and each index a vector. WordPiece: "
        f"{amount(sum(len(each[1].split()) for each in found), 'piece')}.",
        [
            Table("BPE, merge by merge (_ is a space)", ("merge", "pair", "times in the corpus", "tokens", "text"),
                  rows),
            Table(f"token, index, and the first {WIDTH} numbers of its vector (random, before training)",
                  ("token", "index", *(str(i) for i in range(WIDTH))), vectors),
            Table("WordPiece: the longest piece first, ## inside a word", ("word", "pieces"), found),
        ],
        draw,
    )  # fmt: skip


def draw_pieces(axis: Any, pieces: list[str], y: float, width: float) -> None:
    """Write the pieces next to each other in boxes of changing colors, as many as fit."""
    x = 0.0
    for i, piece in enumerate(pieces):
        if x + len(piece) > width:
            break
        box = {"fc": ("#dfe8f5", "#ffd9a0", "#d5ecd0")[i % 3], "ec": "none", "pad": 2}
        axis.text(x, y, plain(piece), va="center", fontsize=9, family="monospace", bbox=box)
        x += len(piece) + 0.7


def pairs_of(pieces: list[str]) -> list[tuple[str, str]]:
    return list(itertools.pairwise(pieces))


def merge(pieces: list[str], pair: tuple[str, ...]) -> list[str]:
    """Join every occurrence of the pair, from the left."""
    joined: list[str] = []
    for piece in pieces:
        if joined and (joined[-1], piece) == pair:
            joined[-1] += piece
        else:
            joined.append(piece)
    return joined


def visible(piece: str) -> str:
    """Write the bytes of a piece as text, a space as "_". Parts of a letter are written like \\xc3."""
    text = bytes(BYTES[letter] for letter in piece).decode("utf-8", "backslashreplace")
    return "".join("_" if c == " " else c if c.isprintable() else repr(c)[1:-1] for c in text)


def shown(pieces: list[list[str]]) -> str:
    return " ".join(visible(piece) for word in pieces for piece in word)
