"""The input of the first layer: token vector + position vector + segment vector, number by number."""

from __future__ import annotations

from typing import Any

import torch

import anyformer as af
from anyformer.look.figures import heat_maps
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._pieces import encode, tokenizer
from anyformer_course.shows._trained import describe
from anyformer_course.table import tiny

DESCRIPTIONS = {"bert": "bert-base", "gpt": "gpt1"}


def example(
    text: str = "i like dogs", second: str = "", *, model: str = "bert", width: int = 8, numbers: int = 4, seed: int = 0
) -> Shown:
    """Add the vectors of a model with random weights; "gpt" has no segments. The tables show the first `numbers`."""
    if model not in DESCRIPTIONS:
        raise ValueError(f"model is {model!r}; it must be 'bert' or 'gpt'")
    pieces = tokenizer(text, *([second] if second else []))
    encoded = encode(pieces, text, second)
    ids = encoded["input_ids"] if model == "bert" else torch.tensor([pieces.encode(text, add_special_tokens=False)])
    spec = describe(DESCRIPTIONS[model], len(pieces), width=width)
    built = af.build(spec, seed=seed).eval()
    inputs = {"input_ids": ids}
    with torch.no_grad():
        parts = {
            "token": built.embedding.tokens(ids)[0],
            "position": built.embedding.position(torch.arange(ids.shape[1])[None])[0],
        }
        if model == "bert":
            inputs["token_type_ids"] = encoded["token_type_ids"]
            parts["segment"] = built.embedding.segments(inputs["token_type_ids"])[0]
        parts["sum"] = sum(parts.values(), torch.zeros(()))
        if built.embedding.norm is not None:
            parts["after LayerNorm"] = built.embedding.norm(parts["sum"])
        read = af.trace(built, keep="embedding", **inputs)["embedding"][0]
    *_, last = parts.values()
    tokens = [pieces.token(i) for i in ids[0].tolist()]
    columns = ("token", *map(str, range(numbers)))
    tables = [
        Table(title, columns, [[token, *row[:numbers]] for token, row in zip(tokens, matrix.tolist(), strict=True)])
        for title, matrix in parts.items()
    ]

    def draw() -> Any:
        return heat_maps(list(parts.values()), list(parts), "the input of the first layer", tokens,
                         columns_are_tokens=False)  # fmt: skip

    names = " + ".join(list(parts)[: 3 if model == "bert" else 2])
    return Shown(
        f"{names}: the sum{' after LayerNorm' if model == 'bert' else ''} is what the first layer reads"
        f" (largest difference {tiny(float((last - read).abs().max()))})",
        tables,
        draw,
    )
