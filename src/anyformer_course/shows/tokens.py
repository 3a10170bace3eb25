"""BPE and WordPiece step by step: merges of the most frequent pairs, and your text in pieces after each merge."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from typing import Any

from anyformer.look.figures import new, plain
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._trained import STORIES

SPACE = "\u0120"  # GPT-2's letter for a space before a word


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
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = len({*re.sub(r"\s", "", corpus.lower())})
    wordpiece = TrainedWordPiece(size=len(special) + 2 * letters + merges).core([corpus], special)
    found = [[word, " ".join(wordpiece.encode(word).tokens)] for word in text.split()]

    def draw() -> Any:
        figure, axes = new(1, 1, 6, 3.2)
        axes[0, 0].step([row[0] for row in rows], [row[3] for row in rows], where="post")
        axes[0, 0].set_xlabel("merges")
        axes[0, 0].set_ylabel("tokens of the text")
        axes[0, 0].set_ylim(bottom=0)
        axes[0, 0].set_title(plain(f"BPE: {text}"), fontsize=9)
        return figure

    return Shown(
        f"BPE: {rows[0][3]} bytes become {rows[-1][3]} tokens after {len(learned)} merges; WordPiece: "
        f"{sum(len(each[1].split()) for each in found)} pieces",
        [
            Table("BPE, merge by merge", ("merge", "pair", "times in the corpus", "tokens", "text"), rows),
            Table("WordPiece: the longest piece first, ## inside a word", ("word", "pieces"), found),
        ],
        draw,
    )


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
    return piece.replace(SPACE, "_")


def shown(pieces: list[list[str]]) -> str:
    return " ".join(visible(piece) for word in pieces for piece in word)
