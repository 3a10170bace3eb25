"""Texts that end with an answer that follows only from their beginning, and the accuracy of a model on the answers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from anyformer.data import Data
from anyformer.kernels.loss import IGNORED
from anyformer.lab.training import training_run
from anyformer.lab.trials import Place, Values
from anyformer.models import Model
from anyformer.train.trainer import Callback, Trainer

LETTERS = "abcdefghijklmnopqrstuvwxyz"
BLANK, ASK = ".", "|"  # a token without information, and the token before the answer
TEXTS = 4  # texts per row: a row can begin anywhere in a text, so with one text per row no text would be complete


def row_length(length: int) -> int:
    """Return the number of tokens in a row of texts of this length, with an end token after each text."""
    return TEXTS * (length + 1)


def draw_letters(draw: np.random.Generator, number: int, size: int, letters: int) -> np.ndarray:
    """Draw an array (number, size) from the first `letters` letters."""
    return np.array(list(LETTERS))[draw.integers(0, letters, (number, size))]


def palindromes(number: int, size: int, letters: int, seed: int) -> list[str]:
    """Return texts such as abcd|dcba. Token i of the answer is 2 i + 2 tokens after its letter."""
    words = ["".join(row) for row in draw_letters(np.random.default_rng(seed), number, size, letters)]
    return [word + ASK + word[::-1] for word in words]


def copies(number: int, size: int, letters: int, blanks: int, seed: int, selective: bool) -> list[dict[str, str]]:
    """Return texts of letters and blanks, then one mark per letter. The tags of the marks are the letters in order; all
    marks are the same token. The letters are at the beginning or, if `selective`, anywhere among the blanks [Gu and Dao
    2023, section 4.1.1]."""
    draw = np.random.default_rng(seed)
    texts = []
    for row in draw_letters(draw, number, size, letters):
        index = np.sort(draw.permutation(size + blanks)[:size]) if selective else np.arange(size)
        text = np.full(size + blanks, BLANK)
        text[index] = row
        texts.append({"words": " ".join((*text, *ASK * size)), "tags": " ".join((*[str(IGNORED)] * text.size, *row))})
    return texts


def train_on(
    place: Place,
    name: str,
    make: Callable[[], list[str]],
    length: int,
    spec: Model,
    values: Values,
    lr: float,
    *callbacks: Callback,
    captured: bool = True,
) -> Trainer:
    """Train on texts of this length; `make` generates them in the first trial only. A batch contains `values["batch"]`
    texts. On a GPU, steps are captured in a CUDA graph unless `captured` is False."""
    data = Data(train=place.texts(name, make))
    run = training_run(
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
    return place.train(run if captured else run.replace(record=False), *callbacks)


def answer_accuracy(trainer: Trainer, texts: list[str]) -> list[float]:
    """Return the accuracy of each token of the answers."""
    ids = torch.tensor([trainer.tokenizer.encode(text) for text in texts], device=trainer.device)
    start = texts[0].index(ASK)
    with trainer.eval_mode():
        predictions = trainer.model(input_ids=ids).logits[:, start:-1].argmax(-1)
    return (predictions == ids[:, start + 1 :]).float().mean(0).tolist()
