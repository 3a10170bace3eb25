"""Attention maps of a trained model: every layer and head, and what each head attends to."""

from __future__ import annotations

from typing import Any

import torch

import anyformer as af
from anyformer.look.figures import heat_maps
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._trained import STORIES, train


def example(text: str = "the dog chased the ball .", *, model: str = "gpt", corpus: str = STORIES) -> Shown:
    """Read the text with a small trained "gpt" or "bert" and keep the attention weights of all heads."""
    if model not in ("gpt", "bert"):
        raise ValueError(f"model is {model!r}; it must be 'gpt' or 'bert'")
    small = train(model, corpus)
    ids = torch.tensor([[1, *small.ids(text), *([2] if model == "bert" else [])]])
    tokens = [small.tokens[i] for i in ids[0].tolist()]
    with torch.no_grad():
        run = af.trace(small.model, keep="**.weights", input_ids=ids)
    names, maps, rows = [], [], []
    for layer, address in enumerate(run):
        for head, weights in enumerate(run[address][0]):  # (T, T)
            distance = (torch.arange(len(tokens))[:, None] - torch.arange(len(tokens))[None]).abs().float()
            query, key = divmod(int(weights.clone().fill_diagonal_(0).argmax()), len(tokens))
            names.append(f"layer {layer + 1}, head {head + 1}")
            maps.append(weights)
            rows.append(
                [
                    names[-1],
                    float(weights.diagonal().mean()),
                    float(weights.diagonal(-1).mean()),
                    float(weights[:, 0].mean()),
                    float((weights * distance).sum(-1).mean()),
                    f"{tokens[query]} -> {tokens[key]}",
                ]
            )

    def draw() -> Any:
        return heat_maps(maps, names, f"who attends to whom: {text}", tokens, limits=(0, 1))

    most = max(rows, key=lambda row: row[2])
    columns = ("head", "to itself", "to the word before", "to the first token", "mean distance", "strongest pair")
    return Shown(
        f"{len(maps)} maps of {len(tokens)} x {len(tokens)}; {most[0]} attends most to the word before ({most[2]:.2f})",
        [Table("heads", columns, rows)],
        draw,
    )
