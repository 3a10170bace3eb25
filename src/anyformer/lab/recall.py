"""Texts that end with an answer which only their beginning tells, and how often a model is right about it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from anyformer.data import Data
from anyformer.kernels.loss import IGNORED
from anyformer.lab.runs import training
from anyformer.lab.trials import Place, Values
from anyformer.models import Model
from anyformer.train.trainer import Trainer

LETTERS = "abcdefghijklmnopqrstuvwxyz"
BLANK, ASK = ".", "|"  # a token that says nothing, and that after which the answer comes
TEXTS = 4  # in a row: rows begin anywhere in a text, and with one in each, none would ever be whole


def row_length(length: int) -> int:
    """Tokens of a row of texts of this length, an end token after each."""
    return TEXTS * (length + 1)


def draw_letters(draw: np.random.Generator, number: int, size: int, letters: int) -> np.ndarray:
    """(number, size) of the first so many letters."""
    return np.array(list(LETTERS))[draw.integers(0, letters, (number, size))]


def palindromes(number: int, size: int, letters: int, seed: int) -> list[str]:
    """abcd|dcba: answer i stands 2 i + 2 tokens after its letter."""
    words = ["".join(row) for row in draw_letters(np.random.default_rng(seed), number, size, letters)]
    return [word + ASK + word[::-1] for word in words]


def copies(number: int, size: int, letters: int, blanks: int, seed: int, selective: bool) -> list[dict[str, str]]:
    """Letters and blanks, then as many marks as letters; each mark has one letter as its tag, in their order, and says
    nothing itself. The letters come first, or where `selective`, anywhere among the blanks [Gu and Dao 2023, section
    4.1.1]."""
    draw = np.random.default_rng(seed)
    found = []
    for row in draw_letters(draw, number, size, letters):
        places = np.sort(draw.permutation(size + blanks)[:size]) if selective else np.arange(size)
        text = np.full(size + blanks, BLANK)
        text[places] = row
        found.append({"words": " ".join((*text, *ASK * size)), "tags": " ".join((*[str(IGNORED)] * text.size, *row))})
    return found


def train_on(
    place: Place, name: str, make: Callable[[], list[str]], length: int, spec: Model, values: Values, lr: float
) -> Trainer:
    """On texts of this length, which only the first trial makes. A batch has as many tokens as `values["batch"]` of
    them."""
    data = Data(train=place.texts(name, make))
    run = training(
        name,
        spec,
        data,
        place.device,
        steps=values["steps"],
        batch=values["batch"] // TEXTS,
        length=row_length(length),
        lr=lr,
        seed=values["seed"],
    )
    return place.train(run)


def answer_accuracy(trainer: Trainer, texts: list[str]) -> list[float]:
    """How often each token of the answers is right."""
    ids = torch.tensor([trainer.tokenizer.encode(text) for text in texts], device=trainer.device)
    start = texts[0].index(ASK)
    with trainer.eval_mode():
        said = trainer.model(input_ids=ids).logits[:, start:-1].argmax(-1)
    return (said == ids[:, start + 1 :]).float().mean(0).tolist()
