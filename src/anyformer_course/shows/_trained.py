"""Two small models that train in about a second: a GPT and a BERT, with one token per word."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Collection
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import anyformer as af
from anyformer.parts.base import HasVocabulary
from anyformer.parts.init import Normal
from anyformer.parts.mask import Causal, Window
from anyformer.specs.messages import quote, shorten

# The first two animals are a trap for greedy decoding: "dog" is more frequent than "cat", but dogs do many things.
STORIES = "\n".join(
    ["the cat sat on the mat ."] * 9
    + [
        line
        for line in (
            "the dog chased the ball .", "the dog barked at the cat .", "the dog slept in the sun .",
            "the dog dug a deep hole .", "the dog ran to the river .", "the dog found an old bone .",
        )
        for _ in range(2)
    ]
    + ["a bird sang in the tree ."] * 3 + ["a bird flew over the river ."] * 3
    + ["i like dogs .", "i like cats .", "she likes birds .", "we like the river .", "the sun was warm ."] * 2
    + [f"win a free {thing} {when} ." for thing in ("prize", "phone", "holiday") for when in ("now", "today")]
    + [f"the {what} is {when} ." for what in ("meeting", "lunch", "class") for when in ("at noon", "on monday")]
)  # fmt: skip
MARKS = {"gpt": ("<end>", "<start>", "<delim>", "<extract>"), "bert": ("[PAD]", "[CLS]", "[SEP]", "[MASK]")}


@dataclasses.dataclass(frozen=True)
class SmallModel:
    """A model and its words: token id i is `tokens[i]`."""

    model: Any
    tokens: list[str]

    def words(self, text: str) -> list[str]:
        """Return the tokens of an ordinary text."""
        known, words = {*self.tokens}, spell(text, self.tokens)
        if not words:
            raise ValueError("the text is empty; write a few words")
        if unknown := next((word for word in words if word not in known), None):
            learned = shorten(", ".join(self.tokens[4:]), 600)  # without marks
            hint = f"it learned {learned}; or give corpus=, lines to learn"
            raise ValueError(f"the small model does not know {quote(unknown)}; {hint}")
        return words

    def ids(self, text: str) -> list[int]:
        return [self.tokens.index(word) for word in self.words(text)]

    def text(self, ids: Any) -> str:
        return " ".join(self.tokens[int(i)] for i in ids)


def spell(text: str, known: Collection[str]) -> list[str]:
    """Return the words of a text as `known` spells them: "The sun." becomes the, sun and a full stop."""
    spelled = {word.lower(): word for word in known} | {word: word for word in known}

    def find(word: str) -> str:
        return spelled.get(word) or spelled.get(word.lower()) or word

    words: list[str] = []
    for word in text.split():
        stem = word if find(word) in spelled else word.rstrip(".,;:!?") or word
        words += map(find, (stem, *word[len(stem) :]))
    return words


def describe(name: str, vocab_size: int, *, std: float = 0.1, **changes: Any) -> Any:
    """Return the description `name` with 2 layers of width 48 and 4 heads, without dropout.

    A narrow model learns faster from larger initial weights than the published standard deviation of 0.02.
    """
    spec = af.spec(name)
    stack = "decoder" if spec.left_to_right else "encoder"
    head = "head.vocab_size" if isinstance(spec.head, HasVocabulary) else "head.lm.vocab_size"
    small = {
        "width": 48, f"{stack}.depth": 2,
        f"{stack}.layers.attention.op.num_heads": 4, f"{stack}.layers.attention.op.head_width": None,
        f"{stack}.layers.feedforward.op.width": 192, "embedding.tokens.vocab_size": vocab_size, head: vocab_size,
        "embedding.dropout": 0.0, f"{stack}.layers.attention.dropout": 0.0,
        f"{stack}.layers.attention.op.dropout": 0.0, f"{stack}.layers.feedforward.dropout": 0.0,
    }  # fmt: skip
    return af.override(spec, {**small, **changes}).replace(init={"*": Normal(std=std)})


@functools.cache
def train(kind: str = "gpt", corpus: str = STORIES, *, context: int | None = None, seed: int = 0) -> SmallModel:
    """Train "gpt" to predict the next word, or "bert" to predict masked words, on the lines of `corpus`.

    A GPT with a `context` has one layer, no positions, and sees only the last `context` words.
    """
    lines = Counter(line for line in corpus.splitlines() if line.strip())
    if not lines or len(lines) > 100 or max(len(line.split()) for line in lines) > 30:
        raise ValueError("the corpus must have 1 to 100 different lines of at most 30 words each")
    tokens = [*MARKS[kind], *sorted({word for line in lines for word in line.split()} - {*MARKS[kind]})]
    if kind == "gpt":
        window = {"decoder.layers.attention.op.mask": Causal() & Window(size=context or 1)}
        limited = {"decoder.depth": 1, "embedding.position": None, **window}
        spec, steps, ends = describe("gpt2", len(tokens), **(limited if context else {})), 60, (1, 0)
    else:
        spec, steps, ends = describe("bert-base", len(tokens), std=0.2), 120, (1, 2)
    small = SmallModel(af.build(spec, seed=seed), tokens)
    rows = [[ends[0], *small.ids(line), ends[1]] for line in sorted(lines)]
    ids, real = pad(rows)
    weight = torch.tensor([float(lines[line]) for line in sorted(lines)])[:, None]
    draws = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(small.model.parameters(), betas=(0.9, 0.98), fused=True)
    for step in range(steps):
        for group in optimizer.param_groups:  # warm-up: BERT's post-norm layers need it
            group["lr"] = 1e-2 * (1 - step / steps) * (1 if kind == "gpt" else min(1, (step + 1) / 20))
        if kind == "gpt":
            loss = next_word_loss(small.model, ids, real, weight)
        else:
            loss = masked_word_loss(small.model, ids, draws)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return SmallModel(small.model.eval(), tokens)


def pad(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Return token ids (B, T), filled up with 0, and True for real tokens (B, T)."""
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    return ids, torch.tensor([[i < len(row) for i in range(width)] for row in rows])


def next_word_loss(model: Any, ids: Tensor, real: Tensor, weight: Tensor) -> Tensor:
    """Return the mean loss of the tokens after the first; each row counts as `weight` (B, 1) rows."""
    scores = model(input_ids=ids).logits[:, :-1]
    losses = F.cross_entropy(scores.transpose(1, 2), ids[:, 1:], reduction="none")
    share = real[:, 1:] * weight
    return (losses * share).sum() / share.sum()


def masked_word_loss(model: Any, ids: Tensor, draws: torch.Generator, rate: float = 0.25) -> Tensor:
    """Return the mean loss of masked words. Marks (ids 0 to 2) are not masked."""
    chosen = (torch.rand(ids.shape, generator=draws) < rate) & (ids > 2)
    scores = model(input_ids=ids.masked_fill(chosen, 3), attention_mask=(ids != 0).long()).prediction_logits
    return F.cross_entropy(scores[chosen], ids[chosen]) if chosen.any() else scores.sum() * 0
